"""`python scripts/notebook.py`: make docs/notebook/example.ipynb of docs/notebook/example.py, by
really running it.

Needs `pip install nbclient ipykernel`. A file whose lines `# %%` and `# %% [markdown]` begin cells
is what is edited and reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "docs" / "notebook" / "example.py"
TARGET = SOURCE.with_suffix(".ipynb")
LIMIT_S = 600


def cells(text: str) -> Iterator[tuple[str, str]]:
    """(kind, source) of each cell: `markdown` or `code`."""
    for part in text.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            yield (
                "markdown",
                "\n".join(
                    line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()
                ),
            )
        else:
            yield "code", body.strip()


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    made = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        made[kind](source, id=f"cell-{number}")
        for number, (kind, source) in enumerate(cells(SOURCE.read_text()))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name=kernel["name"]).execute()
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
    TARGET.write_text(nbformat.writes(notebook) + "\n")
    print(TARGET)


if __name__ == "__main__":
    main()
