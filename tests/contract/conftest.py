"""An object store on loopback for the tests of a file, and parameter servers or a page for one
test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.object_store import ObjectStore, reached, serving

if TYPE_CHECKING:
    from tests.contract.ps_stage import Stage
    from tests.contract.status_stage import Page


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    """This process's clients find it."""
    with serving() as made, reached(made):
        yield made


@pytest.fixture
def empty(server: ObjectStore) -> None:
    """Without objects in its bucket."""
    server.buckets["bucket"].clear()


@pytest.fixture
def open_stage() -> Iterator[Callable[[int], Stage]]:
    """Open stages of so many parameter servers; they close after the test."""
    # Most tests here need none.
    from tests.contract.ps_stage import Stage

    with ExitStack() as stack:

        def make(count: int) -> Stage:
            stage = Stage(count)
            stack.callback(stage.close)
            return stage

        yield make


@pytest.fixture
def page(tmp_path: Path) -> AbstractAsyncContextManager[Page]:
    """A master's page, and a client that has the token."""
    from tests.contract.status_stage import paged

    return paged(tmp_path)
