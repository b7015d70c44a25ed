"""The order in which the records of a shard are read, and its windows.

The order covers all `n` **positions** of a shard, including bad records. It is 0, 1, 2 … or a
permutation that depends only on `Lease.order_seed`. Readers report how many records of a block are
bad, but not which. Therefore the good records of a block take its first positions, in their order,
and the bad ones the last. A window is at most `minibatch_size` consecutive entries of the order;
its records exclude bad ones, but its `offset` counts them.

So `offset` alone says what was read, and any worker can continue from it: windows of successive
attempts cover each position exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Block, Records
from elasticdl.data.records import joined, taken
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import Shard

Positions: TypeAlias = NDArray[np.int64]

BAD = -1
"""Marks a position without a record in an array that maps positions to records."""


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """Entries [begin, end) of a shard's order.

    `records` holds the good ones, `end - begin - bad` of them. `places[i]` is the index of the i-th
    among the good records of the whole shard in file order.
    """

    records: Records
    begin: int
    end: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    places: Positions = field(default_factory=lambda: np.empty(0, dtype=np.int64), compare=False)

    @property
    def good(self) -> int:
        """Number of records in `records`."""
        return self.end - self.begin - self.bad


@dataclass(frozen=True, slots=True)
class LoadedShard:
    """A whole shard in memory.

    `record_of[p]` is the index into `records` of position p's record, or BAD: int64[n].
    """

    records: Records
    record_of: Positions
    bad_examples: tuple[str, ...] = ()

    @classmethod
    def read(cls, shard: Shard, blocks: Iterable[Block]) -> LoadedShard:
        """All blocks of a shard as one.

        Raises UserError if their number of records is not that of the shard.
        """
        parts = list(blocks)
        count = sum(block.count for block in parts)
        if count != shard.records:
            raise UserError(
                f"{shard.source}: the reader returned {amount(count, 'record')} for records"
                f" {shard.begin}:{shard.end}, expected {shard.records}",
                hint="the data changed during the job, or the reader's `sources` and `read` differ",
            )
        places, good = [], 0
        for block in parts:
            fine = block.count - block.bad
            places.append(np.arange(good, good + fine, dtype=np.int64))
            places.append(np.full(block.bad, BAD, dtype=np.int64))
            good += fine
        examples = tuple(text for block in parts for text in block.bad_examples)
        return cls(joined([block.records for block in parts]), np.concatenate(places), examples[:3])

    def windows(self, order: Positions, begin: int, size: int) -> Iterator[RecordWindow]:
        """The rest of `order` from entry `begin` on, in windows of at most `size` entries."""
        examples = list(self.bad_examples)
        for start in range(begin, len(order), size):
            end = min(start + size, len(order))
            chosen = self.record_of[order[start:end]]
            good = chosen[chosen != BAD]
            bad = end - start - len(good)
            described = tuple(examples[:bad])
            del examples[:bad]
            yield RecordWindow(taken(self.records, good), start, end, bad, described, good)

    def entries(self, order: Positions, begin: int, end: int) -> tuple[Records, int]:
        """The good records among entries [begin, end) of `order`, and the number of bad ones."""
        chosen = self.record_of[order[begin:end]]
        good = chosen[chosen != BAD]
        return taken(self.records, good), end - begin - len(good)

    def bad_among(self, order: Positions, begin: int, end: int) -> int:
        """The number of bad entries in [begin, end) of `order`."""
        return int(np.count_nonzero(self.record_of[order[begin:end]] == BAD))


def order_of(records: int, order_seed: int | None) -> Positions:
    """The order of a shard's positions, int64[records], equal on every machine."""
    if order_seed is None:
        return np.arange(records, dtype=np.int64)
    return (
        # PCG64 by name: the default generator of NumPy may change with its version.
        np.random.Generator(np.random.PCG64(order_seed))
        .permutation(records)
        .astype(np.int64, copy=False)
    )
