"""Long activities of the workers' own code: no stall, but bounded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.paces import LONGEST_S, SHORTEST_S
from elasticdl.master.core.events import ActivityReported
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.processes.table import Life, Process

_USUAL_S = 60.0
"""The bound if `--stall-seconds` is 0, which disables actions."""
_SHOWN_S = 30.0
"""Shorter activities are not shown as waits."""
_BUSY_TIMES = 10.0
_INPUTS = ("feed", "reading a shard")
_STEP = " step"
"""The end of the name of an activity that may compile: each new shape of a batch does."""
_CALLBACKS = "what callbacks do"
_SAME_S = 10.0
"""Tolerance for the start of an activity: a report that waits for the next master is late."""
_SINGLETONS = ("a summary step", "a export step")


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity of a worker, and when it began."""

    what: str
    since_s: float


@final
class Activities:
    """Activities by worker. `bound_s` is `--stall-seconds`; `acts`: it is above 0."""

    def __init__(self, context: JobContext, leasing: Leasing) -> None:
        self._context = context
        self._leasing = leasing
        given_s = context.spec.cluster.stall_seconds
        self.acts = given_s > 0
        self.bound_s = given_s or _USUAL_S
        self._running: dict[ProcessName, Activity] = {}
        self._ended_s: dict[ProcessName, float] = {}
        """When the last activity of a worker ended."""
        self._longest_s: dict[str, float] = {}
        """By activity: the longest that came to an end."""
        self._hung: dict[str, int] = {}
        """By activity: workers that were replaced because it did not end."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def reported(self, event: ActivityReported) -> None:
        """Note that a worker began an activity, or ended the last one."""
        # An activity ends when the next one begins: workers report one at a time.
        before = self._running.pop(event.worker, None)
        since_s = event.at_s - event.age_s
        if before is not None and before.what == event.what and since_s - before.since_s < _SAME_S:
            # A master that took over hears of it once more.
            self._running[event.worker] = before
            return
        if before is not None:
            took_s = event.at_s - before.since_s
            self._ended_s[event.worker] = event.at_s
            self._longest_s[before.what] = max(took_s, self._longest_s.get(before.what, 0.0))
        if event.what and self._context.worker(event.worker) is not None:
            # The report is up to two seconds late, so the worker sends the age.
            self._running[event.worker] = Activity(event.what, since_s)

    def forget(self, name: ProcessName) -> None:
        """Forget the activity of a worker that ended or is replaced."""
        self._running.pop(name, None)
        self._ended_s.pop(name, None)

    def ended_s(self, process: Process) -> float:
        """When the last long activity of the worker ended; 0.0 if it had none."""
        return self._ended_s.get(process.name, 0.0)

    def busy(self, process: Process) -> bool:
        """Whether the worker is in its own code."""
        return process.name in self._running

    def of(self, process: Process) -> Activity | None:
        """What the worker has been doing for long, if anything."""
        return self._running.get(process.name)

    def running(self) -> list[tuple[Process, Activity]]:
        """Activities of ready workers."""
        activities = (
            (self._context.worker(name), activity) for name, activity in self._running.items()
        )
        return [
            (process, activity)
            for process, activity in activities
            if process and process.life is Life.READY
        ]

    def hung(self, what: str) -> None:
        """Double the limit of an activity: a worker was replaced for it."""
        self._hung[what] = self._hung.get(what, 0) + 1

    def usual_limit_s(self, activity: Activity) -> float | None:
        """How long the activity may take while other workers get on; None if that is no measure.

        Ten times the longest that came to an end, and for a step at least as long as a worker has
        for its first one. Callbacks, summaries and exports are not alike every time.
        """
        what = activity.what
        if self._context.spec.trains_on_ring or what in _SINGLETONS:
            return None
        if self.is_input(activity):
            least_s = SHORTEST_S
        elif what.endswith(_STEP) and not what.startswith(_CALLBACKS):
            least_s = self._leasing.paces.first_limit_s
        else:
            return None
        usual_s = max(least_s, _BUSY_TIMES * self._longest_s.get(what, 0.0))
        return min(LONGEST_S, usual_s * 2.0 ** min(self._hung.get(what, 0), 10))

    @staticmethod
    def is_input(activity: Activity) -> bool:
        """Whether it reads or feeds records, which compiles nothing."""
        return activity.what in _INPUTS

    def limit_s(self, process: Process, activity: Activity) -> float:
        """How long the activity may take, whatever the others do."""
        # The job's own longest `feed` or step sets the bound: slow user code is slow every time.
        longest_s = self._longest_s.get(activity.what, 0.0)
        limit_s = _BUSY_TIMES * max(self.bound_s, longest_s)
        if self.is_input(activity):
            # A summary or an export reads nothing: its holder is still with an earlier shard.
            return limit_s
        return max(limit_s, self._leasing.limits.singleton_limit_s(process))

    def long(self) -> list[tuple[ProcessName, Activity]]:
        """Workers that have been in user code for long."""
        return self._lasting(self._running, min(_SHOWN_S, self.bound_s))

    def long_words(self) -> list[str]:
        """Say for how long each of them has been there."""
        return self._words(self.long())

    def lasting_words(self, names: Collection[ProcessName], least_s: float) -> list[str]:
        """Say which of `names` have been in user code for at least so long."""
        return self._words(self._lasting(names, least_s))

    def _lasting(
        self, names: Collection[ProcessName], least_s: float
    ) -> list[tuple[ProcessName, Activity]]:
        return [
            (name, activity)
            for name, activity in sorted(self._running.items())
            if name in names and self._context.now_s - activity.since_s >= least_s
        ]

    def _words(self, lasting: list[tuple[ProcessName, Activity]]) -> list[str]:
        return [
            f"{name} has been in {activity.what} for {self._context.now_s - activity.since_s:.0f} s"
            for name, activity in lasting
        ]
