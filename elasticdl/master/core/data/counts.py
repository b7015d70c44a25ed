"""The records of an epoch by outcome, and the ids that shards have used."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.shard import ShardId


@dataclass(slots=True)
class ShardIds:
    """Shard ids, each used once in a job across epochs, tasks and rounds."""

    next: int = 0

    def given(self, id: ShardId) -> bool:
        """Whether a shard with that id ever existed."""
        return 0 <= id < self.next

    def reserve(self, count: int) -> int:
        """Reserve `count` consecutive ids; return the first."""
        first, self.next = self.next, self.next + count
        return first


@dataclass(slots=True)
class EpochCount:
    """One epoch in records. `unfinished` counts its shards that are neither done nor parked."""

    epoch: int
    expected: int
    unfinished: int
    trained: int = 0
    repeated: int = 0
    bad: int = 0
    parked: int = 0
    forgone: int = 0
    """Records that are no longer expected because training ends early."""

    @property
    def planned(self) -> int:
        """Records that the epoch was planned with."""
        return self.expected + self.forgone

    @property
    def left(self) -> int:
        """Records that are neither trained nor given up; when the job ends, they stay so."""
        return self.planned - self.trained - self.bad - self.lost

    @property
    def lost(self) -> int:
        """Expected records that were not trained; before the epoch ends, only the parked ones."""
        return self.parked if self.unfinished else self.expected - self.trained - self.bad
