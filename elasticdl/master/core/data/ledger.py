"""The data ledger: which records are to be done, who is at them, which are done.

It never drops a record unsaid.

For each epoch: expected = trained + bad + given up (parked) + the rest of every piece that waits or
is held + fresh
shards. `Count.lost` is computed from that at the end, not assumed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.data.sharding import Plan
from elasticdl.shard import Applied, Lease, Shard, ShardId, Task

MAX_FAILURES = 3


@dataclass(slots=True)
class Ids:
    """Gives out shard ids that are used once in a job, whatever the epoch, task or round."""

    next: int = 0

    def given(self, id: ShardId) -> bool:
        """Whether there ever was such a shard."""
        return 0 <= id < self.next

    def reserve(self, count: int) -> int:
        """The first of `count` ids in a row."""
        first, self.next = self.next, self.next + count
        return first


@dataclass(slots=True)
class Count:
    """One epoch in records. `unfinished` counts its shards that are neither done nor parked."""

    epoch: int
    expected: int
    unfinished: int
    trained: int = 0
    repeated: int = 0
    bad: int = 0
    parked: int = 0
    forgone: int = 0
    """Records that are not expected any more, since training ends early."""

    @property
    def planned(self) -> int:
        """Records of the epoch, whatever becomes of them."""
        return self.expected + self.forgone

    @property
    def left(self) -> int:
        """Records that nobody has trained and that were not given up: to come, or never to come
        once the job has ended.
        """
        return self.planned - self.trained - self.bad - self.lost

    @property
    def lost(self) -> int:
        """Records that were expected and not trained, once the epoch has ended; before, those given
        up so far.
        """
        return self.parked if self.unfinished else self.expected - self.trained - self.bad


@dataclass(slots=True)
class Piece:
    """A shard on its way through one epoch.

    Its first `offset` records are settled. `number` is its place in the plan.
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
    """Why a worker is gone, where its work may have been the reason.

    `shard`: that one; None: whatever it was at.
    """

    reason: str
    shard: ShardId | None = None


class Stage(StrEnum):
    """How a piece is held."""

    LEASED = "leased"
    SETTLING = "settling"
    """Its worker is gone; what it had really done is being asked for. Its reports count no more."""
    CLOSING = "closing"
    """Revoked from a worker that goes on; reports of steps already made still count for a
    moment.
    """


@dataclass(slots=True)
class HeldShard:
    """A piece in the hands of one worker.

    `offset` is what it reported, `bad` the bad records of this attempt up to there. `bad_ahead`:
    those of the batch after `offset`. A worker reports them before any server has that batch.
    """

    piece: Piece
    worker: ProcessName
    since_s: float
    offset: int
    bad: int = 0
    bad_ahead: int = 0
    stage: Stage = Stage.LEASED

    def bad_until(self, offset: int) -> int:
        """Bad records of this attempt if servers have it up to there, which is `offset` or more."""
        return self.bad + (self.bad_ahead if offset > self.offset else 0)


