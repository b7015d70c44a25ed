"""Cuts data into shards and orders them; depends only on sources, sizes and a seed."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl.job import JobSpec
from elasticdl.job_choices import Shuffle
from elasticdl.master.core.data.permutation import Permutation
from elasticdl.shard import Shard, ShardId, Source

_WINDOWS_PER_SHARD = 64
_SHARDS_PER_WORKER = 4
_MOST_LISTED = 50_000
"""Shards whose order is a list."""


def shard_records(records_per_task: int, window: int, total_records: int, max_workers: int) -> int:
    """Records in a shard: a multiple of `window`, the records that a worker computes on at once.

    The user's size is rounded up; 0 selects 64 windows. Small data gives each of `max_workers`
    about four shards, so that all have work and no worker finishes long after the others.
    """
    if records_per_task:
        return -(-records_per_task // window) * window
    fair = total_records // (_SHARDS_PER_WORKER * max_workers)
    return min(_WINDOWS_PER_SHARD * window, max(window, fair // window * window))


def shard_plan(
    spec: JobSpec, sources: tuple[Source, ...], epochs: int = 1, shuffle: Shuffle = Shuffle.NONE
) -> ShardPlan:
    """The plan of a job's data, with shards of the size that suits the job."""
    # Shards must not depend on the number of members if the result must not.
    workers = spec.training.virtual_workers or spec.cluster.num_workers.high
    total = sum(source.records for source in sources)
    size = shard_records(spec.data.records_per_task, spec.training_window, total, workers)
    return ShardPlan(sources, size, epochs, shuffle, spec.data.seed)


def training_plan(spec: JobSpec, training: tuple[Source, ...]) -> ShardPlan:
    """The plan of a training job that begins."""
    return shard_plan(spec, training, spec.data.num_epochs, spec.data.shuffle)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """`sources` cut into shards of `shard_records`, read `epochs` times.

    The last shard of a source may be shorter.
    """

    sources: tuple[Source, ...]
    shard_records: int
    epochs: int = 1
    shuffle: Shuffle = Shuffle.NONE
    seed: int = 0
    _first: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Number of the first shard of each source."""

    def __post_init__(self) -> None:
        first, number = [], 0
        for source in self.sources:
            first.append(number)
            number += -(-source.records // self.shard_records)
        object.__setattr__(self, "_first", (*first, number))

    @property
    def records(self) -> int:
        """Records of one epoch."""
        return sum(source.records for source in self.sources)

    @property
    def shards(self) -> int:
        """Shards of one epoch."""
        return self._first[-1]

    def order(self, epoch: int) -> Sequence[int]:
        """Shard numbers in the order in which that epoch leases them."""
        if self.shuffle is Shuffle.NONE:
            return range(self.shards)
        # Seeded by text, not by hash(): str hashes differ between processes. A resumed job must get
        # the same order, since the cursor of its ledger is a position in it.
        seed = f"{self.seed}/{epoch}"
        if self.shards > _MOST_LISTED:
            # A list of a million takes half a second to shuffle, in which the master does nothing.
            return Permutation(self.shards, seed)
        numbers = list(range(self.shards))
        random.Random(seed).shuffle(numbers)
        return numbers

    def order_seed(self, epoch: int, number: int) -> int | None:
        """Seed (63 bits) of the record order within shard `number`; None: file order."""
        if self.shuffle is not Shuffle.RECORDS:
            return None
        digest = hashlib.blake2b(f"{self.seed}/{epoch}/{number}".encode(), digest_size=8).digest()
        # 63 bits, so that it also fits into a signed integer.
        return int.from_bytes(digest, "little") >> 1

    def shard(self, number: int, id: ShardId) -> Shard:
        """Shard `number` of 0 … shards-1, with the id `id`."""
        index = bisect_right(self._first, number) - 1
        source = self.sources[index]
        begin = (number - self._first[index]) * self.shard_records
        return Shard(id, source.name, begin, min(begin + self.shard_records, source.records))
