"""Which part of the core handles which event, and in which order decisions follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.errors import UserError
from elasticdl.formatting import GIVING_PART
from elasticdl.master.core import events
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import DropSnapshot, Purpose
from elasticdl.master.core.data.beginning import announce_repeated, continued_ledger, first_ledger
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.ps.coordination import CUT_LIMIT_S
from elasticdl.master.core.updates import UpdateMark
from elasticdl.master.core.wiring import Parts
from elasticdl.shard import Applied, SnapshotId, Task

_STALL_S = 5.0


@final
class EventDispatch:
    """Hands each event to the parts that it concerns, then has them decide."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._context = parts.context
        self._cut_at = parts.coordination.offsets_at(None)
        self.started: events.JobStarted | None = None
        """How the job began; None before that."""

    def handle(self, event: events.Event) -> None:
        """Handle one event. Raises ImpossibleTransition if the state contradicts itself."""
        parts = self._parts
        parts.lifecycle.booking.saw(event)
        self._dispatch(event)
        self._decide()
        parts.stragglers.saw(event)
        parts.slow_workers.saw(event)
        parts.slow_servers.saw(event)
        parts.stalls.saw(event, parts.context.orders.given)

    def ledger_json(self) -> str:
        """The training ledger with all progress reported so far, as `JobStarted.ledger` takes it.

        '' if there is none.
        """
        return self._ledger_at({}, self._context.version, None)

    def _ledger_at(
        self, applied: Mapping[str, Applied], version: int, mark: UpdateMark | None
    ) -> str:
        updates = self._context.update_counts(version, mark)
        evaluation = self._parts.evaluation
        return continued_ledger(self._context, applied, self._cut_at, evaluation, updates)

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.ProgressReported():
                self._parts.coordination.progressed(event)
                self._at_acknowledged()
                self._parts.autoscaling.progressed()
            case events.LeaseRequested():
                # Decide first: a decision that is due may create the work that is requested.
                self._decide()
                self._parts.coordination.requested(event)
            case events.Tick():
                self._tick(event)
            case events.VersionAdvanced(version=version):
                # A heartbeat may be older than what a worker has acknowledged since.
                if version >= self._context.version or self._context.version_may_fall():
                    self._at_version(version)
            case events.JobStarted():
                self._start(event)
            case events.ProcessSeen():
                self._parts.lifecycle.seen(event)
            case events.ProcessEnded():
                self._parts.ends.ended(event)
            case events.ProcessAttached():
                self._parts.lifecycle.attached(event)
            case events.ProcessReturned():
                self._parts.takeover.returned(event)
            case events.ProcessSilent():
                self._parts.ends.silent(event)
            case events.CreateFailed():
                self._parts.scaling.create_failed(event)
            case events.ScaleRequested():
                self._parts.scaling.requested(event)
            case events.StalenessChosen():
                self._parts.staleness.chosen(event)
            case events.GradientDropped():
                # A return to a checkpoint undoes what some servers have applied.
                undone = self._context.roll_back is not None
                if event.partly_applied and self._context.work is not None and not undone:
                    self._context.work.repeated_at_least = True
                self._parts.leasing.revocation.revoke(event.worker, event.reason)
            case events.StepDelayed():
                self._context.step_delayed(event.reason, event.missing)
            case _:
                self._dispatch_more(event)

    def _dispatch_more(self, event: events.Event) -> None:
        match event:
            case events.LeaseReturned():
                self._parts.leasing.returned(event)
            case events.TaskFailed():
                self._parts.coordination.failed(event)
            case events.WorkerFenced():
                self._parts.reconciliation.fenced(event)
            case events.SummaryReported():
                if self._parts.evaluation.summarised(event) and event.stop_training:
                    self._stop_early("a callback requested it")
            case events.ExportFinished():
                self._parts.exporting.finished(event)
            case events.WorkerStopRequested():
                if self._context.worker(event.worker) is not None:
                    self._stop_early(event.reason)
                else:
                    self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            case events.StartWentOn():
                self._parts.lifecycle.went_on(event.worker, event.part)
                if event.part == GIVING_PART and self._context.worker(event.worker) is not None:
                    self._parts.coordination.gave_initial_values(event.worker)
            case events.RingReported():
                if event.ready:
                    self._parts.lifecycle.went_on(event.worker, "")
                self._parts.coordination.member_reported(event)
            case events.StepApplied():
                self._parts.rolling_back.stepped(event)
            case events.StateReported():
                self._parts.leasing.revocation.state_reported(event)
            case (
                events.ActivityReported()
                | events.StepsWaited()
                | events.ServerDelayed()
                | events.CpuShareReported()
                | events.PushesReported()
            ):
                pass  # What sees every event takes it in: see `handle`.
            case events.ConnectionLost():
                self._parts.coordination.lost_connection(event)
            case events.TimeReported(spent_s=spent_s):
                self._time_reported(spent_s)
            case events.MessagesDropped():
                self._context.drop(event.cause, event.name, "it dropped the message", event.count)
            case events.ReplaceRequested():
                self._parts.scaling.replace(event)
            case events.StopRequested():
                self._parts.phases.stop(event)
            case _:
                self._dispatch_rare(event)

    def _dispatch_rare(self, event: events.Event) -> None:
        match event:
            case events.SnapshotCut():
                self._cut(event)
            case events.SnapshotSaved():
                self._parts.checkpointing.completed(event)
                self._parts.resizing.saved(event)
                self._parts.rolling_back.saved(event.snapshot)
            case events.SnapshotFailed():
                self._snapshot_failed(event.snapshot, event.reason)
            case events.CheckpointRequested():
                self._parts.checkpointing.asked(event.leaving)
            case events.MasterTookOver():
                self._take_over(event)
            case events.ScaleServersRequested():
                self._parts.resizing.requested(event)
            case events.ServerStandsBy():
                self._parts.resizing.stands_by(event)
            case events.MasterStarted() | events.PreflightProgressed() | events.PreflightFailed():
                self._parts.phases.preflight(event)
            case _:
                raise ImpossibleTransition(f"{event!r} is an unknown event")

    def _time_reported(self, spent_s: Mapping[str, Mapping[str, float]]) -> None:
        context = self._context
        for worker, account_s in spent_s.items():
            name = ProcessName.parse(worker)
            if not context.processes.spent(name, account_s, context.now_s):
                context.drop(DropCause.ENDED_PROCESS, name, "its account of time")
        self._parts.autoscaling.time_reported()

    def _decide(self) -> None:
        # The order matters: scaling reads the rounds that the steps before it open, and members and
        # addresses depend on the processes that scaling starts and stops.
        self._parts.rolling_back.decide()
        self._parts.phases.decide()
        self._parts.resizing.decide()
        self._parts.coordination.decide_cuts()
        self._parts.scaling.decide()
        self._parts.coordination.decide_members()
        self._parts.lifecycle.publish()

    def _tick(self, event: events.Tick) -> None:
        if event.stalled_s > _STALL_S:
            text = (
                f"the master itself did not run for {event.stalled_s:.0f} s; silence during that"
                " time is excused"
            )
            self._context.orders.announce("job", text, level="warning")
            self._parts.lifecycle.forgive(event.stalled_s)
            self._parts.stalls.forgive()
            self._parts.autoscaling.forgive()
        self._parts.lifecycle.tick(event.turn)
        self._parts.waits.tick()
        self._parts.leasing.revocation.tick()
        self._parts.reconciliation.tick()
        self._parts.checkpointing.tick()
        self._parts.stragglers.tick(event.turn)
        if not self._context.servers_away():
            self._parts.slow_workers.tick(event.turn)
            self._parts.slow_servers.tick()
            self._parts.backup_leases.tick()
        self._parts.stalls.tick()
        cut = self._parts.coordination.unanswered_cut()
        if cut is not None:
            self._snapshot_failed(cut, f"no answer from the servers within {CUT_LIMIT_S:.0f} s")

    # data

    def _start(self, event: events.JobStarted) -> None:
        if self._context.phase is not Phase.STARTING:
            return
        self.started = event
        chosen = {"sync": event.sync, "max_staleness": event.max_staleness}
        self._context.spec = self._context.spec.replace(
            **{flag: value for flag, value in chosen.items() if value is not None}
        )
        self._context.why_sync = event.why_sync
        for reason in event.passed_over:
            self._context.orders.announce(
                "checkpoint", f"skipping a newer checkpoint: {reason}", level="warning"
            )
        announce_repeated(self._context, event)
        self._context.validation = event.validation
        self._context.version = self._context.begun_version = event.version
        self._parts.checkpointing.start(event.version)
        self._parts.evaluation.start(event.version)
        self._parts.exporting.start(event.version, event.exported)
        self._parts.checkpointing.complete.begun_with(
            event.restore_from,
            event.restored_bytes,
            event.ledger,
            event.at_s - event.restored_age_s,
        )
        self._parts.coordination.begin(event.ledger, event.version)
        try:
            self._context.work = first_ledger(self._context, self._parts.evaluation, event)
        except UserError as error:
            self._context.fail(error.message, hint=error.hint)
            return
        for piece in self._context.work.parked if self._context.work else ():
            # The resumed job parked these shards; they count towards this job's limit too.
            self._context.give_up(Task.TRAINING, piece)
        if self._context.outcome is None:
            self._parts.phases.begin()

    def _stop_early(self, why: str) -> None:
        if self._parts.leasing.stop_early(why):
            self._parts.coordination.recall("ending training early")

    def _take_over(self, event: events.MasterTookOver) -> None:
        self._parts.lifecycle.taken_over(event.away_s)
        self._parts.takeover.begin(event)
        self._parts.coordination.taken_over()
        self._parts.resizing.taken_over()
        self._parts.phases.taken_over()
        self._parts.stalls.forgive()
        self._parts.autoscaling.forgive()

    # snapshots

    def _at_version(self, version: int) -> None:
        # A server that has just come up counts as version 0 until its first report, but it cannot
        # be below the version that it started with. While processes end, a leaving server may
        # report a version older than its workers' last reports: that says nothing about how the job
        # ended.
        over = self._context.phase in (Phase.ENDING, Phase.ENDED)
        self._context.version = max(
            version, self._context.version if over else self._parts.lifecycle.least_version()
        )
        self._parts.checkpointing.version_changed()
        self._parts.evaluation.version_changed()

    def _at_acknowledged(self) -> None:
        # Workers learn of versions earlier than heartbeats report them. Using their versions makes
        # work that is due every N steps start on time.
        acknowledged = self._context.acknowledged_version
        if acknowledged > self._context.version and not self._context.servers_away():
            self._at_version(acknowledged)

    def _cut(self, event: events.SnapshotCut) -> None:
        match self._parts.snapshots.answered(event.snapshot):
            case Purpose.CHECKPOINT:
                self._cut_at = self._parts.coordination.offsets_at(event.snapshot)
                mark = self._parts.lifecycle.booking.mark(event)
                ledger = self._ledger_at(event.applied, event.version, mark)
                self._parts.checkpointing.cut(event.snapshot, event.version, ledger, mark)
                self._parts.resizing.cut(event.snapshot)
            case Purpose.EVALUATION:
                self._parts.evaluation.cut(event.snapshot, event.version)
            case Purpose.EXPORT:
                self._parts.exporting.cut(event.snapshot, event.version)
            case None:
                self._context.drop(DropCause.LATE_SNAPSHOT, None, event)
                # A ring that re-forms at a barrier cuts again, while the first copy is written.
                saving = self._parts.checkpointing.saving
                if saving is None or saving.id != event.snapshot:
                    # Nobody will use this view, but every server keeps it until told otherwise.
                    self._context.orders.give(DropSnapshot(event.snapshot))

    def _snapshot_failed(self, snapshot: SnapshotId, reason: str) -> None:
        purpose = self._parts.snapshots.answered(snapshot)
        self._parts.resizing.failed(snapshot, reason)
        # Cuts and saves fail through the same event; only a checkpoint is ever saved.
        if purpose is Purpose.EVALUATION:
            if (
                self._parts.evaluation.round is not None
                and self._parts.evaluation.round.snapshot == snapshot
            ):
                self._parts.evaluation.failed_cut(reason)
                return
        elif purpose is Purpose.EXPORT:
            self._parts.exporting.failed_cut(snapshot, reason)
            return
        elif self._parts.checkpointing.failed(snapshot, reason):
            return
        self._context.drop(DropCause.LATE_SNAPSHOT, None, f"{snapshot}: {reason}")
