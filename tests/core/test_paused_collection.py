"""When a master looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from elasticdl import paused_collection
from elasticdl.paused_collection import collect_rarely

pytestmark = pytest.mark.core

FIRST = paused_collection._NEW


@pytest.fixture
def rarely() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    collect_rarely()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)


def make_garbage(number: int) -> None:
    for _ in range(number):
        ring: list[object] = []
        ring.append(ring)


@pytest.mark.usefixtures("rarely")
def test_searches_that_find_nothing_become_rarer_and_others_frequent_again() -> None:
    gc.collect()
    gc.set_threshold(FIRST, *gc.get_threshold()[1:])
    limits = []
    for _ in range(3):
        gc.collect(0)
        limits.append(gc.get_threshold()[0])
    assert limits == [2 * FIRST, 4 * FIRST, 8 * FIRST]
    # Not by itself meanwhile.
    make_garbage(FIRST // 2)
    gc.collect(0)
    assert gc.get_threshold()[0] == 4 * FIRST
    for _ in range(20):
        gc.collect(0)
    assert gc.get_threshold()[0] == paused_collection._MOST_NEW
