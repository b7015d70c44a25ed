"""A shard on its way through one epoch: who holds it, and how far the servers have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.cluster.base import ProcessName
from elasticdl.shard import Applied, Shard, ShardId


@dataclass(slots=True)
class Piece:
    """A shard on its way through one epoch.

    Its first `offset` records are settled. `number` is its number in the plan.
    """

    number: int
    shard: Shard
    epoch: int
    offset: int = 0
    attempt: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def rest(self) -> int:
        return self.shard.records - self.offset


@dataclass(frozen=True, slots=True)
class Blame:
    """Why a worker is gone, if its work may be the reason.

    `shard`: the shard to blame; None: whichever it was working on.
    """

    reason: str
    shard: ShardId | None = None


class Stage(StrEnum):
    """How a piece is held."""

    LEASED = "leased"
    SETTLING = "settling"
    """The worker is gone; the servers are asked what it did. Its reports no longer count."""
    CLOSING = "closing"
    """Revoked from a live worker; reports of steps already made still count for a moment."""


@dataclass(slots=True)
class HeldShard:
    """A piece that one worker holds.

    `offset` is what it reported, `bad` the bad records of this attempt up to there. `bad_ahead`
    has, by the begin of each later batch with bad records, their number with that batch: a worker
    reports them before any server has the batch.
    """

    piece: Piece
    worker: ProcessName
    since_s: float
    offset: int
    bad: int = 0
    bad_ahead: dict[int, int] = field(default_factory=dict)
    stage: Stage = Stage.LEASED

    def bad_until(self, offset: int) -> int:
        """Bad records of this attempt up to `offset`, which must not be below the reported one."""
        ahead = (bad for begin, bad in self.bad_ahead.items() if begin < offset)
        return max((self.bad, *ahead))


def reached(
    mine: Sequence[HeldShard], answers: Sequence[Applied | None], batch: int = 0
) -> list[tuple[int, int]]:
    """For each holding of one worker: the offset that every server has, and the highest of any.

    `mine` and the result are in the order of granting. A worker works in order, so a server that
    has a push of a later lease has all earlier ones. Every server acknowledged what the worker
    itself reported, even a server that has since restarted without it.

    A worker pushes one batch of at most `batch` records at a time. So every server also
    acknowledged all but the last push that any server has. A server that knows less was away (None)
    or restarted: what it forgot counts as its lost updates, not as batches.
    """
    columns = [_reached_on(mine, answer) for answer in answers] or [[held.offset for held in mine]]
    ends = [(min(row), max(row)) for row in zip(*columns, strict=True)]
    return [
        (max(low, sure), high)
        for (low, high), sure in zip(
            ends, _acknowledged(mine, [high for _, high in ends], batch), strict=True
        )
    ]


def _acknowledged(mine: Sequence[HeldShard], highest: Sequence[int], batch: int) -> list[int]:
    """The offset of each holding before the last push that any server has.

    Every server acknowledged everything up to there.
    """
    last = max((i for i, held in enumerate(mine) if highest[i] > held.offset), default=None)
    if last is None or not batch:
        return [held.offset for held in mine]
    begin = mine[last].offset
    # The last push may be a short batch: take the batch boundary below its end.
    before_last = begin + (highest[last] - begin - 1) // batch * batch
    return [*highest[:last], before_last, *(held.offset for held in mine[last + 1 :])]


def _reached_on(mine: Sequence[HeldShard], answer: Applied | None) -> list[int]:
    at = next((i for i, held in enumerate(mine) if answer and _same(held.piece, answer)), None)
    if answer is None or at is None:
        return [held.offset for held in mine]
    before = [held.piece.shard.records for held in mine[:at]]
    here = max(mine[at].offset, min(answer.offset, mine[at].piece.shard.records))
    return [*before, here, *(held.offset for held in mine[at + 1 :])]


def _same(piece: Piece, applied: Applied) -> bool:
    return piece.shard.id == applied.shard and piece.attempt == applied.attempt
