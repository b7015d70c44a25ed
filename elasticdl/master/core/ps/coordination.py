"""Training with parameter servers: each worker trains independently on its leased shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.formatting import amount
from elasticdl.history.awaited import Awaited
from elasticdl.job_choices import Action
from elasticdl.job_status import RingStatus
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import OpenCut, Snapshots
from elasticdl.master.core.commands import KeepSnapshots
from elasticdl.master.core.data.lease_obligations import lease_obligations
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.data.rollback import restore_ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import (
    ConnectionLost,
    LeaseRequested,
    ProgressReported,
    RingReported,
    TaskFailed,
)
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import LeaseKey, Obligation, listed
from elasticdl.shard import ShardId, SnapshotId

CUT_LIMIT_S = 120.0
"""Time for all servers to freeze a view; gates that they close meanwhile open by themselves."""


@final
class PsCoordination:
    """The servers have the weights, and workers lease what they train on.

    It also covers jobs that do not train, without servers if the strategy has none.
    """

    weights_outlive_workers = True
    limited_by_shards = True
    can_form_again = False

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        snapshots: Snapshots,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._snapshots = snapshots

    # leases and reports

    def requested(self, event: LeaseRequested) -> None:
        self._leasing.requested(event)

    def progressed(self, event: ProgressReported) -> None:
        self._leasing.progressed(event)

    def failed(self, event: TaskFailed) -> None:
        self._leasing.failed(event)

    def recall(self, why: str) -> None:
        held = self._context.work.held.values() if self._context.work else ()
        for name in dict.fromkeys(lease.worker for lease in held if lease.stage is Stage.LEASED):
            self._leasing.revocation.revoke(name, why)

    def unknown_leases(self, reported: set[LeaseKey], held: set[LeaseKey]) -> set[LeaseKey]:
        return reported - held

    # the course of the job

    def begin(self, ledger: str, version: int) -> None:
        """Nothing to do: the servers know what they begin with."""

    def taken_over(self) -> None:
        saving, exporting = self._checkpointing.saving, self._leasing.exporting
        wanted = (
            saving.id if saving is not None else None,
            self._evaluation.view,
            exporting.view,
        )
        self._context.orders.give(
            KeepSnapshots(tuple(snapshot for snapshot in wanted if snapshot is not None))
        )
        if renamed := self._snapshots.take_again():
            self._evaluation.recut(*renamed)
            self._checkpointing.recut(*renamed)
            exporting.recut(*renamed)
        self._checkpointing.save_again()

    def decide_cuts(self) -> None:
        if self._context.moving:
            # The servers are sealed, and their views would be lost with them.
            return
        if self._context.pushes_awaited():
            # A view must not lack what comes in a moment. But a server that leaves cannot wait.
            if self._checkpointing.server_leaves:
                self._checkpointing.decide()
            return
        if self._evaluation.wanted():
            self._evaluation.begin()
        self._checkpointing.decide()
        self._leasing.exporting.decide()

    def decide_members(self) -> None:
        """Nothing to do: workers train independently."""

    def halt(self, why: str) -> str:
        return ""

    def drained(self) -> str:
        work = self._context.work
        if any(True for _ in self._context.processes.workers()) or (work and work.held):
            return ""
        return "all workers have exited"

    def not_halted(self) -> tuple[ProcessName, ...]:
        return ()

    def weights_away(self) -> str:
        return self._context.servers_away()

    # checkpoints

    def offsets_at(self, snapshot: SnapshotId | None) -> Mapping[ShardId, int] | None:
        return None

    def unanswered_cut(self) -> SnapshotId | None:
        open_cut = self._snapshots.open_cut
        overdue = open_cut is not None and self._context.now_s - open_cut.since_s > CUT_LIMIT_S
        return open_cut.id if open_cut is not None and overdue else None

    # processes

    @property
    def at_work(self) -> tuple[int, int]:
        processes = self._context.processes
        live, unproven = len(processes.live_workers()), len(processes.unproven_workers())
        return live - unproven, processes.live_changes

    def why_not_replace(self, name: ProcessName) -> str | None:
        return None

    def gave_initial_values(self, worker: ProcessName) -> None:
        """Train again if no worker was left that could restore a server that came back empty.

        A fully trained job trains everything again. While records are left, training continues with
        the remaining values: that costs updates, which are counted, but no records.
        """
        context = self._context
        late = context.phase in (Phase.EVALUATING, Phase.CHECKPOINTING, Phase.EXPORTING)
        trains = context.work is not None and context.spec.action is Action.TRAIN
        if not late or context.outcome is not None or not trains:
            return
        servers = (context.processes.server(index) for index in context.server_map.indices)
        if not any(
            server and server.name.incarnation and not server.restored_version for server in servers
        ):
            return  # A late report of the initial values.
        for process in tuple(context.processes.workers()):
            self._leasing.revocation.revoke(process.name, "training restarts")
        self._evaluation.abandon()
        repeated = restore_ledger(context, self._evaluation, "", worker)
        # A surviving server may be ahead: versions count from what all servers have.
        context.version = context.acknowledged_version = 0
        context.updates.begin_again()
        context.server_back_s = context.now_s
        self._checkpointing.rolled_back(0)
        self._evaluation.rolled_back(0)
        text = (
            "a parameter server and all workers that had the trained weights are gone, and there is"
            f" no checkpoint (--checkpoint-seconds): training {amount(repeated, 'record')} again"
        )
        details = {"repeated": repeated, "version": 0}
        context.orders.announce("server", text, process=worker, level="warning", details=details)

    def member_reported(self, event: RingReported) -> None:
        self._context.drop(DropCause.UNKNOWN_GENERATION, event.worker, event)

    def lost_connection(self, event: ConnectionLost) -> None:
        """Nothing to do: the process may reconnect; otherwise its silence or its end counts."""

    # waits

    def status(self) -> RingStatus | None:
        return None

    def waits_for(self) -> Mapping[Awaited, str]:
        idle, delay = self._why_idle(), self._context.step_delay
        names = self._context.who_pushes_again() if self._wants_view() else ()
        again = f"{listed(names)} may push again what a server lost" if names else ""
        all_waits = {Awaited.WORK: idle, Awaited.STEP: delay, Awaited.PUSHES: again}
        return {what: reason for what, reason in all_waits.items() if reason}

    def _wants_view(self) -> bool:
        checkpointing = self._checkpointing
        return bool(checkpointing.wanted) or checkpointing.due_by_time or self._evaluation.wanted()

    def _why_idle(self) -> str:
        """Why a ready worker has nothing to do.

        '' if every ready worker has work, or could get some by asking.
        """
        context, work, current = self._context, self._context.work, self._evaluation.round
        if (
            context.phase is Phase.WORKING
            and work is not None
            and (work.available or not work.held)
        ):
            return ""
        busy = {
            held.worker
            for ledger in (work, current.ledger if current else None)
            if ledger
            for held in ledger.held.values()
            if held.stage is not Stage.CLOSING
        }
        export = context.export.task if context.export else None
        singletons = (current.summary if current else None, export)
        busy |= {task.holder for task in singletons if task and task.holder}
        workers = context.processes.live_workers()
        idle = any(worker.up and worker.name not in busy for worker in workers)
        return self._leasing.idle_reason() if idle else ""

    def idle(self) -> Iterator[str]:
        if not (names := self._leasing.idle_workers()):
            return
        away = self._context.servers_away()
        # Once for all of them: it looks at every held shard.
        why = f"waiting for parameter servers: {away}" if away else self._leasing.idle_reason()
        for name in names:
            yield f"{name} is idle: {why}"

    def owed(self) -> Iterator[Obligation]:
        context = self._context
        if context.work is not None:
            yield from lease_obligations(context, self._leasing, context.work)
        leaving = tuple(process.name for process in context.processes.workers())
        if context.phase is Phase.DRAINING and leaving:
            yield Obligation("workers to exit", leaving, context.phase_since_s, limited=True)

    def owed_cut(self, open_cut: OpenCut | None) -> Obligation:
        servers, problem = self.weight_holders(), self._checkpointing.last_problem
        if open_cut is not None:
            return Obligation("the frozen view for a checkpoint", servers, open_cut.since_s)
        return Obligation(
            "the last checkpoint to begin",
            servers,
            self._context.phase_since_s,
            f"the last attempt failed: {problem}" if problem else "",
            # Failed tries are repeated after a pause that grows, five times.
            limited=bool(problem),
        )

    def weight_holders(self) -> tuple[ProcessName, ...]:
        return self._context.server_names()

    def booked_all(self) -> bool:
        """Always true: the cut itself says what the servers have of each worker."""
        return True

    def form_again(self, why: str) -> None:
        raise AssertionError("workers of parameter servers form no generations")