@final
class Ledger:
    """One task's records.

    Where a piece's progress cannot be kept (`keeps_progress` False: evaluation, whose metric
    states come with the end of a shard) it starts again from its beginning.
    """

    def __init__(self, plan: Plan, ids: Ids, *, task: Task) -> None:
        self.plan = plan
        self.task = task
        self.keeps_progress = task is not Task.EVALUATION
        self.counts: list[Count] = []
        self.returned: deque[Piece] = deque()
        # In the order of granting: settling relies on it.
        self.held: dict[ShardId, HeldShard] = {}
        self._of_worker: dict[ProcessName, dict[ShardId, HeldShard]] = {}
        self.parked: list[Piece] = []
        self.done_shards = 0
        self.booked = 0
        """Records that were settled since this ledger was made, whatever the epoch."""
        self.stopped = False
        self.stopped_at: int | None = None
        """Place in the order of the current epoch from which on nothing is expected any more; None:
        it goes on.
        """
        self.forgone: set[int] = set()
        """Numbers of shards of the current epoch that were begun, and whose rest is not expected
        any more.
        """
        self._ids = ids
        self._order: list[int] = []
        self._cursor = 0
        self._first_id = 0
        self.repeated_at_least = False
        """A run before was killed, or ended with more than its checkpoint has: what is repeated may
        be more than was counted.
        """
        self.repeated_before: dict[int, int] = {}
        """Records by epoch that were trained, and then lost with all that had the weights, before
        that epoch began (again).
        """
        self.done_by: Counter[ProcessName] = Counter()
        """Settled records by who did them: with those `resumed` they are all that are trained, and
        those `undone`.
        """
        self.resumed = 0
        """Records that had been trained before this master took the job on."""
        self.undone = 0
        """Records that were trained under this master, and then lost with all that had the
        weights.
        """
        self._first_attempt = 0
        self._newest_attempt = 0

    # what there is

    @property
    def fresh(self) -> int:
        """Shards of the current epoch that nobody had yet."""
        return len(self._order) - self._cursor

    @property
    def cursor(self) -> int:
        """Place in the order of the current epoch of its next fresh shard."""
        return self._cursor

    @property
    def first_id(self) -> int:
        """Id of shard number 0 of the current epoch."""
        return self._first_id

    @property
    def order(self) -> Sequence[int]:
        """Numbers of the shards of the current epoch in the order in which they are leased; not to
        be changed.
        """
        return self._order

    @property
    def epochs_left(self) -> int:
        """Epochs that were not opened yet."""
        return 0 if self.stopped else max(0, self.plan.epochs - len(self.counts))

    @property
    def available(self) -> int:
        """Shards to be had now, those of epochs not opened yet not counted."""
        return len(self.returned) + self.fresh

    @property
    def finished(self) -> bool:
        """Nothing is to be had and nobody holds anything."""
        return not self.held and not self.available and not (self.epochs_left and self.plan.shards)

    @property
    def epoch(self) -> int:
        """The newest epoch that was opened, counting from 0."""
        return max(0, len(self.counts) - 1)

    def totals(self) -> Count:
        """The sum over opened epochs; `epoch` is their number."""
        total = Count(len(self.counts), 0, 0)
        for count in self.counts:
            total.expected += count.expected
            total.unfinished += count.unfinished
            total.trained += count.trained
            total.repeated += count.repeated
            total.bad += count.bad
            total.parked += count.parked
            total.forgone += count.forgone
        return total

    @property
    def epochs_not_begun(self) -> int:
        """Epochs that were planned and not opened: to come, or never to come since training ends
        early.
        """
        return max(0, self.plan.epochs - len(self.counts))

    def held_by(self, worker: ProcessName) -> list[HeldShard]:
        """What a worker holds, in the order of granting."""
        return list(self._of_worker.get(worker, {}).values())

    def find(self, worker: ProcessName, shard: ShardId, attempt: int) -> HeldShard | None:
        """The holding that a report speaks of; None if it is not that worker's, or not any more."""
        held = self.held.get(shard)
        if (
            held is None
            or held.worker != worker
            or held.piece.attempt != attempt
            or held.stage is Stage.SETTLING
        ):
            return None
        return held

    def why_not_found(self, worker: ProcessName, shard: ShardId, attempt: int) -> DropCause:
        """Why `find` has nothing: the lease is over, or that worker never had it.

        Of shards that nobody holds it is not known which attempts there were: all that were ever
        cut count as leased once.
        """
        held = self.held.get(shard)
        if held is None:
            return DropCause.VOIDED_LEASE if self._ids.given(shard) else DropCause.UNKNOWN_LEASE
        had = attempt < held.piece.attempt or (
            attempt == held.piece.attempt and worker == held.worker
        )
        return DropCause.VOIDED_LEASE if had else DropCause.UNKNOWN_LEASE

    # out

    def take(self, worker: ProcessName, now_s: float) -> HeldShard | None:
        """Give the next piece to a worker: what came back first, then fresh shards, then those of
        the next epoch.
        """
        piece = self.returned.popleft() if self.returned else self._next_fresh()
        if piece is None:
            return None
        self._newest_attempt = max(self._newest_attempt, piece.attempt)
        held = HeldShard(piece, worker, now_s, piece.offset)
        self.held[piece.shard.id] = held
        self._of_worker.setdefault(worker, {})[piece.shard.id] = held
        return held

    def lease(self, held: HeldShard) -> Lease:
        """The holding as the worker gets it."""
        piece = held.piece
        seed = self.plan.order_seed(piece.epoch, piece.number)
        return Lease(self.task, piece.shard, piece.attempt, piece.offset, piece.epoch, seed)

    def _next_fresh(self) -> Piece | None:
        if not self.fresh and self.epochs_left and self.plan.shards:
            self._open_epoch()
        if not self.fresh:
            return None
        number = self._order[self._cursor]
        self._cursor += 1
        return Piece(
            number,
            self.plan.shard(number, ShardId(self._first_id + number)),
            self.epoch,
            attempt=self._first_attempt,
        )

    def _open_epoch(self) -> None:
        repeated = self.repeated_before.pop(len(self.counts), 0)
        self.counts.append(
            Count(len(self.counts), self.plan.records, self.plan.shards, repeated=repeated)
        )
        self._order = self.plan.order(self.epoch)
        self._cursor = 0
        self._first_id = self._ids.reserve(self.plan.shards)

    def replaces(self, lost: Ledger, holder: ProcessName) -> int:
        """This ledger, of an earlier time, takes the place of one whose weights were lost; returns
        the records trained in vain.
        """
        vain = 0
        self.repeated_at_least = self.repeated_at_least or lost.repeated_at_least
        self.repeated_before.update(
            (epoch, count)
            for epoch, count in lost.repeated_before.items()
            if epoch >= len(self.counts)
        )
        for epoch, count in enumerate(lost.counts):
            mine = self.counts[epoch] if epoch < len(self.counts) else None
            again = max(0, count.trained - mine.trained) if mine else count.trained
            vain += again
            if mine is not None:
                mine.repeated = count.repeated + again
            else:
                self.repeated_before[epoch] = count.repeated + again
        self.done_by, self.resumed, self.undone = lost.done_by, lost.resumed, lost.undone + vain
        # What is told late of a lease of the lost one must not be taken for one of the same shard
        # here.
        self._first_attempt = self._newest_attempt = lost._newest_attempt + 1
        for piece in self.returned:
            piece.attempt = max(piece.attempt, self._first_attempt)
        # A checkpoint may be ahead of what was told: that was done by whoever held it.
        self.done_by[holder] += self.totals().trained - (lost.totals().trained - vain)
        return vain

    def reopen(self, counts: Iterable[Count], cursor: int, first_id: int) -> None:
        """Go on where an earlier job stood. Only before anything was taken."""
        self.counts = list(counts)
        self.resumed = sum(count.trained for count in self.counts)
        self._order = self.plan.order(self.epoch) if self.counts else []
        self._cursor, self._first_id = cursor, first_id

    # back

    def advance(self, held: HeldShard, offset: int, bad: int) -> int:
        """Count what a worker says is done, the first `offset` records; returns how many of them
        are new.

        `bad`: of those of this attempt, as many could not be read; told again, they count once.
        More than before with no new record: they are in the batch to come.
        """
        gained = max(0, min(offset, held.piece.shard.records) - held.offset)
        new_bad = max(0, min(bad - held.bad, gained))
        held.bad_ahead = 0 if gained else max(0, bad - held.bad)
        held.offset += gained
        held.bad += new_bad
        if self.keeps_progress:
            self._settle_records(held, gained, new_bad)
        return gained

    def finish(self, held: HeldShard) -> bool:
        """The worker says that it is through.

        False, and the rest waits for another attempt, if it is not.
        """
        if held.offset < held.piece.shard.records:
            return False
        if not self.keeps_progress:
            self._settle_records(held, held.piece.rest, held.bad)
        self._release(held)
        self._end_piece(held.piece)
        self.done_shards += 1
        return True

    def give_back(self, held: HeldShard) -> None:
        """The rest of the piece waits for its next attempt; whatever else is said of this one is
        void.
        """
        piece = held.piece
        self._release(held)
        piece.attempt += 1
        if piece.rest == 0:
            self._end_piece(piece)
            self.done_shards += 1
        elif self.stopped:
            self._forgo_rest(piece)
        else:
            self.returned.appendleft(piece)

    def fail(self, held: HeldShard, reason: str) -> bool:
        """Count a failure against the piece and take it back; True if that parked it."""
        piece = held.piece
        piece.failures.append(reason)
        if len(piece.failures) < MAX_FAILURES or self.stopped or not piece.rest:
            self.give_back(held)
            return False
        self._release(held)
        self.counts[piece.epoch].parked += piece.rest
        self._end_piece(piece)
        self.parked.append(piece)
        return True

    def settle(
        self,
        worker: ProcessName,
        told: Sequence[Applied | None],
        blame: Blame | None = None,
        batch: int = 0,
    ) -> Piece | None:
        """Take back all that a lost worker holds, counting what each server says it has of it; of
        `batch` see `reached`.

        A batch is trained when every server has it. What only some have is trained again: repeated.
        `blame` is counted
        as a failure of the piece that it names, or that the worker was at. Returns that piece if
        this parked it.
        """
        mine = self.held_by(worker)
        for held, (low, high) in zip(mine, reached(mine, told, batch), strict=True):
            bad, bad_high = held.bad_until(low), held.bad_until(high)
            self.advance(held, low, bad)
            self.counts[held.piece.epoch].repeated += high - low - (bad_high - bad)
        unfinished = [held for held in mine if held.offset < held.piece.shard.records]
        blamed = next(
            (held for held in unfinished if blame and blame.shard in (None, held.piece.shard.id)),
            None,
        )
        parked = None
        # The last in order goes back first, so that the first stands first in line again.
        for held in reversed(mine):
            if held is not blamed or blame is None:
                self.give_back(held)
            elif self.fail(held, blame.reason):
                parked = held.piece
        return parked

    def stop(self) -> None:
        """Training ends early: what nobody has begun is not expected any more, nor what is given
        back from now on.
        """
        if self.stopped:
            return
        self.stopped = True
        self.stopped_at = self._cursor
        for piece in self.returned:
            self._forgo_rest(piece)
        self.returned.clear()
        while (piece_ := self._next_fresh()) is not None:
            self._forgo(piece_)

    def _forgo_rest(self, piece: Piece) -> None:
        if piece.epoch == self.epoch:
            self.forgone.add(piece.number)
        self._forgo(piece)

    def _forgo(self, piece: Piece) -> None:
        self.counts[piece.epoch].expected -= piece.rest
        self.counts[piece.epoch].forgone += piece.rest
        self._end_piece(piece)

    def _settle_records(self, held: HeldShard, done: int, bad: int) -> None:
        held.piece.offset += done
        self.booked += done
        count = self.counts[held.piece.epoch]
        count.trained += done - bad
        count.bad += bad
        self.done_by[held.worker] += done - bad

    def _release(self, held: HeldShard) -> None:
        if self.held.pop(held.piece.shard.id, None) is not held:
            raise ImpossibleTransition(f"{held} is released but not held")
        mine = self._of_worker[held.worker]
        del mine[held.piece.shard.id]
        if not mine:
            del self._of_worker[held.worker]

    def _end_piece(self, piece: Piece) -> None:
        count = self.counts[piece.epoch]
        count.unfinished -= 1
        if count.unfinished < 0:
            raise ImpossibleTransition(f"{piece} ended twice in {count}")


