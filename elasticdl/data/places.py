"""Where a record is, for people. For errors only: some of it reads data again."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.data.base import Reader
from elasticdl.shard import Shard


def place_of(reader: Reader, source: str, number: int) -> str:
    """`train.csv:17` where the reader can tell the line (`place`, which readers may have), else
    source and number from 0.
    """
    place: Callable[[str, int], str] | None = getattr(reader, "place", None)
    return place(source, number) if place is not None else plain_place(source, number)


def plain_place(source: str, number: int) -> str:
    """The place of a record in data without lines."""
    return f"{source}: record {number}"


def number_of(reader: Reader, shard: Shard, index: int) -> int:
    """The number, in its source, of the record that comes as the `index`-th (from 0) good one when
    the shard is read.

    Readers tell how many records of a block are bad, not which, so this reads parts of the shard
    again. Raises as `read`.
    """
    low, high, before = shard.begin, shard.end, 0
    good = _good(reader, shard, low, high)
    # Invariant: the record is in [low, high), which has `good` good ones, after `before` others.
    while good < high - low:
        middle = (low + high) // 2
        lower = _good(reader, shard, low, middle)
        if index < before + lower:
            high, good = middle, lower
        else:
            low, before, good = middle, before + lower, good - lower
    return low + index - before


def _good(reader: Reader, shard: Shard, begin: int, end: int) -> int:
    return sum(
        block.count - block.bad for block in reader.read(Shard(shard.id, shard.source, begin, end))
    )
