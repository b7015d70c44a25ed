"""Measures the job in intervals, and carries out what `AutoscalePolicy` decides.

There is a policy for workers and one for parameter servers. While servers are tried, the number of
workers stays. If added workers wait for servers, more servers are tried before the workers are
given back.

Only reports of progress and of time change it: they are journaled, so a replay sees the same
intervals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.autoscale_decision import Decision
from elasticdl.master.core.processes.autoscale_policy import AutoscalePolicy
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.processes.throughput_windows import Interval, Pause
from elasticdl.master.core.ps.resizing import Resizing
from elasticdl.time_use import TimeUse

INTERVAL_S = 2.0
"""Least length of an interval: every worker reports about every two seconds."""
_WAITS = (TimeUse.PULL.value, TimeUse.ACKNOWLEDGEMENT.value)
"""What a worker's time goes to while it waits for servers that run."""


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
    delayed_s: float
    server_back_s: float
    first_server: int
    pause: Pause | None


@final
class _ServerWaits:
    """The share of their time that workers wait for servers."""

    def __init__(self) -> None:
        self.share: float | None = None
        """Since the report before the last one; None before the second report."""
        self._totals: deque[tuple[float, float]] = deque(maxlen=3)
        """Seconds of waiting, and of everything, in the newest reports."""

    def reported(self, spent_s: Mapping[str, float]) -> None:
        """Take in the seconds of all workers since the job began, by use."""
        self._totals.append((sum(spent_s.get(use, 0.0) for use in _WAITS), sum(spent_s.values())))
        # Over two reports: a worker that leaves reports alone.
        waited_s, all_s = (
            now - before for now, before in zip(self._totals[-1], self._totals[0], strict=True)
        )
        if all_s > 0.0:
            self.share = min(1.0, max(0.0, waited_s / all_s))


