"""The job's state machine: `handle(event) -> commands`.

Single-threaded and pure, so that a journal of events is enough
to bring a job back. Events of senders that are late, unknown or given up are answered, or dropped
and counted; they never raise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.errors import UserError
from elasticdl.formatting import GIVING_PART, amount
from elasticdl.job import Action, JobSpec, Shuffle
from elasticdl.master.core import events, status_builder
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import Command, DropSnapshot, GrantItem, NoLeaseNow, Purpose
from elasticdl.master.core.data.lease_reconciliation import LeaseReconciliation
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.resuming import ledger_json, resume
from elasticdl.master.core.data.shard_list import ShardPage, ShardWish, shard_page
from elasticdl.master.core.data.sharding import Plan, shard_records
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Limits, Phase
from elasticdl.master.core.obligations import Books
from elasticdl.master.core.phases import Phases
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.failures import Cause, Verdict
from elasticdl.master.core.processes.memory_limits import MemoryLimits, policies
from elasticdl.master.core.processes.pending_processes import PendingProcesses
from elasticdl.master.core.processes.process_lifecycle import ProcessLifecycle
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.ring.membership import RingMembership
from elasticdl.master.core.ring.work import RING, RingWork
from elasticdl.master.core.stalls import Actions, Stalls
from elasticdl.master.core.status import JobStatus
from elasticdl.master.core.waits import Waits
from elasticdl.shard import Applied, ShardId, SnapshotId, Source, Task

_CUT_LIMIT_S = 120.0
_STALL_S = 5.0
_STORY = 20


@final
class JobState:
    """One job. A Tick that leads to no command changes nothing that later decisions depend on."""

    def __init__(self, spec: JobSpec, limits: Limits = Limits()) -> None:  # noqa: B008 - a frozen value
        self._cut_at: dict[ShardId, int] = {}
        budgets, memory = Budgets(spec.cluster.max_relaunches), MemoryLimits(policies(spec))
        self._context = JobContext(spec, budgets=budgets, memory=memory, limits=limits)
        self._snapshots = Snapshots(self._context)
        self._evaluation = Evaluation(self._context, self._snapshots)
        self._checkpointing = Checkpointing(self._context, self._snapshots, self._ledger_at)
        self._scaling = Scaling(self._context, self._evaluation)
        self._pending = PendingProcesses(self._context, self._scaling)
        self._reconciliation = LeaseReconciliation(self._context)
        self._leasing = Leasing(self._context, self._evaluation, self._reconciliation)
        self._lifecycle = ProcessLifecycle(
            self._context, self._leasing, self._scaling, self._evaluation, self._checkpointing
        )
        self._ring_work = RingWork(
            self._context, self._evaluation, self._checkpointing, self._snapshots
        )
        self._ring = RingMembership(self._context, self._scaling, self._leasing, self._ring_work)
        self._phases = Phases(
            self._context, self._scaling, self._leasing, self._evaluation, self._checkpointing
        )
        self._join_ring()
        self._waits = Waits(self._context, self._leasing, self._evaluation)
        self._stalls = self._watch_stalls()
        self._phases.end_waits = self._end_waits
        self._story: deque[events.Event] = deque(maxlen=_STORY)

    def _watch_stalls(self) -> Stalls:
        parts = (
            self._leasing,
            self._evaluation,
            self._checkpointing,
            self._snapshots,
            self._ring_work,
            self._ring,
        )
        actions = Actions(
            self._ring.form_anew,
            lambda process, why: self._lifecycle.give_up(process, Verdict(Cause.STALLED, why)),
            self.why_not_replace,
            self._phases.stalled,
            self._leasing.errand_limit_s,
            self._leasing.limit_s,
        )
        stalls = Stalls(Books(self._context, *parts), actions)
        self._waits.busy = stalls.long_activities
        if self._context.spec.cluster.stall_seconds:
            self._lifecycle.busy = stalls.busy
        return stalls

    def _join_ring(self) -> None:
        """Let those parts ask the ring that must know of it, where there is one."""
        if not self._context.on_ring:
            return
        self._ring_work.restore = self._restore
        self._evaluation.ring_stands = lambda: self._ring_work.standing
        self._evaluation.ring_first = lambda: next(iter(self._ring.members), None)
        self._leasing.ring_progressed = self._ring_work.progressed
        self._leasing.halt_ring = self._ring_work.halt
        self._leasing.ring_names = lambda: self._ring_work.names
        self._phases.ring_idle = lambda: self._ring_work.idle

    # for readers

    @property
    def over(self) -> bool:
        """FinishJob was given: no event changes anything any more."""
        return self._context.phase is Phase.ENDED

    def status(self) -> JobStatus:
        """The job as it is now."""
        parts = status_builder.Parts(
            self._scaling, self._pending, self._leasing, self._evaluation, self._checkpointing
        )
        found = status_builder.status(self._context, parts)
        ring = self._ring.status() if self._context.on_ring else None
        waiting, stall = (*self._stalls.waits(), *found.waiting), self._stalls.status()
        return replace(found, ring=ring, waiting=waiting, stall=stall, moved_s=self._stalls.moved_s)

    def receipt(self) -> dict[str, Any]:
        """Records by epoch and in total: expected, trained, repeated, bad, lost."""
        return status_builder.receipt(
            self._context, status_builder.main_ledger(self._context, self._evaluation)
        )

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected, or there already and not given up."""
        return self._lifecycle.may_attach(name)

    def why_not_replace(self, name: ProcessName) -> str:
        """Why a process cannot be replaced because a person wants that; '' if it can."""
        why_not = self._scaling.why_not_replace(name)
        return why_not or (self._ring.why_not_replace(name) if self._context.on_ring else "")

    def why_not_scale(self) -> str:
        """Why another number of workers makes no difference any more; '' if it does."""
        return self._scaling.why_not_scale()

    def why_not_checkpoint(self) -> str:
        """Why no checkpoint can be had because a person wants one; '' if one can."""
        return self._checkpointing.why_not()

    def shards(self, wish: ShardWish) -> ShardPage:
        """Some of the shards, for people."""
        current = self._evaluation.round
        ledgers = [
            ledger
            for ledger in (self._context.work, current.ledger if current else None)
            if ledger is not None
        ]
        return shard_page(ledgers, wish, self._context.now_s)

    def ledger_json(self) -> str:
        """The training ledger with what was reported so far, as `JobStarted.ledger` takes it.

        '' if there is none.
        """
        return self._ledger_at({})

    def _ledger_at(self, applied: Mapping[str, Applied]) -> str:
        work = self._context.work
        if work is None or self._context.spec.action is not Action.TRAIN:
            return ""
        return ledger_json(
            work,
            self._context.ids,
            applied,
            ring_at=self._cut_at if self._context.on_ring else None,
            workers_used=self._context.processes.next_worker,
            rounds_used=self._evaluation.rounds,
            updates_lost=self._context.updates_lost,
        )

    # events

    def handle(self, event: events.Event) -> list[Command]:
        """Take in one event; the commands are to be carried out in order.

        Raises ImpossibleTransition, which tells the last events, if the state contradicts itself: a
        bug.
        """
        self._context.now_s = event.at_s
        self._story.append(event)
        try:
            self._dispatch(event)
            self._decide()
            self._stalls.saw(event, self._context.orders.given)
        except ImpossibleTransition as error:
            raise ImpossibleTransition(
                f"{error}\nthe last events:\n" + "\n".join(map(repr, self._story))
            ) from error
        return self._context.orders.take()

    def _dispatch(self, event: events.Event) -> None:
        match event:
            case events.ProgressReported():
                self._leasing.progressed(event)
                self._at_acknowledged()
            case events.LeaseRequested():
                # Decisions that are due come first: they may make the work that is asked for.
                self._decide()
                self._requested(event)
            case events.Tick():
                self._tick(event)
            case events.VersionAdvanced():
                self._at_version(event.version)
            case events.JobStarted():
                self._start(event)
            case events.ProcessSeen():
                self._lifecycle.seen(event)
            case events.ProcessEnded():
                self._lifecycle.ended(event)
            case events.ProcessAttached():
                self._lifecycle.attached(event)
            case events.ProcessSilent():
                self._lifecycle.silent(event)
            case events.CreateFailed():
                self._scaling.create_failed(event)
            case events.ScaleRequested():
                self._scaling.requested(event)
            case _:
                self._dispatch_more(event)

    def _dispatch_more(self, event: events.Event) -> None:
        match event:
            case events.LeaseReturned():
                self._leasing.returned(event)
            case events.TaskFailed():
                self._leasing.failed(event)
            case events.WorkerFenced():
                self._reconciliation.fenced(event)
            case events.SummaryReported():
                if self._evaluation.summarised(event) and event.stop_training:
                    self._leasing.stop_early("a callback asked for it")
            case events.ExportFinished():
                self._phases.exported(event)
            case events.StopAsked():
                if self._context.worker(event.worker) is not None:
                    self._leasing.stop_early(event.reason)
                else:
                    self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            case events.SnapshotCut():
                self._cut(event)
            case events.SnapshotSaved():
                self._checkpointing.completed(event)
            case events.SnapshotFailed():
                self._snapshot_failed(event.snapshot, event.reason)
            case events.StartWentOn():
                self._lifecycle.went_on(event.worker, event.part)
                if event.part == GIVING_PART and self._context.worker(event.worker) is not None:
                    self._given_initial_values(event.worker)
            case events.RingTold():
                if event.ready:
                    self._lifecycle.went_on(event.worker, "")
                self._ring.told(event)
            case events.ActivityTold() | events.StateTold():
                pass  # `Stalls.saw` takes them in.
            case events.ConnectionLost():
                self._ring.lost_connection(event)
            case events.MessagesDropped():
                self._context.drop(event.cause, event.name, "it has left that aside", event.count)
            case events.CheckpointRequested():
                self._checkpointing.asked()
            case events.ReplaceRequested():
                self._scaling.replace(event, self.why_not_replace(event.name))
            case events.StopRequested():
                self._phases.stop(event)
            case _:
                raise ImpossibleTransition(f"{event!r} is no event that this version knows")

    def _decide(self) -> None:
        self._phases.decide()
        self._evaluation.decide()
        self._checkpointing.decide()
        self._scaling.decide()
        if self._context.on_ring:
            self._ring.decide()
        self._lifecycle.publish()

    def _tick(self, event: events.Tick) -> None:
        if event.stalled_s > _STALL_S:
            text = (
                f"the master itself did not run for {event.stalled_s:.0f} s; nobody's silence of"
                " that time counts"
            )
            self._context.orders.announce("job", text, level="warning")
            self._lifecycle.forgive(event.stalled_s)
            self._stalls.forgive()
        self._lifecycle.tick()
        self._pending.tick()
        self._waits.tick(self._ring.waits_for() if self._context.on_ring else "")
        self._leasing.tick()
        self._reconciliation.tick()
        self._checkpointing.tick()
        self._stalls.tick()
        cutting = self._snapshots.cutting if not self._context.on_ring else None
        if cutting is not None and self._context.now_s - cutting.since_s > _CUT_LIMIT_S:
            self._snapshot_failed(
                cutting.id, f"no answer from the servers within {_CUT_LIMIT_S:.0f} s"
            )

    def _end_waits(self) -> None:
        """All waits end with the job: its last processes may end before the next look."""
        self._pending.tick()
        self._waits.end()
        self._stalls.end()

    # data

    def _start(self, event: events.JobStarted) -> None:
        if self._context.phase is not Phase.STARTING:
            return
        for reason in event.passed_over:
            self._context.orders.announce(
                "checkpoint", f"a newer checkpoint is passed over: {reason}", level="warning"
            )
        self._context.validation = event.validation
        self._context.version = event.version
        self._checkpointing.start(event.version)
        self._evaluation.start(event.version)
        self._ring_work.begun_with, self._ring_work.begun_version = event.ledger, event.version
        try:
            self._context.work = self._ledger(event)
        except UserError as error:
            self._context.fail(error.message, hint=error.hint)
            return
        for piece in self._context.work.parked if self._context.work else ():
            # Of the job that is gone on with: they count for the limit of this one.
            self._context.give_up(Task.TRAINING, piece)
        if self._context.outcome is None:
            self._phases.begin()

    def _ledger(self, event: events.JobStarted) -> Ledger | None:
        data, ids = self._context.spec.data, self._context.ids
        match self._context.spec.action:
            case Action.EVALUATE:
                return None
            case Action.PREDICT:
                return Ledger(self._plan(event.prediction), ids, task=Task.PREDICTION)
            case Action.TRAIN if event.ledger:
                resumed = resume(event.ledger, event.training, data.num_epochs, ids)
                self._context.processes.next_worker = max(
                    self._context.processes.next_worker, resumed.workers_used
                )
                self._evaluation.rounds = resumed.rounds_used
                self._context.updates_lost = resumed.updates_lost
                return resumed.ledger
            case Action.TRAIN:
                return Ledger(
                    self._plan(event.training, data.num_epochs, data.shuffle),
                    ids,
                    task=Task.TRAINING,
                )

    def _plan(
        self, sources: tuple[Source, ...], epochs: int = 1, shuffle: Shuffle = Shuffle.NONE
    ) -> Plan:
        data, workers = self._context.spec.data, self._context.spec.cluster.num_workers.high
        size = shard_records(data, sum(source.records for source in sources), workers)
        return Plan(sources, size, epochs, shuffle, data.seed)

    # the ring

    def _requested(self, event: events.LeaseRequested) -> None:
        process = self._context.worker(event.worker)
        ready = (
            process is not None
            and process.life is Life.READY
            and self._context.phase not in (Phase.ENDING, Phase.ENDED)
        )
        if not self._context.on_ring or not ready:
            self._leasing.requested(event)
        elif event.worker not in self._ring.members:
            present = self._ring_work.present(event.ring_number)
            if present is not None:
                self._context.orders.give(GrantItem(event.worker, present))
                return
            self._context.orders.give(
                NoLeaseNow(event.worker, f"not in the ring: {self._ring.reason}")
            )
        elif not (event.at_mark and self._ring_work.standing and self._leasing.apart(event)):
            item = self._ring_work.item(event.ring_number)
            if item is not None:
                self._context.orders.give(GrantItem(event.worker, item))
            else:
                reason = self._ring_work.halting or self._leasing.idle_reason()
                self._context.orders.give(NoLeaseNow(event.worker, f"the ring waits: {reason}"))

    def _restore(self, ledger: str) -> int:
        """The ledger of a checkpoint ('' for none) in the place of the present one; returns the
        records trained in vain.
        """
        context, before = self._context, self._context.work
        assert before is not None
        if ledger:
            again = resume(
                ledger, before.plan.sources, context.spec.data.num_epochs, context.ids
            ).ledger
        else:
            again = Ledger(before.plan, context.ids, task=Task.TRAINING)
        vain = again.replaces(before, RING)
        context.work = again
        if not again.finished:
            self._phases.work_again("the weights were lost: training goes on")
        return vain

    def _given_initial_values(self, worker: ProcessName) -> None:
        """No worker was left that could revive a server that came back empty.

        When all is trained, it is trained again.

        While records are left, training goes on with what there is: that costs updates, which are
        counted, but no records.
        """
        context = self._context
        late = (
            context.phase in (Phase.EVALUATING, Phase.CHECKPOINTING, Phase.EXPORTING)
            and context.outcome is None
        )
        if (
            not late
            or context.on_ring
            or context.work is None
            or context.spec.action is not Action.TRAIN
        ):
            return
        servers = (context.processes.server(index) for index in range(context.servers))
        if not any(
            server and server.name.incarnation and not server.restored_version for server in servers
        ):
            return  # A late report: these were the values that the job began with.
        for process in tuple(context.processes.workers()):
            self._leasing.revoke(process.name, "all is trained again")
        self._evaluation.abandon()
        repeated = self._restore("")
        # A surviving server may be ahead: versions count from what all servers have.
        context.version = context.acknowledged_version = context.updates_lost = 0
        context.server_back_s = context.now_s
        self._checkpointing.rolled_back(0)
        self._evaluation.version_changed()
        text = (
            "the trained weights went with a parameter server and with every worker that had them,"
            f" and there is no checkpoint (--checkpoint-steps): {amount(repeated, 'record')} to be"
            " trained again"
        )
        details = {"repeated": repeated, "version": 0}
        context.orders.announce("server", text, process=worker, level="warning", details=details)

    # snapshots

    def _at_version(self, version: int) -> None:
        # A server that has just come up is counted with version 0 until its first report: it cannot
        # be below its start. What a server that leaves told before its workers' last reports says
        # nothing of how the job ended.
        over = self._context.phase in (Phase.ENDING, Phase.ENDED)
        self._context.version = max(
            version, self._context.version if over else self._lifecycle.least_version()
        )
        self._checkpointing.version_changed()
        self._evaluation.version_changed()

    def _at_acknowledged(self) -> None:
        # Workers hear of versions sooner than heartbeats tell them: what is due by steps comes when
        # it is due.
        if (
            self._context.acknowledged_version > self._context.version
            and not self._context.servers_away()
        ):
            self._at_version(self._context.acknowledged_version)

    def _cut(self, event: events.SnapshotCut) -> None:
        match self._snapshots.answered(event.snapshot):
            case Purpose.CHECKPOINT:
                self._cut_at = self._ring_work.offsets_at(event.snapshot)
                self._checkpointing.cut(event.snapshot, event.version, event.applied)
            case Purpose.EVALUATION:
                self._evaluation.cut(event.snapshot, event.version)
            case None:
                self._context.drop(DropCause.LATE_SNAPSHOT, None, event)
                self._context.orders.give(DropSnapshot(event.snapshot))

    def _snapshot_failed(self, snapshot: SnapshotId, reason: str) -> None:
        purpose = self._snapshots.answered(snapshot)
        if purpose is Purpose.EVALUATION:
            if self._evaluation.round is not None and self._evaluation.round.snapshot == snapshot:
                self._evaluation.failed_cut(reason)
                return
        elif self._checkpointing.failed(snapshot, reason):
            return
        self._context.drop(DropCause.LATE_SNAPSHOT, None, f"{snapshot}: {reason}")
