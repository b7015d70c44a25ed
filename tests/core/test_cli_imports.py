"""Modules of the command line do not need one another in a circle, neither late nor for types only."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import elasticdl.cli

pytestmark = pytest.mark.core


def test_no_module_of_the_command_line_needs_itself_by_way_of_others() -> None:
    modules = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in Path(elasticdl.cli.__path__[0]).glob("*.py")}
    needs: dict[str, set[str]] = {}
    for name, tree in modules.items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        named = {f"{node.module}.{one.name}" for node in imports for one in node.names}
        parts = [text.removeprefix("elasticdl.cli.").split(".")[0] for text in named if text.startswith("elasticdl.cli.")]
        needs[name] = {part for part in parts if part in modules}
    assert len(needs) > 40 and "found" in needs["finding"]
    TopologicalSorter(needs).prepare()
