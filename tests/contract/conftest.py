"""An object store on loopback, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.object_store import ObjectStore, reached, serving


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    """This process's clients find it."""
    with serving() as made, reached(made):
        yield made


@pytest.fixture
def empty(server: ObjectStore) -> None:
    """Without objects in its bucket."""
    server.buckets["bucket"].clear()
