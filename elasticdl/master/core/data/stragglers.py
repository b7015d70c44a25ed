"""How long a worker may be without progress before it counts as a straggler."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import final

from elasticdl.shard import Task

_SAMPLES = 101
_SHORTEST_S = 30.0
_FIRST_S = 300.0
_LONGEST_S = 3600.0
_TIMES_MEDIAN = 10.0
_ERRANDS_S = {Task.SUMMARY: 300.0, Task.EXPORT: 1800.0}


@final
class StragglerBounds:
    """Bounds from the recent seconds per record of each task."""

    def __init__(self) -> None:
        self._samples: dict[Task, deque[float]] = {}
        self._overruns = 0

    def saw(self, task: Task, seconds: float, records: int) -> None:
        """Add a sample: a worker took `seconds` for `records` > 0."""
        self._samples.setdefault(task, deque(maxlen=_SAMPLES)).append(seconds / records)

    def overran(self) -> None:
        """Double the first bound after a worker exceeded it; it applies while no samples exist."""
        self._overruns += 1

    def limit_s(self, task: Task, records: int, *, warm: bool) -> float:
        """The allowed time without progress.

        `warm` False: the worker has done nothing yet and must compile a model.
        """
        if task in _ERRANDS_S:
            return _ERRANDS_S[task]
        first_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(self._overruns, 10))
        samples = self._samples.get(task)
        if not samples:
            return first_s
        usual_s = max(_SHORTEST_S, _TIMES_MEDIAN * median(samples) * records)
        # A cold worker compiles its step first. That takes minutes for a large model.
        return usual_s if warm else max(usual_s, first_s)