@final
class Autoscaling:
    """Does nothing without `--autoscale`."""

    def __init__(
        self,
        context: JobContext,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        coordination: Coordination,
        resizing: Resizing,
    ) -> None:
        self._context = context
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._coordination = coordination
        self._resizing = resizing
        self._workers = AutoscalePolicy(context.workers, "worker", (Pause.MEMBERS,))
        self._servers = AutoscalePolicy(
            context.server_range, "parameter server", (Pause.SERVERS, Pause.CHECKPOINT)
        )
        self._waits = _ServerWaits()
        self._first_server = context.server_map.first
        self._range = str(context.workers)
        """The range of workers when the present trial of servers began."""
        self._at_work = 0
        """The workers that servers are measured with."""
        self._keeps_servers = False
        """It was announced that this job cannot change the number of its servers."""
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

    def time_reported(self) -> None:
        """Take in what the workers' time went to."""
        if self._context.autoscaled is not None:
            self._waits.reported(self._context.processes.times.spent_s)

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
            self._checkpointing.delayed_s,
            self._context.server_back_s,
            self._context.server_map.first,
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
        self._observe(interval)
        self._context.autoscale_holds_back = self._holds_back()

    def _holds_back(self) -> str:
        """Why no other number of processes is tried now, in words; '' in a trial."""
        context, reasons = self._context, []
        if self._workers.in_trial or self._servers.in_trial:
            return ""
        if context.workers.is_open:
            reasons.append(self._workers.holds_back)
        if context.spec.autoscales_servers and context.server_range.is_open:
            why_not = self._resizing.why_not()
            keeps = f"{amount(context.servers, 'parameter server')}: {why_not}"
            reasons.append(keeps if why_not else self._servers.holds_back)
        return "; ".join(reasons)

    def _observe(self, interval: Interval) -> None:
        self._follow_servers(interval.at_s)
        waiting = self._waits.share if self._may_resize() else None
        if waiting is None or not self._servers.in_trial:
            taken = self._observe_workers(interval, waiting)
            if taken or waiting is None:
                return
        self._observe_servers(interval, waiting)

    def _follow_servers(self, at_s: float) -> None:
        """Take in that the number of servers has changed, or that a change was given up."""
        context = self._context
        if context.server_map.first != self._first_server:
            self._first_server = context.server_map.first
            self._workers.forget(at_s)
        if self._resizing.under_way:
            return
        fixed = self._servers.in_trial and not context.server_range.is_open
        if fixed or self._servers.wanted != context.servers:
            self._servers.settle(context.servers, at_s)

    def _observe_workers(self, interval: Interval, waiting: float | None) -> bool:
        """Whether the number of workers is, or now becomes, the one that is tried."""
        context, at_s = self._context, interval.at_s
        # More workers may pay with more servers only: those are tried before they are judged.
        held_back = waiting is not None and self._servers.would_try_more(waiting, at_s)
        decision = self._workers.observe(interval, context.workers, held_back=held_back)
        if decision is None:
            return self._workers.in_trial and not held_back
        context.autoscaled = decision.processes
        self._announce(decision, "workers")
        self._servers.forget(at_s)
        return True

    def _observe_servers(self, interval: Interval, waiting: float) -> None:
        context, at_s = self._context, interval.at_s
        pause = interval.pause
        if not self._servers.in_trial:
            self._range = str(context.workers)
            if pause is None and self._at_work != interval.processes:
                self._at_work = interval.processes
                self._servers.forget(at_s)
        elif pause is None and self._at_work != interval.processes:
            # Its comparison needs the workers that it began with.
            pause = Pause.OTHERS
        decision: Decision | None
        if self._servers.in_trial and str(context.workers) != self._range:
            decision = self._servers.abandon(at_s, "another number of workers was requested")
        else:
            interval = replace(interval, processes=context.servers, waiting=waiting, pause=pause)
            decision = self._servers.observe(interval, context.server_range)
        if decision is not None:
            self._announce(decision, "servers")
            self._resizing.choose(decision.processes)
            self._workers.forget(at_s)

    def _may_resize(self) -> bool:
        """Whether the number of servers is the master's choice; announce once why it cannot be."""
        context = self._context
        if not (context.spec.autoscales_servers and context.server_range.is_open):
            return False
        if why_not := self._resizing.why_not():
            if not self._keeps_servers:
                servers = amount(context.servers, "parameter server")
                text = f"autoscale: keeping {servers}: {why_not}"
                context.orders.announce("scale", text, level="warning")
            self._keeps_servers = True
            return False
        return True

    def _pause(self, work: Ledger) -> Pause | None:
        """Why the job cannot be measured now; None if it can."""
        processes = self._context.processes
        # A worker that is pending takes nothing from the others.
        starting = any(
            worker.life in (Life.STARTING, Life.READY) for worker in processes.unproven_workers()
        )
        if starting or processes.leaving_workers or not self._coordination.at_work[0]:
            return Pause.MEMBERS
        if self._evaluation.round is not None:
            return Pause.EVALUATION
        if self._checkpointing.delays:
            return Pause.CHECKPOINT
        if self._context.export is not None:
            return Pause.EXPORT
        if self._context.servers_away() or self._resizing.under_way:
            return Pause.SERVERS
        return None if work.available or work.epochs_left else Pause.DATA

    def _passed(self, work: Ledger, start: _Start) -> Pause | None:
        """A pause that began and ended since `start`."""
        end = self._begin(work, None)
        if end.members != start.members or end.live_changes != start.live_changes:
            return Pause.MEMBERS
        if end.rounds != start.rounds:
            return Pause.EVALUATION
        if end.delayed_s != start.delayed_s:
            return Pause.CHECKPOINT
        if end.next_export != start.next_export:
            return Pause.EXPORT
        other_servers = (end.server_back_s, end.first_server) != (
            start.server_back_s,
            start.first_server,
        )
        if other_servers or end.booked < start.booked:
            return Pause.SERVERS
        return None

    def _announce(self, decision: Decision, what: str) -> None:
        self._context.autoscale_reason = decision.text
        numbers = {
            f"{name}_{what}" if name in ("before", "after") else name: value
            for name, value in decision.numbers.items()
        }
        details = meaning(
            EventStep.AUTOSCALED,
            decision=str(decision.kind),
            **{what: decision.processes},
            **numbers,
        )
        self._context.orders.announce("scale", decision.text, details=details)
