"""In which order the records of a shard are read, and how they are cut into windows.

The order is over all `n` **positions** of a shard, whatever became of their records: a permutation
that depends only on
`Lease.order_seed`, or 0, 1, 2 …. Readers say how many records of a block could not be read but not
which, so of each block
the good records take the first positions, in their order, and the bad ones the last. A window is at
most
`minibatch_size` consecutive entries of the order; bad ones are left out of its records but counted
in its `offset`.

So `offset` alone says what was read, and any worker can go on from there: windows of successive
attempts cover each
position exactly once.
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
"""Where a position has no record: the marker in an array that maps positions to records."""


@dataclass(frozen=True, slots=True)
class Window:
    """Entries [begin, end) of a shard's order.

    `records` holds the good ones, `end - begin - bad` of them.

    `places[i]` tells the i-th of them: it comes as the `places[i]`-th good one when the whole shard
    is read in file order.
    """

    records: Records
    begin: int
    end: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    places: Positions = field(default_factory=lambda: np.empty(0, dtype=np.int64), compare=False)

    @property
    def good(self) -> int:
        """Records in `records`."""
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

        Raises UserError if they do not hold what the shard promises.
        """
        parts = list(blocks)
        count = sum(block.count for block in parts)
        if count != shard.records:
            raise UserError(
                f"{shard.source}: records {shard.begin}:{shard.end} are"
                f" {amount(shard.records, 'record')}, but the reader gave {count}",
                hint=(
                    "the data changed during the job, or the reader's `sources` and `read` do not"
                    " agree"
                ),
            )
        places, good = [], 0
        for block in parts:
            fine = block.count - block.bad
            places.append(np.arange(good, good + fine, dtype=np.int64))
            places.append(np.full(block.bad, BAD, dtype=np.int64))
            good += fine
        examples = tuple(text for block in parts for text in block.bad_examples)
        return cls(joined([block.records for block in parts]), np.concatenate(places), examples[:3])

    def windows(self, order: Positions, begin: int, size: int) -> Iterator[Window]:
        """What is left of `order` from entry `begin` on, in windows of at most `size` entries."""
        examples = list(self.bad_examples)
        for start in range(begin, len(order), size):
            end = min(start + size, len(order))
            chosen = self.record_of[order[start:end]]
            good = chosen[chosen != BAD]
            bad = end - start - len(good)
            told = tuple(examples[:bad])
            del examples[:bad]
            yield Window(taken(self.records, good), start, end, bad, told, good)

    def entries(self, order: Positions, begin: int, end: int) -> tuple[Records, int]:
        """The good records among entries [begin, end) of `order`, and how many of these are bad."""
        chosen = self.record_of[order[begin:end]]
        good = chosen[chosen != BAD]
        return taken(self.records, good), end - begin - len(good)

    def bad_among(self, order: Positions, begin: int, end: int) -> int:
        """How many of entries [begin, end) of `order` are bad."""
        return int(np.count_nonzero(self.record_of[order[begin:end]] == BAD))


def order_of(records: int, order_seed: int | None) -> Positions:
    """The order of a shard's positions: int64[records].

    It depends on nothing else, on any machine.
    """
    if order_seed is None:
        return np.arange(records, dtype=np.int64)
    return (
        np.random.Generator(np.random.PCG64(order_seed))
        .permutation(records)
        .astype(np.int64, copy=False)
    )
