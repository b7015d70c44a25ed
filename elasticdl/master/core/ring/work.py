"""The ring's work: one numbered sequence of items for all members, with one position.

The ring as a whole holds leases of the ledger. An item ends where an evaluation or a checkpoint is
due, so these happen at exactly the requested version. At a *pause* the members stand still: all
weights are equal, and only leases for single workers are granted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import DropCause
from elasticdl.formatting import amount
from elasticdl.job_choices import GlobalBatch, RateScaling
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard
from elasticdl.master.core.data.rollback import restore_ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import ProgressReported
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.shard import Barrier, ShardId, SnapshotId, WorkItem

RING = ProcessName(Role.MASTER, 0)
"""The holder of the ring's leases, which no worker holds."""

_KEPT = 8


@dataclass(slots=True)
class Item:
    """An item of the sequence: records [begin, end) of a held shard, or a mark."""

    number: int
    mark: Barrier = Barrier.NONE
    held: HeldShard | None = None
    begin: int = 0
    end: int = 0
    batch: int = 0
    rate_scale: float = 1.0
    snapshot: SnapshotId | None = None

    @property
    def steps_left(self) -> int:
        """Steps that are not booked yet."""
        begin = max(self.begin, self.held.offset) if self.held else 0
        return -(-max(0, self.end - begin) // self.batch) if self.held else 0


@final
class RingWork:
    """Grants items and books the ring's progress.

    Items below `first_item` are void. `halting`: why the ring must stop where it is, until it has
    stopped.
    """

    def __init__(
        self,
        context: JobContext,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        snapshots: Snapshots,
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._snapshots = snapshots
        self._items: deque[Item] = deque()
        self._open: list[HeldShard] = []
        """Holdings of the ring, in the order of taking."""
        self.next_number = 1
        self.first_item = 1
        self.halting = ""
        self._halt_published = False
        self.members = 1
        self.names: tuple[ProcessName, ...] = ()
        """Members of the newest generation that was complete."""
        self._begun_with, self._begun_version = "", 0

    def begin(self, ledger: str, version: int) -> None:
        """Begin with this ledger (JSON; '' for a new one) and version."""
        self._begun_with, self._begun_version = ledger, version

    # out

    def item(self, number: int) -> WorkItem | None:
        """The item of that number; made now if it is the next one and the ring has work."""
        item = next((item for item in self._items if item.number == number), None)
        if item is None and number == self.next_number and not self.halting:
            item = self._append()
        return self._as_work_item(item) if item else None

    def present(self, number: int) -> WorkItem | None:
        """The item that the ring trains on now (0), or the unfinished item of that number.

        A worker that is about to join may read its records early.
        """
        left = (
            ()
            if self.halting
            else (item for item in self._items if item.steps_left and number in (0, item.number))
        )
        item = next(iter(left), None)
        return self._as_work_item(item) if item else None

    @property
    def standing(self) -> bool:
        """Whether the ring is at a pause and all of its earlier work is booked."""
        last = self._items[-1] if self._items else None
        return (
            last is not None
            and last.mark is Barrier.PAUSE
            and not any(item.steps_left for item in self._items)
        )

    @property
    def idle(self) -> bool:
        """Whether the ring holds no lease and is not stopping."""
        return not self._open and not self.halting

    @property
    def items(self) -> tuple[Item, ...]:
        """Unfinished items and a few finished ones, in order."""
        return tuple(self._items)

    @property
    def planned_version(self) -> int:
        """The version at which the newest item ends."""
        return self._context.version + sum(item.steps_left for item in self._items)

    def offsets_at(self, snapshot: SnapshotId) -> dict[ShardId, int]:
        """The position in each shard that the ring holds at a checkpoint mark."""
        offsets: dict[ShardId, int] = {}
        for item in self._items:
            if item.snapshot == snapshot:
                break
            if item.held is not None:
                offsets[item.held.piece.shard.id] = item.end
        return offsets

    def _append(self) -> Item | None:
        context, paused = self._context, bool(self._items) and self._items[-1].mark is Barrier.PAUSE
        # Checkpoints come before training items: the boundary that made it due ends the last item.
        if self._checkpoint_due():
            return self._add(
                Item(
                    self.next_number,
                    Barrier.CHECKPOINT,
                    snapshot=self._checkpointing.mark(self.planned_version),
                )
            )
        if context.phase is Phase.WORKING and not self._pause_due():
            item = self._training_item()
            if item is not None:
                return self._add(item)
        return None if paused else self._add(Item(self.next_number, Barrier.PAUSE))

    def _add(self, item: Item) -> Item:
        self._items.append(item)
        self.next_number += 1
        self._forget()
        return item

    def _forget(self) -> None:
        """Drop old finished items; a few stay for members that ask again."""
        while len(self._items) > _KEPT and not self._items[0].steps_left:
            self._items.popleft()

    def _checkpoint_due(self) -> bool:
        steps, planned = self._context.spec.checkpoint.checkpoint_steps, self.planned_version
        by_steps = (
            bool(steps)
            and self._context.phase is Phase.WORKING
            and planned // steps > self._checkpointing.intervals.anchor // steps
        )
        due = by_steps or bool(self._checkpointing.wanted) or self._checkpointing.due_by_time
        return due and self._checkpointing.possible()

    def _pause_due(self) -> bool:
        return self._evaluation.round is not None or self._evaluation.due_at(self.planned_version)

    def _training_item(self) -> Item | None:
        work = self._context.work
        assert work is not None
        held = self._open[-1] if self._open else None
        begin = (
            max([held.offset, *(item.end for item in self._items if item.held is held)])
            if held
            else 0
        )
        if held is None or begin >= held.piece.shard.records:
            # The ring takes a shard only when the last one is fully planned, so it holds few at a
            # time.
            held = work.take(RING, self._context.now_s)
            if held is None:
                return None
            self._open.append(held)
            begin = held.offset
        batch, scale = self._batch()
        end = min(held.piece.shard.records, begin + self._steps_to_boundary() * batch)
        return Item(self.next_number, Barrier.NONE, held, begin, end, batch, scale)

    def _steps_to_boundary(self) -> int:
        planned = self.planned_version
        every = [self._context.spec.checkpoint.checkpoint_steps]
        if self._context.validation:
            every.append(self._context.spec.training.evaluation_steps)
        return min((steps - planned % steps for steps in every if steps), default=1 << 40)

    def _batch(self) -> tuple[int, float]:
        """Records in a step of the whole ring, and the factor for the learning rate."""
        training, batch = self._context.spec.training, self._context.spec.data.minibatch_size
        if training.global_batch is GlobalBatch.FIXED:
            return batch, 1.0
        match training.lr_scaling:
            case RateScaling.NONE:
                scale = 1.0
            case RateScaling.LINEAR:
                scale = float(self.members)
            case RateScaling.SQRT:
                scale = math.sqrt(self.members)
        return batch * self.members, scale

    def _as_work_item(self, item: Item) -> WorkItem:
        work, lease = self._context.work, None
        if item.held is not None and work is not None:
            # 0 stands for the shard's end.
            limit = item.end if item.end < item.held.piece.shard.records else 0
            lease = replace(work.lease(item.held), offset=item.begin, limit=limit)
        return WorkItem(item.number, lease, item.batch, item.rate_scale, item.mark, item.snapshot)

    # back

    def progressed(self, event: ProgressReported) -> int:
        """Book what the ring has done for certain; return the records that are new.

        All leases before the reported one are done.
        """
        work, applied = self._context.work, event.applied
        at = next(
            (i for i, held in enumerate(self._open) if held.piece.shard.id == applied.shard), None
        )
        if work is None or at is None or self._open[at].piece.attempt != applied.attempt:
            # The leases are the ring's: any member may report them.
            wrong = (
                work is None
                or work.why_not_found(RING, applied.shard, applied.attempt)
                is DropCause.UNKNOWN_LEASE
            )
            cause = DropCause.UNKNOWN_LEASE if wrong else DropCause.VOIDED_LEASE
            self._context.drop(cause, event.worker, event)
            return 0
        self._context.acknowledged_version = max(self._context.acknowledged_version, event.version)
        gained, epoch = 0, self._open[at].piece.epoch
        for held in self._open[:at]:
            # Members train in the order of items, so a report on a later shard implies the earlier
            # ones.
            gained += work.advance(held, held.piece.shard.records, 0)
        held = self._open[at]
        handed_out = self._handed_out(held)
        if applied.offset > handed_out:
            self._context.drop(DropCause.BEYOND_LEASE, event.worker, f"{event}, of {held}")
        elif applied.offset <= held.offset and event.bad_records <= held.bad:
            self._context.drop(DropCause.REPEATED_REPORT, event.worker, event)
        if event.ahead:
            work.foretell(held, applied.offset, event.bad_records)
        else:
            gained += work.advance(held, min(applied.offset, handed_out), event.bad_records)
        for held in [held for held in self._open if held.offset == held.piece.shard.records]:
            work.finish(held)
            self._open.remove(held)
        if event.bad_records:
            self._context.check_bad(work.counts[epoch], event.bad_examples)
        self._share_out(event.worker)
        self._missed_cut()
        self._tell_loss(event, work)
        return gained

    def _share_out(self, *tellers: ProcessName) -> None:
        """Credit the ring's booked records to its live members in equal parts.

        Parts of a step differ by at most one record. A member that has ended keeps its earlier
        credit.
        """
        live = tuple(name for name in self.names if name in self._context.processes.going)
        work, names = self._context.work, live or self.names or tellers
        assert work is not None
        records = work.done_by.pop(RING, 0) if names else 0
        for index, name in enumerate(names):
            # Differences of rounded prefixes: the parts add up to exactly `records`.
            work.done_by[name] += records * (index + 1) // len(names) - records * index // len(
                names
            )

    def _handed_out(self, held: HeldShard) -> int:
        return max((item.end for item in self._items if item.held is held), default=held.offset)

    def _missed_cut(self) -> None:
        """Fail a cut if the ring is past its mark: the member that made the copy is gone."""
        open_cut = self._snapshots.open_cut
        if open_cut is None:
            return
        passed = False
        for item in self._items:
            if passed and item.held is not None and item.held.offset > item.begin:
                self._snapshots.answered(open_cut.id)
                self._checkpointing.failed(
                    open_cut.id, "the worker with the copy of the weights is gone"
                )
                return
            passed = passed or item.snapshot == open_cut.id

    def _doubtful_cut(self) -> None:
        """Fail a cut if the ring stands at its mark in a new generation.

        The member that was to make the copy may be gone.
        """
        open_cut = self._snapshots.open_cut
        if open_cut is None:
            return
        for item in self._items:
            if item.steps_left:
                return
            if item.snapshot == open_cut.id:
                self._checkpointing.fail_cut(
                    "a new generation of the ring formed at the checkpoint"
                )
                return

    def _tell_loss(self, event: ProgressReported, work: Ledger) -> None:
        if event.loss is None:
            return
        batch, scale = self._batch()
        values = {
            "loss": event.loss,
            "global_batch": float(batch),
            "learning_rate_scale": scale,
            "workers": float(self.members),
        }
        self._context.saw_loss(event.version, values)

    # changes

    def formed(self, names: tuple[ProcessName, ...]) -> None:
        """Note that all members entered a generation, with booked weights.

        Items that a halt made void are dropped now.
        """
        self.names, self.members = names, len(names)
        self._doubtful_cut()
        if self.halting and self._halt_published:
            self.halting = ""
            self._drop_items()

    def published(self, names: tuple[ProcessName, ...]) -> None:
        """Note that a generation was published; a halt requested before takes effect with it."""
        self._halt_published = bool(self.halting)
        self._evaluation.appoint(names[0])

    @property
    def halts_anew(self) -> str:
        """Why the ring must stop at a generation that is still to be published; '' if not."""
        return "" if self._halt_published else self.halting

    def halt(self, why: str) -> None:
        """Stop the ring at its current step; the rest of its holdings goes back."""
        if not self.halting and self._items:
            self.halting, self._halt_published, self.first_item = why, False, self.next_number
            self._checkpointing.fail_cut(why)

    def roll_back(self, why: str) -> str:
        """Return to the newest checkpoint, or to the beginning, after the weights were lost.

        Returns the path of the checkpoint; '' for what the job began with.
        """
        saved = self._checkpointing.complete.newest
        ledger, version, path = (
            (saved.ledger, saved.version, saved.path)
            if saved
            else (self._begun_with, self._begun_version, "")
        )
        self._checkpointing.fail_cut(why)
        # The members may have made more steps than they have reported.
        unreported = bool(self._open)
        self._items.clear()
        self._open.clear()
        self.first_item, self.halting = self.next_number, ""
        # Its metrics describe weights that no longer exist.
        self._evaluation.abandon()
        repeated = restore_ledger(self._context, self._evaluation, ledger, RING)
        assert self._context.work is not None
        self._context.work.repeated_at_least |= unreported
        self._share_out()
        booked = max(self._context.version, self._context.acknowledged_version)
        self._context.updates.undo(booked - version, at_least=unreported)
        self._context.version = self._context.acknowledged_version = version
        self._checkpointing.rolled_back(version)
        self._evaluation.rolled_back(version)
        if repeated or unreported:
            where = path or "the beginning"
            again = f"{'at least ' if unreported else ''}{amount(repeated, 'record')}"
            text = (
                f"{why}: training continues from {where}, version {version};"
                f" {again if repeated else 'an unknown number of records'} will be trained again"
            )
            self._context.orders.announce(
                "ring", text, level="warning", details={"repeated": repeated, "version": version}
            )
        return path

    def _drop_items(self) -> None:
        work = self._context.work
        assert work is not None
        for held in reversed(self._open):
            work.give_back(held)
        self._open.clear()
        self._items.clear()
