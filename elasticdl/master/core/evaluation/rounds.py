"""Rounds of evaluation, each at one version.

A round freezes a view and leases the validation shards. It adds up the metric states exactly once
per shard. Then one worker computes the values from the sums. The same worker does so in each round
while it lives, because callbacks count rounds. A successor gets the earlier rounds. The payload of
the SUMMARY lease is JSON: `{"round", "version", "epoch", "metrics": {name: [[…], …]}, "history":
[{"round", "epoch", "values": {name: value}, "loss": of training}, …]}`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_choices import Action
from elasticdl.master.core.checkpoint.snapshots import Snapshots, retry_s
from elasticdl.master.core.commands import DropSnapshot, Purpose, RecordMetrics
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import Blame, Piece
from elasticdl.master.core.data.sharding import ShardPlan, shard_records
from elasticdl.master.core.evaluation.round import Result, Round, Stage
from elasticdl.master.core.events import ProgressReported, SummaryReported, TaskFailed
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import Life
from elasticdl.shard import Applied, Lease, SnapshotId, Task

_TRIES = 20
_KEPT_RESULTS = 1000
_SUMMARY_LIMIT_S = 300.0
"""How long a summary waits for the worker of the earlier ones, which may be busy.

After that any worker may take it.
"""


@final
class Evaluation:
    """Decides on rounds, one at a time."""

    def __init__(self, context: JobContext, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots
        self.round: Round | None = None
        self.results: list[Result] = []
        self.final_done = False
        self.last_ledger: Ledger | None = None
        self.rounds = 0
        self._summariser: ProcessName | None = None
        """The worker of the last summary: callbacks that count rounds live there."""
        self._anchor_version = 0
        self._anchor_s = 0.0
        self._failures = 0
        self._retry_at_s = 0.0
        self._problem = ""
        """Why the last try got no frozen view."""
        self._appointed: ProcessName | None = None

    def start(self, version: int, rounds: int = 0) -> None:
        """Count versions, seconds and rounds from here."""
        self._anchor_version, self._anchor_s = version, self._context.now_s
        self.rounds = max(self.rounds, rounds)

    def appoint(self, worker: ProcessName) -> None:
        """Have this worker make the summaries while it is ready.

        Callbacks of a round may change the learning rate, and a ring uses that of rank 0.
        """
        self._appointed = worker

    def version_changed(self) -> None:
        """Take in another version of the servers, which is older after a restore."""
        if self._context.version_may_fall():
            self.rolled_back(self._context.version)

    def rolled_back(self, version: int) -> None:
        """Count from an earlier version after the job returned to it."""
        self._anchor_version = min(self._anchor_version, version)

    def reopen(self) -> None:
        """Require another final round, because training continues."""
        self.final_done = False

    # when

    def wanted(self) -> bool:
        """Whether a round is due, and neither open nor waiting for its next try."""
        if (
            self.round is not None
            or self._context.now_s < self._retry_at_s
            or self._context.servers_away()
        ):
            return False
        return self._final_due() or self._due()

    def begin(self) -> None:
        """Open a round on a frozen view of the servers, unless another cut is open.

        Only if one is `wanted`.
        """
        if self._context.spec.action is Action.EVALUATE:
            self.begin_live()
        elif self._snapshots.open_cut is None:
            self._open(self._final_due(), self._snapshots.take(Purpose.EVALUATION))

    def begin_live(self) -> None:
        """Open a round on parameters that do not change meanwhile. Only if one is `wanted`."""
        self._open(self._final_due(), None)
        self._anchor_version = self._context.version
        self._begin_leasing(self._context.version)

    def _final_due(self) -> bool:
        return self._context.phase is Phase.EVALUATING and not self.final_done

    def _due(self) -> bool:
        if (
            self._context.phase is not Phase.WORKING
            or not self._context.validation
            or self._context.work is None
        ):
            return False
        return self.due_at(self._context.version)

    def due_at(self, version: int) -> bool:
        """Whether a round is due when training reaches that version."""
        if not self._context.validation:
            return False
        training = self._context.spec.training
        steps = training.evaluation_steps
        # Compare multiples: asynchronous workers may jump over the exact version.
        by_steps = steps > 0 and version // steps > self._anchor_version // steps
        by_time = (
            0 < training.evaluation_seconds <= self._context.now_s - self._anchor_s
            and version > self._anchor_version
        )
        return by_steps or by_time or self._failures > 0

    def _open(self, final: bool, snapshot: SnapshotId | None) -> None:
        data, workers = self._context.spec.data, self._context.spec.cluster.num_workers.high
        sources = self._context.validation
        total = sum(source.records for source in sources)
        size = shard_records(data.records_per_task, data.minibatch_size, total, workers)
        plan = ShardPlan(sources, size)
        ledger = Ledger(plan, self._context.ids, task=Task.EVALUATION)
        self.round = Round(self.rounds, final, self._context.now_s, Stage.CUTTING, snapshot, ledger)
        self.rounds += 1

    def recut(self, old: SnapshotId, new: SnapshotId) -> None:
        """Expect another snapshot in the place of one that was ordered by an earlier master."""
        if self.round is not None and self.round.snapshot == old:
            self.round.snapshot = new

    @property
    def view(self) -> SnapshotId | None:
        """The frozen view that the open round reads."""
        cutting = self.round is None or self.round.stage is Stage.CUTTING
        return None if cutting or self.round is None else self.round.snapshot

    def cut(self, snapshot: SnapshotId, version: int) -> None:
        """Begin to lease shards: the frozen view of the open round exists."""
        if self.round is None or self.round.snapshot != snapshot:
            self._snapshots.drop_late(snapshot)
            return
        self._anchor_version = version
        self._begin_leasing(version)

    def _begin_leasing(self, version: int) -> None:
        assert self.round is not None
        self.round.version, self.round.stage = version, Stage.LEASING
        self.round.epoch = self._context.work.epoch if self._context.work else 0
        details = meaning(EventStep.BEGUN, round=self.round.number, version=version)
        text = f"evaluation round {self.round.number} begins at version {version}"
        self._context.orders.announce("evaluation", text, details=details)
        # Without validation shards the summary is due at once.
        self._maybe_summarise(self.round)

    # work

    def lease(self, worker: ProcessName) -> Lease | None:
        """A lease of a validation shard or of the summary, if one is free."""
        current = self.round
        if current is None or current.stage is Stage.CUTTING:
            return None
        if current.stage is Stage.SUMMARISING:
            return self._summary_lease(current, worker)
        held = current.ledger.take(worker, self._context.now_s)
        if held is None:
            return None
        lease = current.ledger.lease(held)
        return replace(
            lease,
            epoch=current.epoch,
            round=current.number,
            snapshot=current.snapshot,
            version=current.version,
        )

    def _summary_lease(self, current: Round, worker: ProcessName) -> Lease | None:
        if current.summary.holder is not None or self.summary_waits_for() not in (None, worker):
            return None
        current.summary.holder = worker
        return Lease(
            Task.SUMMARY,
            None,
            current.summary.attempt,
            epoch=current.epoch,
            round=current.number,
            snapshot=current.snapshot,
            version=current.version,
            payload=json.dumps(self._payload(current)),
        )

    def _payload(self, current: Round) -> dict[str, object]:
        """The payload of a summary; callbacks get the part of the history that is new to them."""
        history = [
            {
                "round": result.round,
                "epoch": result.epoch,
                "values": result.values,
                "loss": result.loss,
            }
            for result in self.results
        ]
        head = {"round": current.number, "version": current.version, "epoch": current.epoch}
        return {**head, "metrics": current.sums, "history": history}

    def summary_waits_for(self) -> ProcessName | None:
        """The worker that must make the open summary; None: any worker may.

        It is the worker of the earlier summaries.
        """
        # A ring appoints rank 0, which takes precedence.
        before, current = self._appointed or self._summariser, self.round
        process = self._context.worker(before) if before else None
        if current is None or process is None or process.life is not Life.READY:
            return None
        return before if self._context.now_s - current.added_up_s < _SUMMARY_LIMIT_S else None

    def progressed(self, event: ProgressReported) -> int:
        """Book a worker's report on a validation shard; return the records that are new."""
        current = self.round
        held = (
            current.ledger.find(event.worker, event.applied.shard, event.applied.attempt)
            if current
            else None
        )
        if current is None or held is None:
            self._context.drop(self.why_not_found(event.worker, event.applied), event.worker, event)
            return 0
        if event.applied.offset > held.piece.shard.records:
            self._context.drop(DropCause.BEYOND_LEASE, event.worker, f"{event}, of {held}")
        gained = current.ledger.advance(held, event.applied.offset, event.bad_records)
        if event.done:
            problem = current.not_addable(event.metrics)
            if problem or held.offset < held.piece.shard.records:
                problem = (
                    problem or f"ended after {held.offset} of {held.piece.shard.records} records"
                )
                self._failed_piece(
                    held.piece if current.ledger.fail(held, f"{event.worker}: {problem}") else None
                )
            else:
                current.ledger.finish(held)
                self._count(event.worker, held.piece.shard.records - held.bad)
                # After `finish`, which happens once per shard: a repeated report cannot add twice.
                current.add(event.metrics)
                self._context.check_bad(current.ledger.counts[0], event.bad_examples)
        self._maybe_summarise(current)
        return gained

    def why_not_found(self, worker: ProcessName, applied: Applied) -> DropCause:
        """Why a reported lease is unknown, both in this round and in the work."""
        ledgers = (self._context.work, self.round.ledger if self.round else None)
        causes = {
            ledger.why_not_found(worker, applied.shard, applied.attempt)
            for ledger in ledgers
            if ledger is not None
        }
        known = self._context.ids.given(applied.shard) and DropCause.UNKNOWN_LEASE not in causes
        return DropCause.VOIDED_LEASE if known else DropCause.UNKNOWN_LEASE

    def _count(self, worker: ProcessName, records: int) -> None:
        """Count evaluated records of a training job; otherwise they are in the receipt."""
        process = self._context.processes.all.get(worker)
        if process is not None and self._context.spec.action is Action.TRAIN:
            process.evaluated_records += records

    def _maybe_summarise(self, current: Round) -> None:
        if current.stage is Stage.LEASING and current.ledger.finished:
            current.stage, current.added_up_s = Stage.SUMMARISING, self._context.now_s

    def summarised(self, event: SummaryReported) -> bool:
        """Record the values of the open round. False if the report is late or not the holder's."""
        current = self.round
        if (
            current is None
            or current.number != event.round
            or current.summary.holder != event.worker
        ):
            known = 0 <= event.round < self.rounds
            cause = DropCause.LATE_SUMMARY if known else DropCause.UNKNOWN_LEASE
            self._context.drop(cause, event.worker, event)
            return False
        # Sort the values, because the wire does not keep their order.
        values = {
            name: event.values[name]
            for name in sorted(event.values, key=lambda name: (name != "loss", name))
        }
        loss = self._context.loss
        self.results.append(
            Result(current.number, current.version, current.epoch, event.at_s, values, loss)
        )
        # The payload of every summary has the history, so it must not grow forever.
        del self.results[:-_KEPT_RESULTS]
        self._summariser = event.worker
        self._context.metrics = dict(values)
        trained = (
            self._context.work.totals().trained
            if self._context.work
            else current.ledger.totals().trained
        )
        orders = self._context.orders
        orders.give(RecordMetrics("evaluation", current.version, trained, dict(values)))
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        seconds = event.at_s - current.since_s
        text = (
            f"evaluation round {current.number} at version {current.version}:"
            f" {metrics or 'no metrics'}"
        )
        orders.announce(
            "evaluation",
            text,
            details=meaning(
                EventStep.ENDED, round=current.number, version=current.version, seconds=seconds
            ),
        )
        self.final_done = self.final_done or current.final
        self._failures = 0
        self._anchor_s = self._context.now_s
        self._close()
        return True

    # what goes wrong

    def failed_task(self, event: TaskFailed) -> bool:
        """Handle an error of user code in a shard or in the summary.

        False if that lease is not of this round.
        """
        current = self.round
        if current is None:
            return False
        if event.shard is None:
            return (
                event.task is Task.SUMMARY
                and current.summary.holder == event.worker
                and self._failed_summary(event)
            )
        held = current.ledger.find(event.worker, event.shard, event.attempt)
        if held is None:
            return False
        self._failed_piece(
            held.piece if current.ledger.fail(held, f"{event.worker}: {event.error}") else None
        )
        self._maybe_summarise(current)
        return True

    def _failed_summary(self, event: TaskFailed) -> bool:
        assert self.round is not None
        if self.round.summary.release(event.worker, event.error):
            self._context.fail(
                f"the summary of an evaluation failed:\n{self.round.summary.story()}"
            )
        return True

    def _failed_piece(self, parked: Piece | None) -> None:
        if parked is not None:
            self._context.give_up(Task.EVALUATION, parked)

    def lost(self, worker: ProcessName, blame: str) -> bool:
        """Take back what a lost worker held. True if `blame` was counted against some of it."""
        current = self.round
        if current is None:
            return False
        blamed = bool(blame) and (
            current.summary.holder == worker or bool(current.ledger.held_by(worker))
        )
        if current.summary.release(worker, blame):
            self._context.fail(f"the summary of an evaluation failed:\n{current.summary.story()}")
        self._failed_piece(current.ledger.settle(worker, (), Blame(blame) if blame else None))
        self._maybe_summarise(current)
        return blamed

    def failed_cut(self, reason: str) -> None:
        """Close the open round, which got no frozen view, and try again later."""
        self._close()
        self._failures += 1
        self._problem = reason
        pause_s = retry_s(self._failures)
        self._retry_at_s = self._context.now_s + pause_s
        self._context.orders.announce(
            "evaluation",
            f"evaluation failed: {reason}; retrying in {pause_s:.0f} s",
            level="warning",
        )
        if self._failures >= _TRIES:
            self._context.fail(f"evaluation failed {_TRIES} times: {reason}")

    def pauses(self) -> str:
        """Why a due round waits for its next try; '' if it does not."""
        if self.round is not None or not self._failures or self._context.now_s >= self._retry_at_s:
            return ""
        return (
            f"evaluation failed: {self._problem}; retrying in"
            f" {self._retry_at_s - self._context.now_s:.0f} s"
        )

    def server_lost(self, name: ProcessName) -> list[ProcessName]:
        """Close the round if its frozen view was lost with a server.

        Returns the workers that use that view.
        """
        current = self.round
        # The server may have made its part of a cut that is not answered yet.
        if current is None or current.snapshot is None:
            return []
        holders = [held.worker for held in current.ledger.held.values()]
        if current.summary.holder is not None:
            holders.append(current.summary.holder)
        self.failed_cut(f"the frozen view was lost with {name}")
        return list(dict.fromkeys(holders))

    def abandon(self) -> None:
        """Give up the open round and retries, because the job ends or trains again."""
        self._failures, self._retry_at_s = 0, self._context.now_s
        if self.round is not None:
            text = f"evaluation round {self.round.number} cancelled"
            self._context.orders.announce("evaluation", text)
            self._close()

    def _close(self) -> None:
        assert self.round is not None
        if self.round.snapshot is not None and self.round.stage is not Stage.CUTTING:
            self._context.orders.give(DropSnapshot(self.round.snapshot))
        self.last_ledger, self.round = self.round.ledger, None
