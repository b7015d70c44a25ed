"""When to look for garbage, and when not: where thousands of objects are made to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_NEW, _MOST_NEW = 20_000, 200_000
"""Objects more than before: the newest ones are looked through. The first is the least limit, the
second the highest."""
_WORTH = 0.01
"""Share of the limit that a search has to find."""
_TIMES = 5
"""Searches of generation 0 for one of generation 1."""
_MOST_UNSEEN = 20_000_000
"""Objects more than before: all are looked through, whatever the limit of the newest ones is."""


def collect_rarely() -> None:
    """Look for garbage less often than Python does by itself.

    Python examines all objects whenever their number has grown by a quarter. With 10,000 workers a
    master has a million, and that took it 0.5 s each 2.5 s. Most garbage needs no search.

    A search that found next to nothing doubles the limit for the next one. Thousands of workers
    that attach make half a million objects, and none of them is garbage.
    """
    gc.set_threshold(*_thresholds(_NEW))
    if _adapt not in gc.callbacks:
        gc.callbacks.append(_adapt)


def _adapt(phase: str, info: Mapping[str, int]) -> None:
    """Set the limit after a search."""
    if phase == "stop":
        limit = gc.get_threshold()[0]
        worthwhile = info["collected"] + info["uncollectable"] >= _WORTH * limit
        limit = max(limit // 2, _NEW) if worthwhile else min(2 * limit, _MOST_NEW)
        gc.set_threshold(*_thresholds(limit))


def _thresholds(limit: int) -> tuple[int, int, int]:
    """Return the limit, and after how many searches of a generation the next one is searched."""
    return limit, _TIMES, _MOST_UNSEEN // (limit * _TIMES)


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection in the body."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def paused_collection() -> Iterator[None]:
    """Disable garbage collection in the body and freeze its objects: all of them stay for good.

    Measured: 0.55 s of an import of TensorFlow that takes 3.9 s, 0.12 s of the start of a master
    that takes 1.05 s, and less in each full collection of the process.
    """
    with without_collection():
        try:
            yield
        finally:
            gc.freeze()
