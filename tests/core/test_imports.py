"""No module of the package imports itself through others, neither late nor for types only."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

pytestmark = pytest.mark.core


def imports() -> dict[str, set[str]]:
    graph = grimp.build_graph("elasticdl", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_through_others() -> None:
    TopologicalSorter(imports()).prepare()


def test_an_import_that_closes_a_circle_is_found() -> None:
    found = imports()
    found["elasticdl.errors"] |= {"elasticdl.cli.main"}
    with pytest.raises(CycleError):
        TopologicalSorter(found).prepare()
