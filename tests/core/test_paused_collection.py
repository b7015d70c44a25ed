"""When a master looks for garbage."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import pytest

from elasticdl import paused_collection
from elasticdl.paused_collection import collect_rarely, without_collection

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


@pytest.mark.usefixtures("rarely")
def test_all_objects_are_looked_through_at_last_whatever_the_limit_of_new_ones() -> None:
    for _ in range(10):
        unseen = math.prod(gc.get_threshold())
        assert 0.9 * paused_collection._MOST_UNSEEN < unseen <= paused_collection._MOST_UNSEEN
        gc.collect(0)


def test_a_body_without_collection_freezes_nothing() -> None:
    """Objects of connections that come meanwhile may go again."""
    frozen = gc.get_freeze_count()
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled() and gc.get_freeze_count() <= frozen
