"""Builds the parts of the core, each with the other parts that it uses."""

from __future__ import annotations

from typing import final

from elasticdl.job import JobSpec
from elasticdl.master.core.activities import Activities
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.backup_leases import BackupLeases
from elasticdl.master.core.data.lease_reconciliation import LeaseReconciliation
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.exporting import Exporting
from elasticdl.master.core.job_context import JobContext, Limits
from elasticdl.master.core.obligations import Obligations
from elasticdl.master.core.phases import Phases
from elasticdl.master.core.processes.autoscaling import Autoscaling
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.memory_limits import MemoryLimits, policies
from elasticdl.master.core.processes.pending_processes import PendingProcesses
from elasticdl.master.core.processes.process_ends import ProcessEnds
from elasticdl.master.core.processes.process_lifecycle import ProcessLifecycle
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.progress_marks import ProgressMarks
from elasticdl.master.core.ps.coordination import PsCoordination
from elasticdl.master.core.ps.resizing import Resizing
from elasticdl.master.core.ps.rolling_back import RollingBack
from elasticdl.master.core.ps.slow_servers import SlowServers
from elasticdl.master.core.ps.staleness import Staleness
from elasticdl.master.core.remedies import Remedies
from elasticdl.master.core.ring.coordination import RingCoordination
from elasticdl.master.core.slow_workers import SlowWorkers
from elasticdl.master.core.stalls import Stalls
from elasticdl.master.core.state_questions import StateQuestions
from elasticdl.master.core.stragglers import Stragglers
from elasticdl.master.core.takeover import Takeover
from elasticdl.master.core.waits import Waits


@final
class Parts:
    """The parts of one job, which share `context`. None of them knows `JobState`."""

    def __init__(self, spec: JobSpec, limits: Limits) -> None:
        budgets, memory = Budgets(spec.cluster.max_relaunches), MemoryLimits(policies(spec))
        context = self.context = JobContext(spec, budgets=budgets, memory=memory, limits=limits)
        self.snapshots = Snapshots(context)
        self.evaluation = Evaluation(context, self.snapshots)
        self.checkpointing = Checkpointing(context, self.snapshots)
        self.reconciliation = LeaseReconciliation(context)
        self.exporting = Exporting(context, self.snapshots)
        self.staleness = Staleness(context)
        self.leasing = Leasing(
            context, self.evaluation, self.reconciliation, self.exporting, self.staleness
        )
        # The only place that chooses a strategy; all other code sees `Coordination`.
        kind = RingCoordination if spec.trains_on_ring else PsCoordination
        self.coordination: Coordination = kind(
            context, self.leasing, self.evaluation, self.checkpointing, self.snapshots
        )
        activities = Activities(context, self.leasing)
        self._build_processes(activities)
        self.takeover = Takeover(context, self.leasing, self.evaluation, self.scaling)
        self.waits = Waits(context, self.coordination, self.pending, activities)
        self.phases = Phases(
            context,
            self.scaling,
            self.evaluation,
            self.checkpointing,
            self.exporting,
            self.coordination,
            self.waits,
        )
        self._build_watches(activities)

    def _build_processes(self, activities: Activities) -> None:
        """Build what starts processes, and what handles their starts and ends."""
        context, leasing, evaluation = self.context, self.leasing, self.evaluation
        checkpointing, coordination = self.checkpointing, self.coordination
        scaling = self.scaling = Scaling(context, evaluation, coordination)
        self.pending = PendingProcesses(context, scaling)
        self.ends = ProcessEnds(context, leasing, scaling, evaluation, activities)
        self.rolling_back = RollingBack(context, leasing, evaluation, checkpointing, self.ends)
        self.lifecycle = ProcessLifecycle(
            context, scaling, evaluation, checkpointing, self.ends, self.rolling_back
        )
        self.resizing = Resizing(context, leasing, scaling, evaluation, checkpointing)
        self.autoscaling = Autoscaling(
            context, evaluation, checkpointing, coordination, self.resizing
        )

    def _build_watches(self, activities: Activities) -> None:
        """Build what looks for stalls and for processes that hold the others up."""
        context, leasing, coordination = self.context, self.leasing, self.coordination
        evaluation, checkpointing = self.evaluation, self.checkpointing
        remedies = Remedies(context, coordination, leasing, self.scaling, self.ends, self.phases)
        questions = StateQuestions(context)
        obligations = Obligations(
            context, coordination, leasing, evaluation, checkpointing, self.snapshots
        )
        marks = ProgressMarks(context, evaluation, checkpointing)
        self.stalls = Stalls(context, marks, activities, obligations, remedies, questions)
        self.slow_workers = SlowWorkers(context, leasing, self.scaling)
        self.slow_servers = SlowServers(context, checkpointing, self.scaling)
        self.backup_leases = BackupLeases(context, leasing, evaluation)
        self.stragglers = Stragglers(context, leasing, activities, remedies, self.stalls, questions)
