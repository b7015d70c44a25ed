"""What workers say that their own code has been at for long: no stall, but bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.events import ActivityTold
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.processes.table import Life, Process

_USUAL_S = 60.0
"""The bound where `--stall-seconds` is 0, which asks for words only."""
_SHOWN_S = 30.0
"""User code that takes less is shown to nobody as a wait."""
_BUSY_TIMES = 10.0


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker is at, and since when."""

    what: str
    since_s: float


@final
class Activities:
    """By worker. `bound_s`: `--stall-seconds`. `acts`: whether it is more than words."""

    def __init__(self, context: JobContext, leasing: Leasing) -> None:
        self._context = context
        self._leasing = leasing
        given_s = context.spec.cluster.stall_seconds
        self.acts = given_s > 0
        self.bound_s = given_s or _USUAL_S
        self._running: dict[ProcessName, Activity] = {}
        self._longest_s: dict[str, float] = {}
        """By activity: the longest that came to its end."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def told(self, event: ActivityTold) -> None:
        """A worker began an activity, or ended the last one."""
        before = self._running.pop(event.worker, None)
        if before is not None:
            took_s = event.at_s - before.since_s
            self._longest_s[before.what] = max(took_s, self._longest_s.get(before.what, 0.0))
        if event.what and self._context.worker(event.worker) is not None:
            self._running[event.worker] = Activity(event.what, event.at_s - event.age_s)

    def forget(self, name: ProcessName) -> None:
        """The worker is gone, or replaced for it."""
        self._running.pop(name, None)

    def busy(self, process: Process) -> bool:
        """Whether its own code is at work."""
        return process.name in self._running

    def excuses(self, process: Process) -> bool:
        """Whether its own code is at work and has a bound: it is no straggler then."""
        return self.acts and self.busy(process)

    def running(self) -> list[tuple[Process, Activity]]:
        """Of workers that are there and not on their way out."""
        found = ((self._context.worker(name), one) for name, one in self._running.items())
        return [(process, one) for process, one in found if process and process.life is Life.READY]

    def limit_s(self, process: Process, activity: Activity) -> float:
        """How long it may take."""
        longest_s = self._longest_s.get(activity.what, 0.0)
        return max(
            _BUSY_TIMES * max(self.bound_s, longest_s), self._leasing.errand_limit_s(process)
        )

    def long(self) -> list[str]:
        """Which workers have been in their user's code for long, in words."""
        return [
            f"{name} has been in {one.what} for {age_s:.0f} s"
            for name, one in sorted(self._running.items())
            if (age_s := self._context.now_s - one.since_s) >= min(_SHOWN_S, self.bound_s)
        ]
