"""Measures the job in intervals, and carries out what `AutoscalePolicy` decides.

Only reports of progress change it: they are journaled, so a replay sees the same intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.history.job_event import EventKind, meaning
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.autoscale_policy import (
    AutoscalePolicy,
    Decision,
)
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.processes.throughput_windows import Interval, Pause

INTERVAL_S = 2.0
"""Least length of an interval: every worker reports about every two seconds."""


@dataclass(frozen=True, slots=True)
class _Start:
    """The state in which an interval begins."""

    at_s: float
    booked: int
    members: int
    """The number of `Coordination.at_work`."""
    live_changes: int
    rounds: int
    next_export: int
    checkpoint_s: float
    server_back_s: float
    pause: Pause | None


@final
class Autoscaling:
    """Does nothing without `--autoscale`."""

    def __init__(
        self,
        context: JobContext,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        coordination: Coordination,
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._coordination = coordination
        self._policy = AutoscalePolicy(context.workers)
        self._start: _Start | None = None

    def progressed(self) -> None:
        """Close the interval if it is long enough, after a report of progress was booked."""
        context, work, start = self._context, self._context.work, self._start
        if context.autoscaled is None:
            return
        if work is None or context.phase is not Phase.WORKING or context.late():
            self._start = None
        elif start is None:
            self._start = self._begin(work, Pause.SETTLING)
        elif context.now_s - start.at_s >= INTERVAL_S:
            self._close(work, start)

    def forgive(self) -> None:
        """Drop the present interval: the master did not see all of it."""
        self._start = None

    def _begin(self, work: Ledger, pause: Pause | None) -> _Start:
        return _Start(
            self._context.now_s,
            work.booked,
            self._coordination.at_work[1],
            self._context.processes.live_changes,
            self._evaluation.rounds,
            self._context.next_export,
            self._checkpointing.over_s,
            self._context.server_back_s,
            pause,
        )

    def _close(self, work: Ledger, start: _Start) -> None:
        now_pause = self._pause(work)
        pause = start.pause or now_pause or self._passed(work, start)
        interval = Interval(
            self._context.now_s,
            self._context.now_s - start.at_s,
            max(0, work.booked - start.booked),
            self._coordination.at_work[0],
            work.remaining,
            pause,
        )
        # Reports lag behind the work, so the interval after a pause has some of it.
        settles = pause is not None and pause is not Pause.SETTLING
        self._start = self._begin(work, now_pause or (Pause.SETTLING if settles else None))
        decision = self._policy.observe(interval, self._context.workers)
        if decision is not None:
            self._carry_out(decision)

    def _pause(self, work: Ledger) -> Pause | None:
        """Why the job cannot be measured now; None if it can."""
        processes = self._context.processes
        # A worker that is pending takes nothing from the others.
        starting = any(
            one.life in (Life.STARTING, Life.READY) for one in processes.unproven_workers()
        )
        if starting or processes.leaving_workers or not self._coordination.at_work[0]:
            return Pause.MEMBERS
        if self._evaluation.round is not None:
            return Pause.EVALUATION
        if self._checkpointing.under_way:
            return Pause.CHECKPOINT
        if self._context.export is not None:
            return Pause.EXPORT
        if self._context.servers_away():
            return Pause.SERVERS
        return None if work.available or work.epochs_left else Pause.DATA

    def _passed(self, work: Ledger, start: _Start) -> Pause | None:
        """A pause that began and ended since `start`."""
        end = self._begin(work, None)
        if end.members != start.members or end.live_changes != start.live_changes:
            return Pause.MEMBERS
        if end.rounds != start.rounds:
            return Pause.EVALUATION
        if end.checkpoint_s != start.checkpoint_s:
            return Pause.CHECKPOINT
        if end.next_export != start.next_export:
            return Pause.EXPORT
        if end.server_back_s != start.server_back_s or end.booked < start.booked:
            return Pause.SERVERS
        return None

    def _carry_out(self, decision: Decision) -> None:
        self._context.autoscaled = decision.workers
        self._context.autoscale_reason = decision.text
        details = meaning(
            EventKind.AUTOSCALED,
            decision=str(decision.kind),
            workers=decision.workers,
            **decision.numbers,
        )
        self._context.orders.announce("scale", decision.text, details=details)
