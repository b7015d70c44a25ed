"""The job's state machine: `handle(event) -> commands`.

It is single-threaded and pure, so a journal of events is enough to restore a job. Events from late,
unknown or given-up senders never raise: they are answered, or dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.errors import UserError
from elasticdl.formatting import GIVING_PART
from elasticdl.job import JobSpec
from elasticdl.job_status import JobStatus, Receipt
from elasticdl.master.core import events, status_builder
from elasticdl.master.core.activities import Activities
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import Command, DropSnapshot, Purpose
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.backup_leases import BackupLeases
from elasticdl.master.core.data.beginning import (
    announce_repeated,
    continued_ledger,
    first_ledger,
)
from elasticdl.master.core.data.lease_reconciliation import LeaseReconciliation
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.shard_list import ShardPage, ShardQuery, shard_page
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.exporting import Exporting
from elasticdl.master.core.image import Plain, constants_of, image_of, restore
from elasticdl.master.core.job_context import JobContext, Limits, Phase
from elasticdl.master.core.obligations import Obligations
from elasticdl.master.core.phases import Phases
from elasticdl.master.core.presence import Presence, presence_of
from elasticdl.master.core.processes.autoscaling import Autoscaling
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.memory_limits import MemoryLimits, policies
from elasticdl.master.core.processes.pending_processes import PendingProcesses
from elasticdl.master.core.processes.process_lifecycle import ProcessLifecycle
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.progress_marks import ProgressMarks
from elasticdl.master.core.ps.coordination import CUT_LIMIT_S, PsCoordination
from elasticdl.master.core.ps.outlook import outlook_of
from elasticdl.master.core.ps.resizing import Resizing
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.core.ps.slow_servers import SlowServers
from elasticdl.master.core.ps.steps import Outlook
from elasticdl.master.core.remedies import Remedies
from elasticdl.master.core.ring.coordination import RingCoordination
from elasticdl.master.core.slow_workers import SlowWorkers
from elasticdl.master.core.stalls import Stalls
from elasticdl.master.core.state_questions import StateQuestions
from elasticdl.master.core.stragglers import Stragglers
from elasticdl.master.core.takeover import Takeover
from elasticdl.master.core.updates import UpdateMark
from elasticdl.master.core.waits import Waits
from elasticdl.shard import Applied, SnapshotId, Task

_STALL_S = 5.0
_STORY = 20


@final
class JobState:
    """One job. A Tick that yields no command changes nothing that later decisions depend on."""

    def __init__(self, spec: JobSpec, limits: Limits = Limits()) -> None:  # noqa: B008 - a frozen value
        budgets, memory = Budgets(spec.cluster.max_relaunches), MemoryLimits(policies(spec))
        self._context = JobContext(spec, budgets=budgets, memory=memory, limits=limits)
        context = self._context
        self._snapshots = Snapshots(context)
        self._evaluation = Evaluation(context, self._snapshots)
        self._checkpointing = Checkpointing(context, self._snapshots)
        self._reconciliation = LeaseReconciliation(context)
        self._exporting = Exporting(context, self._snapshots)
        self._leasing = Leasing(context, self._evaluation, self._reconciliation, self._exporting)
        # The only place that chooses a strategy; all other code sees `Coordination`.
        kind = RingCoordination if spec.trains_on_ring else PsCoordination
        self._coordination: Coordination = kind(
            context, self._leasing, self._evaluation, self._checkpointing, self._snapshots
        )
        self._cut_at = self._coordination.offsets_at(None)
        self._scaling = Scaling(context, self._evaluation, self._coordination)
        self._autoscaling = Autoscaling(
            context, self._evaluation, self._checkpointing, self._coordination
        )
        self._pending = PendingProcesses(context, self._scaling)
        activities = Activities(context, self._leasing)
        questions = StateQuestions(context)
        self._lifecycle = ProcessLifecycle(
            context, self._leasing, self._scaling, self._evaluation, self._checkpointing
        )
        self._waits = Waits(context, self._coordination, self._pending, activities)
        self._phases = Phases(
            context,
            self._scaling,
            self._evaluation,
            self._checkpointing,
            self._exporting,
            self._coordination,
            self._waits,
        )
        remedies = Remedies(
            context, self._coordination, self._leasing, self._scaling, self._lifecycle, self._phases
        )
        self._stalls = self._watch_stalls(activities, remedies, questions)
        self._slow_workers = SlowWorkers(context, self._leasing, self._scaling)
        self._slow_servers = SlowServers(context, self._checkpointing, self._scaling)
        self._backup_leases = BackupLeases(context, self._leasing, self._evaluation)
        self._stragglers = Stragglers(
            context, self._leasing, activities, self._lifecycle, remedies, self._stalls, questions
        )
        self._resizing = Resizing(
            context, self._leasing, self._scaling, self._evaluation, self._checkpointing
        )
        self._takeover = Takeover(context, self._leasing, self._evaluation, self._scaling)
        self._story: deque[events.Event] = deque(maxlen=_STORY)
        self._started: events.JobStarted | None = None

    @classmethod
    def from_image(
        cls, spec: JobSpec, limits: Limits, started: events.JobStarted, image: Plain
    ) -> JobState:
        """Return the state that an image is of. Raises ValueError for one of other code."""
        state = cls(spec, limits)
        restore(state, image, constants_of(spec, started))
        state._context.limits = limits
        return state

    def image(self, spec: JobSpec) -> Plain:
        """This state as JSON values, without `spec` and JobStarted; None before the job begins."""
        if self._started is None:
            return None
        return image_of(self, constants_of(spec, self._started))

    def _watch_stalls(
        self, activities: Activities, remedies: Remedies, questions: StateQuestions
    ) -> Stalls:
        context, evaluation, checkpointing = self._context, self._evaluation, self._checkpointing
        coordination, leasing, snapshots = self._coordination, self._leasing, self._snapshots
        obligations = Obligations(
            context, coordination, leasing, evaluation, checkpointing, snapshots
        )
        marks = ProgressMarks(context, evaluation, checkpointing)
        return Stalls(context, marks, activities, obligations, remedies, questions)

    # for readers

    @property
    def begun(self) -> bool:
        """The preflight passed: there is, or was, work to do."""
        return self._started is not None

    @property
    def started(self) -> events.JobStarted | None:
        """How the job began."""
        return self._started

    @property
    def spec(self) -> JobSpec:
        """The job, with what the preflight decided."""
        return self._context.spec

    @property
    def now_s(self) -> float:
        """The time of the newest event."""
        return self._context.now_s

    def presence(self) -> Presence:
        """Which processes are there, for a master that takes over."""
        return presence_of(self._context, self._coordination, self._checkpointing)

    @property
    def over(self) -> bool:
        """Whether the job has finished: no later event changes anything."""
        return self._context.phase is Phase.ENDED

    def status(self) -> JobStatus:
        """The current status of the job."""
        found = status_builder.status(
            self._context,
            self._coordination,
            self._pending,
            self._evaluation,
            self._checkpointing,
        )
        waiting = (*self._stalls.waits(), *self._resizing.waits(), *found.waiting)
        stall = self._stalls.status()
        return replace(found, waiting=waiting, stall=stall, moved_s=self._stalls.moved_s)

    @property
    def records_done(self) -> int:
        """Records of all epochs that are trained or bad."""
        return status_builder.records_done(self._context, self._evaluation)

    def receipt(self) -> Receipt:
        """Records by epoch and in total: expected, trained, repeated, bad, lost."""
        ledger = status_builder.main_ledger(self._context, self._evaluation)
        return status_builder.receipt(self._context, ledger)

    def step_outlook(self) -> Outlook:
        """Where further gradients of a synchronous step may come from."""
        return outlook_of(self._context, self._leasing)

    def resident(self, place: ProcessName) -> ProcessName | None:
        """Which server the platform has started, or is about to start, in the place of `place`."""
        return self._lifecycle.resident(place)

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected or already present, and not given up."""
        return self._lifecycle.may_attach(name)

    def knows(self, name: ProcessName) -> bool:
        """Whether a process of that name exists or existed."""
        return name in self._context.processes.all

    @property
    def going(self) -> tuple[ProcessName, ...]:
        """Processes that have not ended."""
        return tuple(self._context.processes.going)

    def why_not_replace(self, name: ProcessName) -> str:
        """Why a person cannot replace this process; '' if they can."""
        return self._scaling.why_not_replace(name)

    def why_not_scale(self) -> str:
        """Why changing the number of workers has no effect any more, or ''."""
        return self._scaling.why_not_scale()

    def why_not_scale_servers(self) -> str:
        """Why the number of parameter servers cannot be changed; '' if it can."""
        return self._resizing.why_not()

    @property
    def server_map(self) -> ServerMap:
        """The servers that share the parameters."""
        return self._context.server_map

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        """The map of a server, and whether it stands by until it is told what to restore."""
        return self._resizing.place_of(server)

    def why_not_checkpoint(self) -> str:
        """Why a person cannot request a checkpoint; '' if they can."""
        return self._checkpointing.why_not()

    def shards(self, wish: ShardQuery) -> ShardPage:
        """A page of the shards, for people."""
        ledgers = status_builder.ledgers(self._context, self._evaluation)
        return shard_page(ledgers, wish, self._context.now_s)

    def ledger_json(self) -> str:
        """The training ledger with all progress reported so far, as `JobStarted.ledger` takes it.

        '' if there is none.
        """
        return self._ledger_at({}, self._context.version, None)

    def _ledger_at(
        self, applied: Mapping[str, Applied], version: int, mark: UpdateMark | None
    ) -> str:
        updates = self._context.update_counts(version, mark)
        rounds = self._evaluation.rounds
        return continued_ledger(self._context, applied, self._cut_at, rounds, updates)

    # events

    def handle(self, event: events.Event) -> list[Command]:
        """Handle one event; the driver executes the returned commands in order.

        Raises ImpossibleTransition with the last events if the state contradicts itself, which is a
        bug.
        """
        self._context.now_s = event.at_s
        # Before dispatch: a failed transition must show the event that caused it.
        self._story.append(event)
        try:
            self._lifecycle.booking.saw(event)
            self._dispatch(event)
            self._decide()
            self._stragglers.saw(event)
            self._slow_workers.saw(event)
            self._slow_servers.saw(event)
            self._stalls.saw(event, self._context.orders.given)
        except ImpossibleTransition as error:
            raise ImpossibleTransition(
                f"{error}\nthe last events:\n" + "\n".join(map(repr, self._story))
            ) from error
        return self._context.orders.take()

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.ProgressReported():
                self._coordination.progressed(event)
                self._at_acknowledged()
                self._autoscaling.progressed()
            case events.LeaseRequested():
                # Decide first: a decision that is due may create the work that is requested.
                self._decide()
                self._coordination.requested(event)
            case events.Tick():
                self._tick(event)
            case events.VersionAdvanced(version=version):
                # A heartbeat may be older than what a worker has acknowledged since.
                if version >= self._context.version or self._context.version_may_fall():
                    self._at_version(version)
            case events.JobStarted():
                self._start(event)
            case events.ProcessSeen():
                self._lifecycle.seen(event)
            case events.ProcessEnded():
                self._lifecycle.ended(event)
            case events.ProcessAttached():
                self._lifecycle.attached(event)
            case events.ProcessReturned():
                self._takeover.returned(event)
            case events.ProcessSilent():
                self._lifecycle.silent(event)
            case events.CreateFailed():
                self._scaling.create_failed(event)
            case events.ScaleRequested():
                self._scaling.requested(event)
            case events.StalenessChosen():
                self._context.tell_staleness(event.worker, event.limit, event.share)
            case events.GradientDropped():
                if event.partly_applied and self._context.work is not None:
                    self._context.work.repeated_at_least = True
                self._leasing.revocation.revoke(event.worker, event.reason)
            case events.StepDelayed():
                self._context.step_delayed(event.reason, event.missing)
            case _:
                self._dispatch_more(event)

    def _dispatch_more(self, event: events.Event) -> None:
        match event:
            case events.LeaseReturned():
                self._leasing.returned(event)
            case events.TaskFailed():
                self._coordination.failed(event)
            case events.WorkerFenced():
                self._reconciliation.fenced(event)
            case events.SummaryReported():
                if self._evaluation.summarised(event) and event.stop_training:
                    self._stop_early("a callback requested it")
            case events.ExportFinished():
                self._exporting.finished(event)
            case events.WorkerStopRequested():
                if self._context.worker(event.worker) is not None:
                    self._stop_early(event.reason)
                else:
                    self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            case events.SnapshotCut():
                self._cut(event)
            case events.SnapshotSaved():
                self._checkpointing.completed(event)
                self._resizing.saved(event)
            case events.SnapshotFailed():
                self._snapshot_failed(event.snapshot, event.reason)
            case events.StartWentOn():
                self._lifecycle.went_on(event.worker, event.part)
                if event.part == GIVING_PART and self._context.worker(event.worker) is not None:
                    self._coordination.gave_initial_values(event.worker)
            case events.RingReported():
                if event.ready:
                    self._lifecycle.went_on(event.worker, "")
                self._coordination.member_reported(event)
            case events.StateReported():
                self._leasing.revocation.state_reported(event)
            case (
                events.ActivityReported()
                | events.StepsWaited()
                | events.ServerDelayed()
                | events.CpuShareReported()
                | events.PushesReported()
                | events.StepApplied()
            ):
                pass  # What sees every event takes it in: see `handle`.
            case events.ConnectionLost():
                self._coordination.lost_connection(event)
            case events.TimeReported(spent_s=spent_s):
                self._time_reported(spent_s)
            case events.MessagesDropped():
                self._context.drop(event.cause, event.name, "it dropped the message", event.count)
            case events.CheckpointRequested():
                self._checkpointing.asked(event.leaving)
            case events.ReplaceRequested():
                self._scaling.replace(event)
            case events.StopRequested():
                self._phases.stop(event)
            case _:
                self._dispatch_rare(event)

    def _dispatch_rare(self, event: events.Event) -> None:
        match event:
            case events.MasterTookOver():
                self._take_over(event)
            case events.ScaleServersRequested():
                self._resizing.requested(event)
            case events.ServerStandsBy():
                self._resizing.stands_by(event)
            case events.MasterStarted() | events.PreflightProgressed() | events.PreflightFailed():
                self._phases.preflight(event)
            case _:
                raise ImpossibleTransition(f"{event!r} is an unknown event")

    def _time_reported(self, spent_s: Mapping[str, Mapping[str, float]]) -> None:
        context = self._context
        for worker, account_s in spent_s.items():
            name = ProcessName.parse(worker)
            if not context.processes.spent(name, account_s, context.now_s):
                context.drop(DropCause.ENDED_PROCESS, name, "its account of time")

    def _decide(self) -> None:
        # The order matters: scaling reads the rounds that the steps before it open, and members and
        # addresses depend on the processes that scaling starts and stops.
        self._phases.decide()
        self._resizing.decide()
        self._coordination.decide_cuts()
        self._scaling.decide()
        self._coordination.decide_members()
        self._lifecycle.publish()

    def _tick(self, event: events.Tick) -> None:
        if event.stalled_s > _STALL_S:
            text = (
                f"the master itself did not run for {event.stalled_s:.0f} s; silence during that"
                " time is excused"
            )
            self._context.orders.announce("job", text, level="warning")
            self._lifecycle.forgive(event.stalled_s)
            self._stalls.forgive()
            self._autoscaling.forgive()
        self._lifecycle.tick()
        self._waits.tick()
        self._leasing.revocation.tick()
        self._reconciliation.tick()
        self._checkpointing.tick()
        self._stragglers.tick()
        if not self._context.servers_away():
            self._slow_workers.tick()
            self._slow_servers.tick()
            self._backup_leases.tick()
        self._stalls.tick()
        cut = self._coordination.unanswered_cut()
        if cut is not None:
            self._snapshot_failed(cut, f"no answer from the servers within {CUT_LIMIT_S:.0f} s")

    # data

    def _start(self, event: events.JobStarted) -> None:
        if self._context.phase is not Phase.STARTING:
            return
        self._started = event
        if event.sync is not None:
            self._context.spec = self._context.spec.replace(sync=event.sync)
        for reason in event.passed_over:
            self._context.orders.announce(
                "checkpoint", f"skipping a newer checkpoint: {reason}", level="warning"
            )
        announce_repeated(self._context, event)
        self._context.validation = event.validation
        self._context.version = self._context.begun_version = event.version
        self._checkpointing.start(event.version)
        self._evaluation.start(event.version)
        self._exporting.start(event.version, event.exported)
        self._coordination.begin(event.ledger, event.version)
        try:
            self._context.work = first_ledger(self._context, self._evaluation, event)
        except UserError as error:
            self._context.fail(error.message, hint=error.hint)
            return
        for piece in self._context.work.parked if self._context.work else ():
            # The resumed job parked these shards; they count towards this job's limit too.
            self._context.give_up(Task.TRAINING, piece)
        if self._context.outcome is None:
            self._phases.begin()

    def _stop_early(self, why: str) -> None:
        if self._leasing.stop_early(why):
            self._coordination.recall("ending training early")

    def _take_over(self, event: events.MasterTookOver) -> None:
        self._lifecycle.taken_over(event.away_s)
        self._takeover.begin(event)
        self._coordination.taken_over()
        self._resizing.taken_over()
        self._phases.taken_over()
        self._stalls.forgive()
        self._autoscaling.forgive()

    # snapshots

    def _at_version(self, version: int) -> None:
        # A server that has just come up counts as version 0 until its first report, but it cannot
        # be below the version that it started with. While processes end, a leaving server may
        # report a version older than its workers' last reports: that says nothing about how the job
        # ended.
        over = self._context.phase in (Phase.ENDING, Phase.ENDED)
        self._context.version = max(
            version, self._context.version if over else self._lifecycle.least_version()
        )
        self._checkpointing.version_changed()
        self._evaluation.version_changed()

    def _at_acknowledged(self) -> None:
        # Workers learn of versions earlier than heartbeats report them. Using their versions makes
        # work that is due every N steps start on time.
        acknowledged = self._context.acknowledged_version
        if acknowledged > self._context.version and not self._context.servers_away():
            self._at_version(acknowledged)

    def _cut(self, event: events.SnapshotCut) -> None:
        match self._snapshots.answered(event.snapshot):
            case Purpose.CHECKPOINT:
                self._cut_at = self._coordination.offsets_at(event.snapshot)
                mark = self._lifecycle.booking.mark(event)
                ledger = self._ledger_at(event.applied, event.version, mark)
                self._checkpointing.cut(event.snapshot, event.version, ledger, mark)
                self._resizing.cut(event.snapshot)
            case Purpose.EVALUATION:
                self._evaluation.cut(event.snapshot, event.version)
            case Purpose.EXPORT:
                self._exporting.cut(event.snapshot, event.version)
            case None:
                self._context.drop(DropCause.LATE_SNAPSHOT, None, event)
                # A ring that forms anew at a barrier cuts again, while the first copy is written.
                saving = self._checkpointing.saving
                if saving is None or saving.id != event.snapshot:
                    # Nobody will use this view, but every server keeps it until told otherwise.
                    self._context.orders.give(DropSnapshot(event.snapshot))

    def _snapshot_failed(self, snapshot: SnapshotId, reason: str) -> None:
        purpose = self._snapshots.answered(snapshot)
        self._resizing.failed(snapshot, reason)
        # Cuts and saves fail through the same event; only a checkpoint is ever saved.
        if purpose is Purpose.EVALUATION:
            if self._evaluation.round is not None and self._evaluation.round.snapshot == snapshot:
                self._evaluation.failed_cut(reason)
                return
        elif purpose is Purpose.EXPORT:
            self._exporting.failed_cut(snapshot, reason)
            return
        elif self._checkpointing.failed(snapshot, reason):
            return
        self._context.drop(DropCause.LATE_SNAPSHOT, None, f"{snapshot}: {reason}")
