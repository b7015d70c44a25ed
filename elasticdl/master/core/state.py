"""The job's state machine: `handle(event) -> commands`. Single-threaded and pure, so that a journal of events is enough
to bring a job back. Events of senders that are late, unknown or given up are ignored or answered; they never raise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import UserError
from elasticdl.job import Action, JobSpec, Shuffle
from elasticdl.master.core import events, view
from elasticdl.master.core.budgets import Budgets
from elasticdl.master.core.checkpointing import Checkpointing
from elasticdl.master.core.commands import Command, DropSnapshot, GrantItem, NoLeaseNow, Purpose
from elasticdl.master.core.cutting import Plan, shard_records
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.flow import Flow
from elasticdl.master.core.leasing import Leasing
from elasticdl.master.core.membership import Membership
from elasticdl.master.core.memory import Memory, policies
from elasticdl.master.core.orders import ImpossibleTransition
from elasticdl.master.core.parts import Facts, Limits, Phase
from elasticdl.master.core.placement import Placement
from elasticdl.master.core.processes import Life
from elasticdl.master.core.resuming import ledger_json, resume
from elasticdl.master.core.ring_membership import RingMembership
from elasticdl.master.core.ring_work import RING, RingWork
from elasticdl.master.core.scaling import Scaling
from elasticdl.master.core.settlement import Settlement
from elasticdl.master.core.shard_list import ShardPage, ShardWish, shard_page
from elasticdl.master.core.shards import Ledger
from elasticdl.master.core.snapshots import Snapshots
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
        budgets, memory = Budgets(spec.cluster.max_relaunches), Memory(policies(spec))
        self._facts = Facts(spec, budgets=budgets, memory=memory, limits=limits)
        self._snapshots = Snapshots(self._facts)
        self._evaluation = Evaluation(self._facts, self._snapshots)
        self._checkpointing = Checkpointing(self._facts, self._snapshots, self._ledger_at)
        self._scaling = Scaling(self._facts, self._evaluation)
        self._placement = Placement(self._facts, self._scaling)
        self._settlement = Settlement(self._facts)
        self._leasing = Leasing(self._facts, self._evaluation, self._settlement)
        self._membership = Membership(self._facts, self._leasing, self._scaling, self._evaluation, self._checkpointing)
        self._ring_work = RingWork(self._facts, self._evaluation, self._checkpointing, self._snapshots)
        self._ring = RingMembership(self._facts, self._scaling, self._leasing, self._ring_work)
        self._flow = Flow(self._facts, self._scaling, self._leasing, self._evaluation, self._checkpointing)
        self._join_ring()
        self._waits = Waits(self._facts, self._leasing, self._evaluation)
        self._flow.end_waits = self._end_waits
        self._story: deque[events.Event] = deque(maxlen=_STORY)

    def _join_ring(self) -> None:
        """Let those parts ask the ring that must know of it, where there is one."""
        if not self._facts.on_ring:
            return
        self._ring_work.restore = self._restore
        self._evaluation.ring_stands = lambda: self._ring_work.standing
        self._evaluation.ring_first = lambda: next(iter(self._ring.members), None)
        self._leasing.ring_progressed = self._ring_work.progressed
        self._leasing.halt_ring = self._ring_work.halt
        self._leasing.ring_names = lambda: self._ring_work.names
        self._flow.ring_idle = lambda: self._ring_work.idle

    # -- for readers --------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """FinishJob was given: no event changes anything any more."""
        return self._facts.phase is Phase.ENDED

    def status(self) -> JobStatus:
        """The job as it is now."""
        parts = view.Parts(self._scaling, self._placement, self._leasing, self._evaluation, self._checkpointing)
        found = view.status(self._facts, parts)
        return replace(found, ring=self._ring.status()) if self._facts.on_ring else found

    def receipt(self) -> dict[str, Any]:
        """Records by epoch and in total: expected, trained, repeated, bad, lost."""
        return view.receipt(self._facts, view.main_ledger(self._facts, self._evaluation))

    def may_attach(self, name: ProcessName) -> bool:
        """Whether a process of that name is expected, or there already and not given up."""
        return self._membership.may_attach(name)

    def why_not_replace(self, name: ProcessName) -> str:
        """Why a process cannot be replaced because a person wants that; '' if it can."""
        why_not = self._scaling.why_not_replace(name)
        return why_not or (self._ring.why_not_replace(name) if self._facts.on_ring else "")

    def why_not_scale(self) -> str:
        """Why another number of workers makes no difference any more; '' if it does."""
        return self._scaling.why_not_scale()

    def why_not_checkpoint(self) -> str:
        """Why no checkpoint can be had because a person wants one; '' if one can."""
        return self._checkpointing.why_not()

    def shards(self, wish: ShardWish) -> ShardPage:
        """Some of the shards, for people."""
        current = self._evaluation.round
        ledgers = [ledger for ledger in (self._facts.work, current.ledger if current else None) if ledger is not None]
        return shard_page(ledgers, wish, self._facts.now_s)

    def ledger_json(self) -> str:
        """The training ledger with what was reported so far, as `JobStarted.ledger` takes it. '' if there is none."""
        return self._ledger_at({})

    def _ledger_at(self, applied: Mapping[str, Applied]) -> str:
        work = self._facts.work
        if work is None or self._facts.spec.action is not Action.TRAIN:
            return ""
        return ledger_json(
            work,
            self._facts.ids,
            applied,
            ring_at=self._cut_at if self._facts.on_ring else None,
            workers_used=self._facts.processes.next_worker,
            rounds_used=self._evaluation.rounds,
            updates_lost=self._facts.updates_lost,
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[Command]:
        """Take in one event; the commands are to be carried out in order.

        Raises ImpossibleTransition, which tells the last events, if the state contradicts itself: a bug.
        """
        self._facts.now_s = event.at_s
        self._story.append(event)
        try:
            self._dispatch(event)
            self._decide()
        except ImpossibleTransition as error:
            raise ImpossibleTransition(f"{error}\nthe last events:\n" + "\n".join(map(repr, self._story))) from error
        return self._facts.orders.take()

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
                self._membership.seen(event)
            case events.ProcessEnded():
                self._membership.ended(event)
            case events.ProcessAttached():
                self._membership.attached(event)
            case events.ProcessSilent():
                self._membership.silent(event)
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
                self._settlement.fenced(event)
            case events.SummaryReported():
                if self._evaluation.summarised(event) and event.stop_training:
                    self._leasing.stop_early("a callback asked for it")
            case events.ExportFinished():
                self._flow.exported(event)
            case events.StopAsked():
                if self._facts.worker(event.worker) is not None:
                    self._leasing.stop_early(event.reason)
            case events.SnapshotCut():
                self._cut(event)
            case events.SnapshotSaved():
                self._checkpointing.completed(event)
            case events.SnapshotFailed():
                self._snapshot_failed(event.snapshot, event.reason)
            case events.StartWentOn():
                self._membership.went_on(event.worker, event.part)
            case events.RingTold():
                if event.ready:
                    self._membership.went_on(event.worker, "")
                self._ring.told(event)
            case events.ConnectionLost():
                self._ring.lost_connection(event)
            case events.CheckpointRequested():
                self._checkpointing.asked()
            case events.ReplaceRequested():
                self._scaling.replace(event, self.why_not_replace(event.name))
            case events.StopRequested():
                self._flow.stop(event)
            case _:
                raise ImpossibleTransition(f"{event!r} is no event that this version knows")

    def _decide(self) -> None:
        self._flow.decide()
        self._evaluation.decide()
        self._checkpointing.decide()
        self._scaling.decide()
        if self._facts.on_ring:
            self._ring.decide()
        self._membership.publish()

    def _tick(self, event: events.Tick) -> None:
        if event.stalled_s > _STALL_S:
            text = f"the master itself did not run for {event.stalled_s:.0f} s; nobody's silence of that time counts"
            self._facts.orders.announce("job", text, level="warning")
            self._membership.forgive(event.stalled_s)
        self._membership.tick()
        self._placement.tick()
        self._waits.tick(self._ring.waits_for() if self._facts.on_ring else "")
        self._leasing.tick()
        self._settlement.tick()
        self._checkpointing.tick()
        cutting = self._snapshots.cutting if not self._facts.on_ring else None
        if cutting is not None and self._facts.now_s - cutting.since_s > _CUT_LIMIT_S:
            self._snapshot_failed(cutting.id, f"no answer from the servers within {_CUT_LIMIT_S:.0f} s")

    def _end_waits(self) -> None:
        """All waits end with the job: its last processes may end before the next look."""
        self._placement.tick()
        self._waits.end()

    # -- data ---------------------------------------------------------------------------------------------------------

    def _start(self, event: events.JobStarted) -> None:
        if self._facts.phase is not Phase.STARTING:
            return
        for reason in event.passed_over:
            self._facts.orders.announce("checkpoint", f"a newer checkpoint is passed over: {reason}", level="warning")
        self._facts.validation = event.validation
        self._facts.version = event.version
        self._checkpointing.start(event.version)
        self._evaluation.start(event.version)
        self._ring_work.begun_with, self._ring_work.begun_version = event.ledger, event.version
        try:
            self._facts.work = self._ledger(event)
        except UserError as error:
            self._facts.fail(error.message, hint=error.hint)
            return
        for piece in self._facts.work.parked if self._facts.work else ():
            # Of the job that is gone on with: they count for the limit of this one.
            self._facts.give_up(Task.TRAINING, piece)
        if self._facts.outcome is None:
            self._flow.begin()

    def _ledger(self, event: events.JobStarted) -> Ledger | None:
        data, ids = self._facts.spec.data, self._facts.ids
        match self._facts.spec.action:
            case Action.EVALUATE:
                return None
            case Action.PREDICT:
                return Ledger(self._plan(event.prediction), ids, task=Task.PREDICTION)
            case Action.TRAIN if event.ledger:
                resumed = resume(event.ledger, event.training, data.num_epochs, ids)
                self._facts.processes.next_worker = max(self._facts.processes.next_worker, resumed.workers_used)
                self._evaluation.rounds = resumed.rounds_used
                self._facts.updates_lost = resumed.updates_lost
                return resumed.ledger
            case Action.TRAIN:
                return Ledger(self._plan(event.training, data.num_epochs, data.shuffle), ids, task=Task.TRAINING)

    def _plan(self, sources: tuple[Source, ...], epochs: int = 1, shuffle: Shuffle = Shuffle.NONE) -> Plan:
        data, workers = self._facts.spec.data, self._facts.spec.cluster.num_workers.high
        size = shard_records(data, sum(source.records for source in sources), workers)
        return Plan(sources, size, epochs, shuffle, data.seed)

    # -- the ring -----------------------------------------------------------------------------------------------------

    def _requested(self, event: events.LeaseRequested) -> None:
        process = self._facts.worker(event.worker)
        ready = process is not None and process.life is Life.READY and self._facts.phase not in (Phase.ENDING, Phase.ENDED)
        if not self._facts.on_ring or not ready:
            self._leasing.requested(event)
        elif event.worker not in self._ring.members:
            present = self._ring_work.present(event.ring_number)
            if present is not None:
                self._facts.orders.give(GrantItem(event.worker, present))
                return
            self._facts.orders.give(NoLeaseNow(event.worker, f"not in the ring: {self._ring.reason}"))
        elif not (event.at_mark and self._ring_work.standing and self._leasing.apart(event)):
            item = self._ring_work.item(event.ring_number)
            if item is not None:
                self._facts.orders.give(GrantItem(event.worker, item))
            else:
                reason = self._ring_work.halting or self._leasing.idle_reason()
                self._facts.orders.give(NoLeaseNow(event.worker, f"the ring waits: {reason}"))

    def _restore(self, ledger: str) -> int:
        """The ledger of a checkpoint ('' for none) in the place of the present one; returns the records trained in vain."""
        facts, before = self._facts, self._facts.work
        assert before is not None
        if ledger:
            again = resume(ledger, before.plan.sources, facts.spec.data.num_epochs, facts.ids).ledger
        else:
            again = Ledger(before.plan, facts.ids, task=Task.TRAINING)
        vain = again.replaces(before, RING)
        facts.work = again
        if not again.finished:
            self._flow.work_again("the weights were lost: training goes on")
        return vain

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _at_version(self, version: int) -> None:
        # A server that has just come up is counted with version 0 until its first report: it cannot be below its start.
        # What a server that leaves told before its workers' last reports says nothing of how the job ended.
        over = self._facts.phase in (Phase.ENDING, Phase.ENDED)
        self._facts.version = max(version, self._facts.version if over else self._membership.least_version())
        self._checkpointing.version_changed()
        self._evaluation.version_changed()

    def _at_acknowledged(self) -> None:
        # Workers hear of versions sooner than heartbeats tell them: what is due by steps comes when it is due.
        if self._facts.acknowledged_version > self._facts.version and not self._facts.servers_away():
            self._at_version(self._facts.acknowledged_version)

    def _cut(self, event: events.SnapshotCut) -> None:
        match self._snapshots.answered(event.snapshot):
            case Purpose.CHECKPOINT:
                self._cut_at = self._ring_work.offsets_at(event.snapshot)
                self._checkpointing.cut(event.snapshot, event.version, event.applied)
            case Purpose.EVALUATION:
                self._evaluation.cut(event.snapshot, event.version)
            case None:
                self._facts.orders.give(DropSnapshot(event.snapshot))

    def _snapshot_failed(self, snapshot: SnapshotId, reason: str) -> None:
        purpose = self._snapshots.answered(snapshot)
        if purpose is Purpose.EVALUATION:
            if self._evaluation.round is not None and self._evaluation.round.snapshot == snapshot:
                self._evaluation.failed_cut(reason)
        else:
            self._checkpointing.failed(snapshot, reason)
