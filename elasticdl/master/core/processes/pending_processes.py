"""Which processes are not placed yet, and why: one sentence per role, announced when it changes.

Training proceeds with the workers that are there, from the first one on, so missing workers have no
deadline. Without all of its parameter servers no job can train.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.formatting import amount
from elasticdl.history.awaited import Awaited
from elasticdl.history.job_event import EventStep, Value, meaning
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.reason_times import ReasonTimes

_SETTLE_S = 5.0
"""Placing takes a moment and counts as a wait only after this time; a refusal counts at once."""
_TELL_EVERY_S = 10.0
_PLACING = (Phase.WORKING, Phase.EVALUATING, Phase.EXPORTING)
"""Phases in which missing processes are started."""
_NAMES = {Role.WORKER: "workers", Role.PS: "parameter servers"}


@dataclass(slots=True)
class _WaitPeriod:
    """A time of waiting, for announcements only: when it began, and how long each reason held."""

    since_s: float | None = None
    looked_s: float = 0.0
    reasons: ReasonTimes = field(default_factory=ReasonTimes)


@final
class PendingProcesses:
    """Reads the process table. Keeps only what it announced."""

    def __init__(self, context: JobContext, scaling: Scaling) -> None:
        self._context = context
        self._scaling = scaling
        self._announced = ""
        self._announced_s = 0.0
        self._period = _WaitPeriod()

    def waits(self) -> list[str]:
        """What the job waits for now, in words.

        For example `2 of 4 workers scheduled; quota team exhausted: cpu 8 of 8 used, 2 more asked
        for`.
        """
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return []
        waits = [text for role in (Role.PS, Role.WORKER) if (text := self._wait(role))]
        if turn := self._scaling.waiting_turn():
            waits.append(turn)
        return waits

    def tick(self) -> None:
        """Announce changes, at most every ten seconds while the wait lasts."""
        now = "; ".join(self.waits())
        self._measure(bool(now))
        if (
            not now
            and self._announced
            and self._context.phase in _PLACING
            and self._some_on_their_way()
        ):
            # Between two reasons to wait, processes are still not placed.
            return
        if now == self._announced or (
            now and self._announced and self._context.now_s - self._announced_s < _TELL_EVERY_S
        ):
            return
        self._announced, self._announced_s = now, self._context.now_s
        if now:
            self._context.orders.announce(
                "wait", now, level="warning", details=self._details(EventStep.BEGUN)
            )
            return
        text = (
            "all processes are scheduled"
            if self._context.phase in _PLACING
            else "no longer waiting for processes to be scheduled: the job is ending"
        )
        self._context.orders.announce("wait", text, details=self._details(EventStep.ENDED))
        self._period = _WaitPeriod()

    def _some_on_their_way(self) -> bool:
        """Whether a wanted process is not ordered yet or does not run yet."""
        workers = self._processes(Role.WORKER)
        unplaced = (Life.REQUESTED, Life.PENDING, Life.REFUSED)
        return len(workers) < self._context.workers.low or any(
            process.life in unplaced for process in (*workers, *self._processes(Role.PS))
        )

    def _measure(self, waits: bool) -> None:
        """Add the time since the last look to the current reasons.

        A wait begins when the process that waits longest was ordered.
        """
        period, now_s = self._period, self._context.now_s
        looked_s, period.looked_s = period.looked_s, now_s
        if not waits:
            return
        waiting = [
            process
            for role in (Role.PS, Role.WORKER)
            for process in self._processes(role)
            if self._waits(process)
        ]
        if period.since_s is None:
            looked_s = period.since_s = min(
                (process.ordered_s for process in waiting), default=now_s
            )
        for reason in dict.fromkeys(map(self._reason, waiting)) or (self._scaling.waiting_turn(),):
            period.reasons.add(reason, now_s - looked_s)

    def _details(self, step: EventStep) -> dict[str, Value]:
        since_s = self._context.now_s if self._period.since_s is None else self._period.since_s
        waited_s = self._context.now_s - since_s
        return meaning(
            step,
            wait=str(Awaited.PLACE),
            since_s=since_s,
            waited_s=waited_s,
            reason=self._period.reasons.words(),
        )

    def _wait(self, role: Role) -> str:
        if not self._context.processes.some_coming:
            # It is asked at every tick, with up to ten thousand workers.
            return ""
        processes = self._processes(role)
        waiting = Counter(self._reason(process) for process in processes if self._waits(process))
        if not waiting:
            return ""
        # A running process has its node, whether or not it has attached.
        placed = sum(process.life in (Life.STARTING, Life.READY) for process in processes)
        (reason, _), *others = waiting.most_common()
        more = f" (and {amount(len(others), 'other reason')})" if others else ""
        short = role is Role.WORKER and placed < self._context.workers.low < len(processes)
        least = f", below the minimum of {self._context.workers.low}" if short else ""
        return f"{placed} of {len(processes)} {_NAMES[role]} scheduled{least}; {reason}{more}"

    def _processes(self, role: Role) -> list[Process]:
        if role is Role.WORKER:
            return self._context.processes.live_workers()
        indices = self._context.server_map.indices
        servers = (self._context.processes.server(index) for index in indices)
        return [server for server in servers if server is not None]

    def _reason(self, process: Process) -> str:
        if process.message:
            return process.message
        if self._context.spec.on_kubernetes:
            return "the cluster has not reported it yet"
        imports = process.name.role is Role.WORKER
        return "TensorFlow is imported first" if imports else "it has not started yet"

    def _waits(self, process: Process) -> bool:
        if process.life is Life.REFUSED or (process.life is Life.REQUESTED and process.refusals):
            return True
        return (
            process.life in (Life.REQUESTED, Life.PENDING)
            and self._context.now_s - process.ordered_s >= _SETTLE_S
        )
