"""What the job as a whole waits for: places, servers, work, a ring, user code.

It announces a long wait, and its duration when it is over. It only reads the job, and keeps only
what it announced. The reasons come from `coordination.py`'s two implementations,
`pending_processes.py` and `activities.py`; `status_builder.py` lists those of single processes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.history.awaited import Awaited
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.master.core.activities import Activities, Activity
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import listed
from elasticdl.master.core.processes.pending_processes import PendingProcesses
from elasticdl.master.core.processes.table import Process
from elasticdl.master.core.reason_times import ReasonTimes
from elasticdl.on_train_end import ON_TRAIN_END, ON_TRAIN_END_S

_LASTS_S = 5.0
"""Shorter waits are normal and not announced."""
_QUIET_S = 2.0
"""A wait that begins again within this time continues the previous one."""
_MOST_BUSY = 4


@dataclass(slots=True)
class _Open:
    since_s: float
    seen_s: float
    reasons: ReasonTimes = field(default_factory=ReasonTimes)
    announced: bool = False


@final
class Waits:
    """Keeps one wait for each awaited thing, whatever its reasons."""

    def __init__(
        self,
        context: JobContext,
        coordination: Coordination,
        pending: PendingProcesses,
        activities: Activities,
    ) -> None:
        self._context = context
        self._coordination = coordination
        self._pending = pending
        self._activities = activities
        self._open: dict[Awaited, _Open] = {}
        self._over_s: dict[Awaited, float] = {}
        """When the last one that was announced ended."""
        self._were_there = False

    def tick(self) -> None:
        """Check what the job waits for now."""
        self._pending.tick()
        now_s, reasons = self._context.now_s, dict(self._now())
        for what, (reason, since_s) in self._user_code().items():
            reasons[what] = reason
            # It has lasted for long when it is shown first. A part of that may be in another wait.
            since_s = max(since_s, self._over_s.get(what, since_s))
            self._open.setdefault(what, _Open(since_s, since_s))
        for what, reason in reasons.items():
            wait = self._open.setdefault(what, _Open(now_s, now_s))
            # Charge the time since the last look to the present reason.
            wait.reasons.add(reason, now_s - wait.seen_s)
            wait.seen_s = now_s
            if not wait.announced and now_s - wait.since_s >= _LASTS_S:
                wait.announced = True
                details = meaning(
                    EventStep.BEGUN, wait=str(what), since_s=wait.since_s, reason=reason
                )
                self._context.orders.announce(
                    "wait",
                    f"waiting for {what.text}: {reason}",
                    level="warning",
                    details=details,
                )
        for what, wait in tuple(self._open.items()):
            if what not in reasons and now_s - wait.seen_s >= _QUIET_S:
                del self._open[what]
                self._over(what, wait)

    def end(self) -> None:
        """End all waits: the job is over, and its processes may end before the next tick."""
        self._pending.tick()
        for what, wait in self._open.items():
            self._over(what, wait)
        self._open.clear()

    def busy(self, names: Collection[ProcessName], least_s: float) -> str:
        """Those of `names` that have been in user code for so long, in words; '' if none."""
        return "; ".join(self._activities.lasting_words(names, least_s)[:_MOST_BUSY])

    def train_ends(self) -> list[tuple[Process, Activity]]:
        """Workers of a job that is done whose `on_train_end` takes long, and since when."""
        return [
            (process, activity)
            for process, activity in self._activities.running()
            if activity.what == ON_TRAIN_END
        ]

    def _over(self, what: Awaited, wait: _Open) -> None:
        waited_s = wait.seen_s - wait.since_s
        if not wait.announced:
            return
        self._over_s[what] = wait.seen_s
        reason = wait.reasons.words()
        text = f"waited {waited_s:.0f} s for {what.text}: {reason}"
        details = meaning(
            EventStep.ENDED, wait=str(what), since_s=wait.since_s, waited_s=waited_s, reason=reason
        )
        self._context.orders.announce("wait", text, details=details)

    def _user_code(self) -> Mapping[Awaited, tuple[str, float]]:
        """The wait for user code, if there is one: its reason, and when the code began."""
        long = self._activities.long()
        if self._context.phase not in (Phase.ENDING, Phase.ENDED):
            what, texts = Awaited.CODE, [f"{name} is in {activity.what}" for name, activity in long]
        else:
            # A job that is over waits for nothing else.
            long = [(name, activity) for name, activity in long if activity.what == ON_TRAIN_END]
            what, names = Awaited.TRAIN_END, listed(name for name, _ in long)
            texts = [f"{names}; at most {ON_TRAIN_END_S:.0f} s, or until the job is stopped"]
        if not long:
            return {}
        return {
            what: (
                "; ".join(texts[:_MOST_BUSY]),
                min(activity.since_s for _, activity in long),
            )
        }

    def _now(self) -> Mapping[Awaited, str]:
        if self._context.phase not in (Phase.WORKING, Phase.EVALUATING, Phase.EXPORTING):
            return {}
        away = self._context.servers_away()
        self._were_there = self._were_there or not away
        if away:
            # Before all servers are up for the first time, this is the normal start of a job.
            return {Awaited.SERVERS: away} if self._were_there else {}
        return self._coordination.waits_for()