def reached(
    mine: Sequence[HeldShard], told: Sequence[Applied | None], batch: int = 0
) -> list[tuple[int, int]]:
    """For each holding of one worker, in the order of granting: offset that every server has,
    offset that any has.

    A server that has a push of a later lease has all of the earlier ones, since a worker works in
    order. What the
    worker itself reported was acknowledged by every server, also by one that since came back
    without that memory.

    So was all but the last push that any server has: a worker pushes one batch, of at most `batch`
    records, at a time. A server that
    knows less was away (None) or has come back without that memory: what it forgot counts as its
    lost updates, not as batches.
    """
    columns = [_reached_on(mine, server) for server in told] or [[held.offset for held in mine]]
    ends = [(min(row), max(row)) for row in zip(*columns, strict=True)]
    return [
        (max(low, sure), high)
        for (low, high), sure in zip(
            ends, _acknowledged(mine, [high for _, high in ends], batch), strict=True
        )
    ]


def _acknowledged(mine: Sequence[HeldShard], highest: Sequence[int], batch: int) -> list[int]:
    """Where each holding was before the last push that any server has: everything up to there was
    once on all of them.
    """
    last = max((i for i, held in enumerate(mine) if highest[i] > held.offset), default=None)
    if last is None or not batch:
        return [held.offset for held in mine]
    begin = mine[last].offset
    before_last = begin + (highest[last] - begin - 1) // batch * batch
    return [*highest[:last], before_last, *(held.offset for held in mine[last + 1 :])]


def _reached_on(mine: Sequence[HeldShard], told: Applied | None) -> list[int]:
    at = next((i for i, held in enumerate(mine) if told and _same(held.piece, told)), None)
    if told is None or at is None:
        return [held.offset for held in mine]
    before = [held.piece.shard.records for held in mine[:at]]
    here = max(mine[at].offset, min(told.offset, mine[at].piece.shard.records))
    return [*before, here, *(held.offset for held in mine[at + 1 :])]


def _same(piece: Piece, applied: Applied) -> bool:
    return piece.shard.id == applied.shard and piece.attempt == applied.attempt
