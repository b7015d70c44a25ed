"""Grants leases, and books what workers report about them.

Reports from workers that do not hold the lease are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_choices import Action
from elasticdl.master.core.commands import (
    GrantLease,
    NoLeaseNow,
    RevokeLeases,
    WorkFinished,
)
from elasticdl.master.core.data.lease_limits import LeaseLimits
from elasticdl.master.core.data.lease_reconciliation import LeaseReconciliation
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.paces import Paces
from elasticdl.master.core.data.pieces import Blame, HeldShard, Stage
from elasticdl.master.core.data.revocation import Revocation
from elasticdl.master.core.evaluation.round import Stage as RoundStage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import (
    LeaseRequested,
    LeaseReturned,
    ProgressReported,
    TaskFailed,
)
from elasticdl.master.core.exporting import Exporting
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import LEAVE_LIMIT_S, Life, Process
from elasticdl.master.core.ps.staleness import Staleness
from elasticdl.shard import Applied, Lease, ShardId, Task

LEASES_PER_WORKER = 2


@final
class Leasing:
    """Answers requests and books reports."""

    def __init__(
        self,
        context: JobContext,
        evaluation: Evaluation,
        reconciliation: LeaseReconciliation,
        exporting: Exporting,
        staleness: Staleness,
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._reconciliation = reconciliation
        self.exporting = exporting
        self._staleness = staleness
        self.revocation = Revocation(context, evaluation, exporting)
        self.paces = Paces()
        self.limits = LeaseLimits(context, evaluation, self.paces)

    # requests

    def requested(self, event: LeaseRequested) -> None:
        """Answer with exactly one of GrantLease, NoLeaseNow, WorkFinished, RevokeLeases."""
        give, name = self._context.orders.give, event.worker
        process = self._context.worker(name)
        if self._context.phase in (Phase.ENDING, Phase.ENDED):
            if process is not None:
                process.finished = True
            give(WorkFinished(name))
        elif process is None:
            give(RevokeLeases(name, f"{name} is unknown or was given up"))
        elif process.life is not Life.READY:
            give(
                NoLeaseNow(
                    name,
                    (
                        f"{name} is {process.life}: {process.message}"
                        if process.message
                        else f"{name} is {process.life}"
                    ),
                )
            )
        else:
            # A request that gets no lease must not change the state: it is not journaled.
            answer = self._next(process)
            if isinstance(answer, str):
                give(NoLeaseNow(name, answer))
                return
            process.revoked = False
            process.leased = True
            # Only the first lease restarts the clock; a second one is a buffer behind the first.
            if self.leases_of(name) == 1:
                process.busy_since_s = event.at_s
            give(GrantLease(name, answer))

    def _next(self, process: Process) -> Lease | str:
        """The best lease for that worker, or why there is none."""
        if self.has_most(process.name):
            return f"{process.name} already has {self._most} leases"
        if away := self._context.servers_away():
            return f"waiting for parameter servers: {away}"
        if self.exporting.holds(process.name):
            # A shard behind an export would wait for minutes, and others have time for it now.
            return f"{process.name} makes an export"
        return (
            # Frozen views first: they cost memory on every server while they last.
            self._evaluation_lease(process.name)
            or self.exporting.lease(process.name)
            or self._work_lease(process.name)
            or (self.revocation.is_open(process.name) and "its revoked shards are not back yet")
            or self._slow_reason(process)
            or self.idle_reason()
        )

    def apart(self, event: LeaseRequested) -> bool:
        """Give a worker whose ring stands still a lease for itself, if there is one."""
        process = self._context.worker(event.worker)
        if process is None or self.leases_of(event.worker) >= LEASES_PER_WORKER:
            return False
        lease = self._evaluation.lease(event.worker) or self.exporting.lease(event.worker)
        if lease is None:
            return False
        process.revoked = False
        if self.leases_of(event.worker) == 1:
            process.busy_since_s = event.at_s
        self._context.orders.give(GrantLease(event.worker, lease))
        return True

    def has_most(self, worker: ProcessName) -> bool:
        """Whether a worker gets no further lease before it has finished one."""
        return self.leases_of(worker) >= self._most

    @property
    def _most(self) -> int:
        # The last minibatches of a lease may wait for their step, and the step for further ones.
        return LEASES_PER_WORKER + self._context.spec.gradients_per_step

    def _work_lease(self, worker: ProcessName) -> Lease | None:
        work = self._context.work
        if work is None or self._context.phase is not Phase.WORKING:
            return None
        if self.revocation.is_open(worker) or self._would_be_last(worker, work):
            return None
        held = work.take(worker, self._context.now_s)
        return work.lease(held) if held else None

    def _evaluation_lease(self, worker: ProcessName) -> Lease | None:
        current = self._evaluation.round
        shards = current is not None and current.stage is RoundStage.LEASING
        if current is not None and shards and self._would_be_last(worker, current.ledger):
            return None
        return self._evaluation.lease(worker)

    def _would_be_last(self, worker: ProcessName, ledger: Ledger) -> bool:
        """Whether the others finish all that is left before this slow worker finishes a shard.

        Synchronous steps wait for each worker with a lease, so they do better without a slow one.
        """
        process = self._context.worker(worker)
        if process is None or not process.slow_times:
            return False
        others = self.healthy_workers(but=worker)
        if ledger is self._context.work and self._context.spec.trains_in_steps:
            return bool(others)
        usual_s = self.paces.usual(ledger.task, others)
        if usual_s is None:
            return False
        pace_s = self.paces.of(worker, ledger.task) or process.slow_times * usual_s
        remaining = ledger.remaining
        records = min(ledger.plan.shard_records, remaining)
        return records * pace_s > remaining * usual_s / len(others)

    def healthy_workers(self, *, but: ProcessName | None = None) -> list[ProcessName]:
        """Workers that are up and not slow."""
        live = self._context.processes.live_workers()
        healthy = (worker for worker in live if worker.up and not worker.slow_times)
        return [worker.name for worker in healthy if worker.name != but]

    def left_s(self, but: ProcessName) -> float | None:
        """How long the healthy workers without `but` need for the rest; None if that is unknown."""
        current, work = self._evaluation.round, self._context.work
        if self._context.phase is not Phase.WORKING:
            work = current.ledger if current is not None else None
        others = self.healthy_workers(but=but)
        usual_s = self.paces.usual(work.task, others) if work else None
        if work is None or usual_s is None:
            return None
        return work.remaining * usual_s / len(others)

    def _slow_reason(self, process: Process) -> str:
        work = self._context.work
        if work is None or not process.slow_times or not (work.available or work.epochs_left):
            return ""
        return f"{process.name} is slow: the others finish what is left sooner without it"

    def idle_reason(self) -> str:
        """Why there is nothing to lease now, in words."""
        current, work = self._evaluation.round, self._context.work
        if self._context.phase is Phase.STARTING:
            return "counting records"
        if current is not None and current.stage is RoundStage.CUTTING:
            return f"waiting for the frozen view of evaluation round {current.number}"
        if (
            current is not None
            and current.stage is RoundStage.SUMMARISING
            and (name := self._evaluation.summary_waits_for())
        ):
            return (
                f"{name} will summarise evaluation round {current.number}: its callbacks have seen"
                " the earlier rounds"
            )
        if current is not None:
            return f"evaluation round {current.number} is {current.stage}; all shards are assigned"
        if work is not None and work.held and self._context.phase is Phase.WORKING:
            settling = sum(held.stage is Stage.SETTLING for held in work.held.values())
            return f"all shards are leased, {len(work.held)} unfinished" + (
                f" ({settling} being reconciled)" if settling else ""
            )
        return self._evaluation.pauses() or f"the job is {self._context.phase}"

    def leases_of(self, worker: ProcessName) -> int:
        """The number of leases of every kind that a worker holds, without revoked ones."""
        current, work = self._evaluation.round, self._context.work
        count = sum(held.stage is not Stage.CLOSING for held in work.held_by(worker)) if work else 0
        if current is not None:
            count += len(current.ledger.held_by(worker)) + (current.summary.holder == worker)
        return count + self.exporting.holds(worker)

    def idle_workers(self) -> list[ProcessName]:
        """Workers that are up and hold nothing."""
        processes, work = self._context.processes, self._context.work
        # Most of ten thousand workers hold a shard, and are not looked at one by one.
        names = work.without_lease(processes.going) if work is not None else set(processes.going)
        up = (worker for name in names if (worker := self._context.worker(name)) and worker.up)
        idle = [worker.name for worker in up if not self.leases_of(worker.name)]
        return sorted(idle, key=lambda name: name.index)

    def leased_to(self, worker: ProcessName) -> list[tuple[Ledger, HeldShard]]:
        """Shards that a worker works on, with their ledgers."""
        current = self._evaluation.round
        return [
            (ledger, held)
            for ledger in (self._context.work, current.ledger if current else None)
            if ledger is not None
            for held in ledger.held_by(worker)
            if held.stage is Stage.LEASED
        ]

    def order_again(self) -> None:
        """Give orders to servers again that an earlier master may not have carried out."""
        self._reconciliation.order_again()

    # reports

    def progressed(self, event: ProgressReported) -> None:
        """Book the progress of a lease."""
        process = self._context.worker(event.worker)
        if process is None:
            self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            return
        gained = (
            self._evaluation.progressed(event)
            if event.task is Task.EVALUATION
            else self._progressed_work(event)
        )
        if not gained:
            return
        self.gained(event, process, gained, (event.worker,))
        if event.loss is not None:
            self._context.saw_loss(self._context.version, {"loss": event.loss})
            self._staleness.saw_loss(event.loss)

    def gained(
        self, event: ProgressReported, process: Process, records: int, by: Iterable[ProcessName]
    ) -> None:
        """Book `records` new records of a report of `process`; the workers `by` did the work."""
        workers = tuple(by)
        alone = workers[0] if len(workers) == 1 else None
        self.paces.saw(alone, event.task, event.at_s - process.busy_since_s, records)
        self._context.budgets.progressed()
        for name in workers:
            worker = self._context.worker(name)
            if worker is not None and not worker.works:
                worker.progressed()
                self._tell_first_progress(worker)
        process.busy_since_s = event.at_s

    def _tell_first_progress(self, process: Process) -> None:
        ready_s = self._context.now_s if process.ready_s is None else process.ready_s
        after_s = self._context.now_s - ready_s
        text = f"{process.name} made its first progress {after_s:.1f} s after it was ready"
        details = meaning(EventStep.WORKING, after_s=after_s)
        if process.leased:
            details["first_s"] = round(self._context.now_s - max(ready_s, process.busy_since_s), 3)
        self._context.orders.announce(
            "process", text, process=process.name, level="detail", details=details
        )

    def _progressed_work(self, event: ProgressReported) -> int:
        work = self._context.work
        held = work.find(event.worker, event.applied.shard, event.applied.attempt) if work else None
        if work is None or held is None or work.task is not event.task:
            other = held is not None and work is not None
            cause = (
                DropCause.OTHER_TASK
                if other
                else self._evaluation.why_not_found(event.worker, event.applied)
            )
            self._context.drop(cause, event.worker, event)
            return 0
        if event.ahead:
            work.foretell(held, event.applied.offset, event.bad_records)
            return 0
        self._check_offset(event, held)
        self._context.acknowledged_version = max(self._context.acknowledged_version, event.version)
        gained = work.advance(held, event.applied.offset, event.bad_records)
        if event.bad_records:
            self._context.check_bad(work.counts[held.piece.epoch], event.bad_examples)
        if event.done and work.finish(held):
            self._tell_sample(held)
        elif event.done:
            total = held.piece.shard.records
            self._failed_work(held, f"{event.worker}: ended after {held.offset} of {total} records")
        return gained

    def _tell_sample(self, held: HeldShard) -> None:
        """Announce a finished shard if it is a sample, so that traces show how long shards take.

        Samples are the shards 0, 1, 2, 4, 8, … of such epochs: a job has a few, whatever its size.
        """
        piece = held.piece
        if piece.number & (piece.number - 1) or piece.epoch & (piece.epoch - 1):
            return
        shard, seconds = piece.shard, self._context.now_s - held.since_s
        self._context.orders.announce(
            "shard",
            f"finished shard {shard.id} of epoch {piece.epoch + 1},"
            f" {amount(shard.records, 'record')}, in {seconds:.1f} s",
            process=held.worker,
            details=meaning(
                EventStep.ENDED,
                shard=int(shard.id),
                epoch=piece.epoch,
                attempt=piece.attempt,
                records=shard.records,
                seconds=seconds,
            ),
        )

    def _check_offset(self, event: ProgressReported, held: HeldShard) -> None:
        """Count reports whose offset decreases or exceeds the shard; both are defects."""
        offset = event.applied.offset
        if offset > held.piece.shard.records:
            self._context.drop(DropCause.BEYOND_LEASE, event.worker, f"{event}, of {held}")
        elif offset < held.offset:
            self._context.drop(DropCause.BACKWARD, event.worker, f"{event}, of {held}")

    def returned(self, event: LeaseReturned) -> None:
        """Take back the rest of a lease from a worker.

        The worker is draining unless the lease was revoked or never taken.
        """
        process, current = self._context.worker(event.worker), self._evaluation.round
        if process is None:
            self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            return
        work = self._context.work
        held = work.find(event.worker, event.applied.shard, event.applied.attempt) if work else None
        if held is not None and work is not None and not event.taken:
            work.give_back(held)
        elif held is not None:
            self._reconciliation.returned(process, held, event.applied.offset)
        else:
            applied = event.applied
            lease = (
                current.ledger.find(event.worker, applied.shard, applied.attempt)
                if current
                else None
            )
            if lease is not None and current is not None:
                current.ledger.give_back(lease)
            else:
                self._context.drop(
                    self._evaluation.why_not_found(event.worker, applied), event.worker, event
                )
        if process.life is Life.READY and event.taken and not process.revoked:
            process.enter(
                Life.STOPPING, event.at_s, "draining", deadline_s=event.at_s + LEAVE_LIMIT_S
            )
            text = f"{event.worker} is draining: it returns its shards"
            details = meaning(EventStep.STOPPING, reason="draining")
            self._context.orders.announce("process", text, process=event.worker, details=details)

    def failed(self, event: TaskFailed) -> None:
        """Handle an exception of user code; it counts against the shard or the job's budget.

        In a shard the shard is blamed; outside of any, it spends the budget for user errors. The
        worker then ends by itself. As for any lost worker, the servers report what it had pushed.
        """
        process = self._context.worker(event.worker)
        if process is None:
            self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            return
        process.failure_reported = True
        if process.life is Life.READY:
            process.enter(
                Life.STOPPING,
                event.at_s,
                "user code failed",
                deadline_s=event.at_s + LEAVE_LIMIT_S,
            )
        self._context.orders.announce(
            "task",
            f"{event.worker}: {event.error}",
            process=event.worker,
            cause="user_error",
            level="error",
        )
        if event.fatal:
            self._context.fail(event.error)
        elif self._of_no_shard(event):
            if reason := self._context.budgets.user_error(event.error):
                self._context.fail(
                    reason, hint="fix the model module; `elasticdl logs` shows the full traceback"
                )
        elif not self._evaluation.failed_task(event):
            self._failed_lease(process, event)

    def _of_no_shard(self, event: TaskFailed) -> bool:
        """Whether the failure belongs to no work that can be given up."""
        return event.task is None or (
            event.shard is None and event.task not in (Task.SUMMARY, Task.EXPORT)
        )

    def _failed_lease(self, process: Process, event: TaskFailed) -> None:
        work = self._context.work
        self.exporting.failed(event)
        if event.shard is None or work is None:
            return
        held = work.find(event.worker, event.shard, event.attempt)
        if held is None:
            applied = Applied(event.shard, event.attempt, 0)
            self._context.drop(
                self._evaluation.why_not_found(event.worker, applied), event.worker, event
            )
        else:
            self._reconciliation.lost(process, Blame(f"{event.worker}: {event.error}", event.shard))

    def _failed_work(self, held: HeldShard, reason: str) -> None:
        work = self._context.work
        assert work is not None
        if work.fail(held, reason):
            self._context.give_up(work.task, held.piece)

    # ends

    def lost(self, process: Process, blame: str) -> bool:
        """Take back everything that a lost worker held.

        True if `blame` was counted against some work that it held.
        """
        name = process.name
        self.paces.forget(name)
        # One end blames one piece of work: three ends must not park several shards.
        blamed = self._evaluation.lost(name, blame)
        blamed = self.exporting.lost(name, blame) or blamed
        # A worker does evaluation shards before training shards, so the evaluation shard is blamed.
        return (
            self._reconciliation.lost(process, Blame(blame) if blame and not blamed else None)
            or blamed
        )

    def blame(self, process: Process, shard: ShardId, reason: str) -> None:
        """Count a failure of a shard that a worker had held: the cause of its end came later."""
        self._reconciliation.blame(process.name, Blame(reason, shard))

    def stop_early(self, why: str) -> bool:
        """End training now without the shards that nobody has begun. False if it ended before."""
        work = self._context.work
        if (
            work is None
            or work.stopped
            or self._context.phase is not Phase.WORKING
            or self._context.spec.action is not Action.TRAIN
        ):
            return False
        self._context.orders.announce(
            "job", f"ending training early: {why}", details={"ended_early": why}
        )
        self._context.ended_early = why
        work.stop()
        return True
