"""Where a record is, for error messages only: some functions read data again."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.data.base import Reader
from elasticdl.shard import Shard


def place_of(reader: Reader, source: str, number: int) -> str:
    """`train.csv:17` if the reader has `place`, else source and number from 0."""
    place: Callable[[str, int], str] | None = getattr(reader, "place", None)
    return place(source, number) if place is not None else record_location(source, number)


def record_location(source: str, number: int) -> str:
    """The place of a record in data without lines."""
    return f"{source}: record {number}"


def number_of(reader: Reader, shard: Shard, index: int) -> int:
    """The number, within its source, of the `index`-th (from 0) good record of a shard.

    Readers report how many records of a block are bad, not which, so this reads parts of the shard
    again. Raises the errors of `Reader.read`.
    """
    low, high, before = shard.begin, shard.end, 0
    good = _good(reader, shard, low, high)
    # Invariant: [low, high) contains the record and `good` good records; `before` are below low.
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
