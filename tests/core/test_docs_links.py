"""Links of the documents outside the site. MkDocs checks those of its own pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core
ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "README.md")),
    *ROOT.glob("model_zoo/*.md"),
]


def prose(document: Path) -> str:
    return re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The anchors of headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def broken(document: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(document).replace("\n", " "))
    return [link for link in links if not link.startswith("http") and not leads(document, link)]


def leads(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors(target)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    assert broken(document) == []


def test_links_to_a_missing_file_or_heading_are_broken(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# Two words\n[x](#two-words) [y](#no) [z](b.md) [w](https://no.where)")
    assert broken(document) == ["#no", "b.md"]
