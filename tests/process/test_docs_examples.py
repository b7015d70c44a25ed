"""Code blocks of the documentation run as they stand.

One that cannot run says why in a comment above it:

    <!-- not run: REASON -->      the block is not run
    <!-- file: PATH -->           the block is written to that file

The blocks of a page run in order, in one folder, with the environment of the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "model_zoo/README.md"])
FENCE = re.compile(
    r"^(?:<!-- (not run|file): (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
RUN = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
PARSED: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load}
LIMIT_S = 240


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    marker: str
    argument: str
    """The reason or the path that the marker gives."""
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        marker, argument, language, body = found.groups(default="")
        yield Block(
            str(page.relative_to(ROOT)),
            text[: found.start()].count("\n") + 1,
            marker,
            argument,
            language,
            body,
        )


BLOCKS = {str(page.relative_to(ROOT)): list(blocks(page)) for page in PAGES}
RUNNABLE = [
    page
    for page, found in BLOCKS.items()
    if any(one.language in RUN and not one.marker for one in found)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder in which `elasticdl` is found as a reader finds it: on PATH, and as
    .venv/bin/elasticdl.
    """
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(page: str, folder: Path) -> None:
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "KUBECONFIG": str(folder / "none"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    for block in BLOCKS[page]:
        if block.marker == "file":
            (folder / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.argument).write_text(block.text)
        elif block.language in RUN and not block.marker:
            command = [*RUN[block.language], block.text]
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout}{done.stderr}"


def receipt(folder: Path, job: str) -> dict[str, int]:
    return json.loads((folder / "jobs" / job / "receipt.json").read_text())["total"]


def accuracy(folder: Path, job: str) -> float:
    rows = [
        json.loads(line)
        for line in (folder / "jobs" / job / "metrics.jsonl").read_text().splitlines()
    ]
    return [row["values"]["accuracy"] for row in rows if "accuracy" in row["values"]][-1]


def test_the_tutorial_trains_evaluates_and_predicts_with_a_new_zoo(folder: Path) -> None:
    run("docs/tutorial.md", folder)
    total = receipt(folder, "first")
    assert (total["trained"], total["lost"]) == (total["expected"], 0)
    assert accuracy(folder, "first") >= 0.9
    assert list(folder.glob("predictions/*.npz"))


# `test_wheel.py` runs the README's blocks.
@pytest.mark.parametrize("page", sorted({*RUNNABLE} - {"README.md", "docs/tutorial.md"}))
def test_the_blocks_of_a_page_run(page: str, folder: Path) -> None:
    run(page, folder)


def test_data_in_the_documentation_can_be_parsed() -> None:
    parsed = [
        PARSED[one.language](one.text)
        for found in BLOCKS.values()
        for one in found
        if one.language in PARSED
    ]
    assert len(parsed) >= 2 and all(parsed)


def test_every_block_names_its_language_and_every_fence_is_a_block() -> None:
    known = {*RUN, *PARSED, "text"}
    unknown = [
        f"{one.page}:{one.line} {one.language!r}"
        for found in BLOCKS.values()
        for one in found
        if one.language not in known
    ]
    assert unknown == []
    for page in PAGES:
        fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * len(BLOCKS[str(page.relative_to(ROOT))]), page


def test_lists_and_tables_begin_after_an_empty_line() -> None:
    """GitHub shows them without one, the site does not."""
    begins = re.compile(r"^(?![-|>#]|\d+\. |\s|$|```|<!--).+\n(?:- |\d+\. |\|).*", re.MULTILINE)
    glued = [
        f"{page.relative_to(ROOT)}: {one[0]}"
        for page in PAGES
        for one in begins.finditer(page.read_text(encoding="utf-8"))
    ]
    assert glued == []
