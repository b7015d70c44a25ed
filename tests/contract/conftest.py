"""Fixtures of several files: an object store, parameter servers, a driver, a page, a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.object_store import ObjectStore, reached, serving

if TYPE_CHECKING:
    from tests.contract import driver_stage
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
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of files and decompressed copies go into a directory of this test's own."""
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[driver_stage.Stage]:
    """A driver with its servers of calls, around a core of the test's own."""
    from tests.contract.driver_stage import Stage

    made = Stage(tmp_path)
    yield made
    made.close()


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
