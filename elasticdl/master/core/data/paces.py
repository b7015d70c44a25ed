"""How long work takes here, and how long it may take: from the newest reports of progress.

A deadline is ten times what nine of ten recent reports took per record, never below a floor and
never above a cap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp
from statistics import median
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.shard import Task

SHORTEST_S = 30.0
"""No deadline is shorter: a busy machine delays anybody by seconds."""
LONGEST_S = 3600.0
_FIRST_S = 300.0
"""Time for the first progress while no worker has made any."""
_FIRST_TIMES = 5.0
"""Time for the first progress, in the longest that any worker took for its own."""
_TIMES = 10.0
_SHARE = 0.9
_SAMPLES = 101
_MEMORY_S = 30.0
"""After this time a report counts a third in its worker's pace."""
_JUDGED_S, _JUDGED_REPORTS = 15.0, 3
"""A worker is compared with others after so much observed time and so many reports."""
_SINGLETONS_S = {Task.SUMMARY: 300.0, Task.EXPORT: 1800.0}


@dataclass(slots=True)
class _Newest:
    """The newest values, in the order of their arrival and of their size."""

    arrived: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        if len(self.arrived) == _SAMPLES:
            del self.ordered[bisect_left(self.ordered, self.arrived.popleft())]
        self.arrived.append(value)
        insort(self.ordered, value)

    @property
    def quantile(self) -> float:
        """What nine of ten do not exceed: a tick asks it for every worker."""
        return self.ordered[min(len(self.ordered) - 1, int(_SHARE * len(self.ordered)))]


@dataclass(slots=True)
class _Reports:
    """The newest reports of progress of all workers: seconds per record, and records."""

    each_s: _Newest = field(default_factory=_Newest)
    records: _Newest = field(default_factory=_Newest)

    def add(self, seconds: float, records: int) -> None:
        self.each_s.add(seconds / records)
        self.records.add(records)


@dataclass(slots=True)
class _Pace:
    """A worker's pace: seconds and records, older ones counting less."""

    seconds: float = 0.0
    records: float = 0.0
    observed_s: float = 0.0
    reports: int = 0

    def add(self, seconds: float, records: int) -> None:
        kept = exp(-seconds / _MEMORY_S)
        self.seconds = self.seconds * kept + seconds
        self.records = self.records * kept + records
        self.observed_s += seconds
        self.reports += 1

    @property
    def each_s(self) -> float:
        """Seconds per record."""
        return self.seconds / self.records


@final
class Paces:
    """Seconds per record: of each task, and of each worker at it."""

    def __init__(self) -> None:
        self._tasks: dict[Task, _Reports] = {}
        self._workers: dict[ProcessName, dict[Task, _Pace]] = {}
        self._first_s: float | None = None
        """The longest time that a worker took for its first progress."""
        self._overruns = 0
        """Workers that were replaced before their first progress."""

    # what was seen

    def saw(self, worker: ProcessName | None, task: Task, seconds: float, records: int) -> None:
        """A worker took `seconds` for `records` > 0 records.

        `worker` is None if many worked on them together.
        """
        if worker is not None:
            own = self._workers.setdefault(worker, {})
            if task not in own:
                # The first time of each worker compiles: it says nothing about the later ones.
                own[task] = _Pace()
                self._first_s = max(seconds, self._first_s or 0.0)
                return
            own[task].add(seconds, records)
        self._tasks.setdefault(task, _Reports()).add(seconds, records)

    def overran(self) -> None:
        """Double the time for a first progress: it was too short for a worker."""
        self._overruns += 1

    def forget(self, worker: ProcessName) -> None:
        """A worker has ended or was given up."""
        self._workers.pop(worker, None)

    # deadlines

    def limit_s(self, task: Task, records: int, *, warm: bool) -> float:
        """Return the time without progress that is allowed before the next `records` are done.

        `warm` False: the worker has done nothing of this task yet, and may compile a model first.
        """
        if task in _SINGLETONS_S:
            return _SINGLETONS_S[task]
        usual_s = self.usual_limit_s(task, records)
        # A first report is no measure, so there may be none although the worker has compiled.
        return usual_s if warm and task in self._tasks else max(usual_s, self.first_limit_s)

    def usual_limit_s(self, task: Task, records: int) -> float:
        """Return ten times what the next `records` take here, at least the shortest limit."""
        reports = self._tasks.get(task)
        if reports is None:
            return SHORTEST_S
        return min(LONGEST_S, max(SHORTEST_S, _TIMES * reports.each_s.quantile * records))

    @property
    def first_limit_s(self) -> float:
        """The time that a worker has for its first progress: it compiles its model first."""
        usual_s = (
            _FIRST_S if self._first_s is None else max(2 * SHORTEST_S, _FIRST_TIMES * self._first_s)
        )
        return min(LONGEST_S, usual_s * 2.0 ** min(self._overruns, 10))

    def stride(self, task: Task, least: int) -> int:
        """Return how many records a report of progress covers: nine of ten cover no more."""
        reports = self._tasks.get(task)
        return max(least, int(reports.records.quantile)) if reports else least

    # comparisons

    def knows(self, worker: ProcessName, task: Task) -> bool:
        """Whether this worker has made progress with this task."""
        return task in self._workers.get(worker, {})

    def of(self, worker: ProcessName, task: Task) -> float | None:
        """Return a worker's recent seconds per record; None before it can be judged."""
        pace = self._workers.get(worker, {}).get(task)
        if pace is None or pace.observed_s < _JUDGED_S or pace.reports < _JUDGED_REPORTS:
            return None
        return pace.each_s

    def usual(self, task: Task, workers: Iterable[ProcessName]) -> float | None:
        """Return the median of these workers' seconds per record; None if none has progressed."""
        paces_s = [
            pace.each_s
            for worker in workers
            if (pace := self._workers.get(worker, {}).get(task)) and pace.records
        ]
        return median(paces_s) if paces_s else None
