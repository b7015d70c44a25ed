"""The data ledger: which records are to do, leased, done or parked.

It never drops a record silently. For each epoch: expected = trained + bad + given up (parked) + the
rest of every returned or held piece + fresh shards. At the end `EpochCount.lost` is computed from
this equation, not assumed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.data.counts import EpochCount, ShardIds
from elasticdl.master.core.data.pieces import Blame, HeldShard, Piece, Stage, reached
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.shard import Applied, Lease, ShardId, Task

MAX_FAILURES = 3


@final
class Ledger:
    """The records of one task.

    Evaluation does not keep the progress of a piece (`keeps_progress` False), because its metric
    states come with the end of a shard. Such a piece restarts at its beginning.
    """

    DERIVED = frozenset({"_order"})

    def __init__(self, plan: ShardPlan, ids: ShardIds, *, task: Task) -> None:
        self.plan = plan
        self.task = task
        self.keeps_progress = task is not Task.EVALUATION
        self.counts: list[EpochCount] = []
        self.returned: deque[Piece] = deque()
        # In the order of granting; settling relies on it.
        self.held: dict[ShardId, HeldShard] = {}
        self._of_worker: dict[ProcessName, dict[ShardId, HeldShard]] = {}
        self.parked: list[Piece] = []
        self.done_shards = 0
        self.booked = 0
        """Records that were settled in this ledger object, in all epochs."""
        self.stopped = False
        self.stopped_at: int | None = None
        """Position in the current epoch's order where the early stop came; None: no early stop."""
        self.forgone: set[int] = set()
        """Numbers of shards of the current epoch that were begun and whose rest is not expected."""
        self._ids = ids
        self._order: Sequence[int] = ()
        self._cursor = 0
        self._first_id = 0
        self.repeated_at_least = False
        """More records may have been repeated than counted.

        An earlier run was killed, or ended with more trained than its checkpoint has.
        """
        self.repeated_before: dict[int, int] = {}
        """Repeated records of epochs that this ledger has not begun (again).

        They were trained, and then lost with all processes that had the weights.
        """
        self.done_by: Counter[ProcessName] = Counter()
        """Settled records by worker.

        Their sum plus `resumed` is the number of trained records plus `undone`.
        """
        self.resumed = 0
        """Records that were trained before this master resumed the job."""
        self.undone = 0
        """Records that were trained under this master and then lost with the weights."""
        self.partly_pushed = 0
        """Records that a lost worker had pushed to some servers only: they are trained again."""
        self._first_attempt = 0
        self._newest_attempt = 0

    # what there is

    @property
    def fresh(self) -> int:
        """Shards of the current epoch that were never leased."""
        return len(self._order) - self._cursor

    @property
    def cursor(self) -> int:
        """Position of the next fresh shard in the order of the current epoch."""
        return self._cursor

    @property
    def first_id(self) -> int:
        """Id of shard number 0 of the current epoch."""
        return self._first_id

    @property
    def order(self) -> Sequence[int]:
        """Shard numbers of the current epoch in leasing order; not to be changed."""
        return self._order

    @property
    def epochs_left(self) -> int:
        """Epochs that are still to open."""
        return 0 if self.stopped else max(0, self.plan.epochs - len(self.counts))

    @property
    def available(self) -> int:
        """Shards that can be leased now, without those of unopened epochs."""
        return len(self.returned) + self.fresh

    @property
    def holders(self) -> int:
        """Workers that hold a shard."""
        return len(self._of_worker)

    @property
    def remaining(self) -> int:
        """Records of all epochs that are neither done nor given up."""
        total = self.totals()
        left_out = total.trained + total.bad + total.parked
        return total.expected + self.epochs_left * self.plan.records - left_out

    @property
    def finished(self) -> bool:
        """Whether nothing is left to lease and nothing is held."""
        return not self.held and not self.available and not (self.epochs_left and self.plan.shards)

    @property
    def epoch(self) -> int:
        """The newest epoch that was opened, counting from 0."""
        return max(0, len(self.counts) - 1)

    def totals(self) -> EpochCount:
        """The sum over opened epochs; `epoch` is their number."""
        total = EpochCount(len(self.counts), 0, 0)
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
        """Planned epochs that were not opened, including those that an early stop left out."""
        return max(0, self.plan.epochs - len(self.counts))

    def held_by(self, worker: ProcessName) -> list[HeldShard]:
        """What a worker holds, in the order of granting."""
        return list(self._of_worker.get(worker, {}).values())

    def without_lease(self, workers: Mapping[ProcessName, object]) -> set[ProcessName]:
        """Which of these hold nothing, and who is to give back what it holds."""
        # A set copies the hashes of a dictionary's keys. To compute them calls Python code.
        free = set(workers).difference(self._of_worker)
        free.update(held.worker for held in self.held.values() if held.stage is Stage.CLOSING)
        return free

    def find(self, worker: ProcessName, shard: ShardId, attempt: int) -> HeldShard | None:
        """The holding that a report refers to; None if that worker does not hold it now."""
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
        """Why `find` returns nothing: the lease is over, or the worker never had it.

        The attempts of a shard that nobody holds are not recorded: every id ever given counts as
        leased once.
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
        """Give a worker the next piece: returned ones first, then fresh ones, then a new epoch."""
        # Returned pieces come first: otherwise an epoch could stay open behind all later ones.
        piece = self.returned.popleft() if self.returned else self._next_fresh()
        if piece is None:
            return None
        self._newest_attempt = max(self._newest_attempt, piece.attempt)
        held = HeldShard(piece, worker, now_s, piece.offset)
        self.held[piece.shard.id] = held
        self._of_worker.setdefault(worker, {})[piece.shard.id] = held
        return held

    def lease(self, held: HeldShard) -> Lease:
        """The holding as the lease that the worker gets."""
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
            EpochCount(len(self.counts), self.plan.records, self.plan.shards, repeated=repeated)
        )
        self._order = self.plan.order(self.epoch)
        self._cursor = 0
        self._first_id = self._ids.reserve(self.plan.shards)

    def replaces(self, lost: Ledger, holder: ProcessName) -> int:
        """Replace a ledger whose weights were lost by this earlier one.

        Returns the number of trained records that are lost.
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
        self.partly_pushed = lost.partly_pushed
        # Higher attempts keep late reports about the lost ledger's leases from matching leases
        # here.
        self._first_attempt = self._newest_attempt = lost._newest_attempt + 1
        for piece in self.returned:
            piece.attempt = max(piece.attempt, self._first_attempt)
        # The checkpoint may contain more than was reported; credit `holder` with the difference.
        self.done_by[holder] += self.totals().trained - (lost.totals().trained - vain)
        return vain

    def reopen(self, counts: Iterable[EpochCount], cursor: int, first_id: int) -> None:
        """Continue at the position of an earlier job, before anything is taken."""
        self.counts = list(counts)
        self.resumed = sum(count.trained for count in self.counts)
        self.derive()
        self._cursor, self._first_id = cursor, first_id

    def derive(self) -> None:
        """Compute the order of the current epoch, which an image of the state leaves out."""
        self._order = self.plan.order(self.epoch) if self.counts else ()

    # back

    def advance(self, held: HeldShard, offset: int, bad: int) -> int:
        """Book the first `offset` records of a holding as done; return how many are new.

        `bad` of this attempt's records could not be read; repeated reports count once.
        """
        gained = max(0, min(offset, held.piece.shard.records) - held.offset)
        # Each bad record is one of the new records.
        new_bad = max(0, min(bad - held.bad, gained))
        held.offset += gained
        held.bad_ahead = {
            begin: count for begin, count in held.bad_ahead.items() if begin >= held.offset
        }
        held.bad += new_bad
        if self.keeps_progress:
            self._settle_records(held, gained, new_bad)
        return gained

    @staticmethod
    def foretell(held: HeldShard, begin: int, bad: int) -> None:
        """Note that the batch from `begin` brings the bad records of this attempt to `bad`.

        A cut, or the servers' answers about a lost worker, may include it before it is reported.
        """
        # A new reporter of a ring may know less of the lease than is booked.
        held.bad_ahead[max(begin, held.offset)] = bad

    def finish(self, held: HeldShard) -> bool:
        """Finish a holding whose worker says that it is done.

        False if records are missing; the caller must then take the holding back.
        """
        if held.offset < held.piece.shard.records:
            return False
        # Evaluation books nothing before the end of a shard: its metric states come only then.
        if not self.keeps_progress:
            self._settle_records(held, held.piece.rest, held.bad)
        self._release(held)
        self._end_piece(held.piece)
        self.done_shards += 1
        return True

    def give_back(self, held: HeldShard) -> None:
        """Take a holding back; its rest waits for the next attempt.

        Later reports of this attempt are void.
        """
        piece = held.piece
        self._release(held)
        # Late reports and pushes of the old holder carry the old attempt and no longer match.
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
        # After an early stop nobody repeats the rest, so there is nothing to park.
        if len(piece.failures) < MAX_FAILURES or self.stopped or not piece.rest:
            self.give_back(held)
            return False
        self._release(held)
        self._park(piece)
        return True

    def _park(self, piece: Piece) -> None:
        self.counts[piece.epoch].parked += piece.rest
        self._end_piece(piece)
        self.parked.append(piece)

    def blame(self, blame: Blame) -> Piece | None:
        """Count a failure of a piece that its holder has lost by now.

        Returns the piece if that parked it. A piece that is held again continues: its next failure
        parks it.
        """
        held = self.held.get(blame.shard) if blame.shard is not None else None
        if held is not None:
            held.piece.failures.append(blame.reason)
            return None
        piece = next((piece for piece in self.returned if piece.shard.id == blame.shard), None)
        if piece is None:
            return None
        piece.failures.append(blame.reason)
        if len(piece.failures) < MAX_FAILURES:
            return None
        self.returned.remove(piece)
        self._park(piece)
        return piece

    def settle(
        self,
        worker: ProcessName,
        answers: Sequence[Applied | None],
        blame: Blame | None = None,
        batch: int = 0,
    ) -> Piece | None:
        """Take back all that a lost worker holds, counting what each server has of it.

        A batch is trained when every server has it. A batch that only some have is trained again
        and counts as repeated. `blame` counts as a failure of the piece that it names, or of the
        first unfinished one. Returns that piece if the failure parked it. For `batch` see
        `reached`.
        """
        mine = self.held_by(worker)
        # low: every server has it, so it is trained. low to high: some servers have it; training it
        # again applies it twice there.
        for held, (low, high) in zip(mine, reached(mine, answers, batch), strict=True):
            bad_high = held.bad_until(high)
            self.advance(held, low, held.bad_until(low))
            # Bad records were not trained, so they are not repeated either. A push that begins
            # with a batch of bad records alone has some of its bad records before `low`.
            partly = high - low - (bad_high - held.bad)
            self.counts[held.piece.epoch].repeated += partly
            self.partly_pushed += partly
        unfinished = [held for held in mine if held.offset < held.piece.shard.records]
        blamed = next(
            (held for held in unfinished if blame and blame.shard in (None, held.piece.shard.id)),
            None,
        )
        parked = None
        # Returned pieces go to the front of the queue: going backwards keeps their order.
        for held in reversed(mine):
            if held is not blamed or blame is None:
                self.give_back(held)
            elif self.fail(held, blame.reason):
                parked = held.piece
        return parked

    def stop(self) -> None:
        """End training early: no longer expect unbegun shards and the rest of returned ones."""
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
        # Keep no empty dictionaries: workers come and go for weeks.
        mine = self._of_worker[held.worker]
        del mine[held.piece.shard.id]
        if not mine:
            del self._of_worker[held.worker]

    def _end_piece(self, piece: Piece) -> None:
        count = self.counts[piece.epoch]
        # Each piece ends exactly once; a second end would close the epoch too early.
        count.unfinished -= 1
        if count.unfinished < 0:
            raise ImpossibleTransition(f"{piece} ended twice in {count}")
