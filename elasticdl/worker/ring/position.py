"""How far a member of the ring is: what its weights contain, and where it continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticdl.rpc.conversation import RingGeneration

AT_BEGIN = -1

ENDED_KEPT = 16
"""Ended shards to remember: rank 0 reports ends at once, so only a few are unreported if it dies.
"""


class EndedShard(NamedTuple):
    """A shard that the weights contain to its end, and how many of its records were unreadable."""

    shard: int
    attempt: int
    records: int
    bad: int


_EACH = len(EndedShard._fields)


@dataclass(frozen=True, slots=True)
class Position:
    """What this member's weights contain, and where it continues: at `offset` of item `number`.

    AT_BEGIN is the beginning of the item. The last trained window ended at `done` of `shard`, which
    has `records`, in `attempt`; `shard` is -1 before the first. In this attempt so far, `bad`
    records were unreadable. `ended` has the last shards before it with unreadable records. A new
    rank 0 reports them, since the previous one may have died before it did.
    """

    version: int = 0
    number: int = 1
    offset: int = AT_BEGIN
    shard: int = -1
    attempt: int = 0
    done: int = 0
    records: int = 0
    bad: int = 0
    ended: tuple[EndedShard, ...] = ()

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Position:
        """The position that travelled as these numbers."""
        version, number, offset, shard, attempt, done, records, bad, *rest = map(int, numbers)
        ended = (EndedShard(*rest[at : at + _EACH]) for at in range(0, len(rest), _EACH))
        return cls(
            *(version, number, offset, shard, attempt, done, records, bad),
            tuple(ended_shard for ended_shard in ended if ended_shard.shard >= 0),
        )

    def numbers(self) -> tuple[int, ...]:
        """The fields as they travel, equally many for all; more progress compares greater."""
        ended = [number for ended_shard in self.ended for number in ended_shard]
        return (
            self.version,
            self.number,
            self.offset,
            self.shard,
            self.attempt,
            self.done,
            self.records,
            self.bad,
            *ended,
            *[-1] * (ENDED_KEPT * _EACH - len(ended)),
        )

    @property
    def place(self) -> tuple[int, int, int]:
        """Version, item and offset."""
        return self.version, self.number, self.offset

    @property
    def last_window(self) -> tuple[int, int, int]:
        """Shard, attempt and end of the last trained window.

        Steps without a readable record leave `version` as it is, so that does not identify a step.
        """
        return self.shard, self.attempt, self.done

    @property
    def ended_by_now(self) -> tuple[EndedShard, ...]:
        """`ended`, and the position's own shard if that belongs there."""
        if not self.bad or self.done < self.records:
            return self.ended
        own = EndedShard(self.shard, self.attempt, self.records, self.bad)
        return (*self.ended, own)[-ENDED_KEPT:]

    def from_first(self, generation: RingGeneration) -> Position:
        """Skip items before the generation's first: they are void."""
        if self.number >= generation.first_item:
            return self
        return replace(self, number=generation.first_item, offset=AT_BEGIN)
