"""What the time of all workers went to, by use: of those that run, and of those that ended.

A worker reports its own account (`worker/process/time_account.py`). Before it attaches and after
its last report, only the master knows of it. So the account of an ended worker is that of all its
time, however it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.time_use import LOST, TimeUse


@final
class WorkerTimes:
    """Its size does not grow with the number of workers that ended."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}
        """Seconds of all workers, by use."""
        self.most: dict[str, tuple[ProcessName, float]] = {}
        """By use: the worker that spent the most on it, and its seconds."""
        self._going: dict[ProcessName, dict[str, float]] = {}
        """The newest account of each worker that has not ended."""

    def reported(self, name: ProcessName, launch_s: float, spent_s: Mapping[str, float]) -> None:
        """Take in a worker's account so far. It attached `launch_s` after it began to run."""
        before = self._going.get(name, {})
        # Together with the account, so that a worker without one is not half counted.
        newest = self._going[name] = {**spent_s, TimeUse.LAUNCH.value: launch_s}
        for use in newest.keys() | before.keys():
            now_s = newest.get(use, 0.0)
            self._add(name, use, now_s - before.get(use, 0.0), now_s)

    def ended(self, name: ProcessName, launch_s: float, ran_s: float, cause: str | None) -> None:
        """Account for the rest of a worker's time, `ran_s` in all.

        `cause`: why it was lost; None if it ended as it should.
        """
        if name not in self._going:
            self.reported(name, launch_s, {})
        rest_s = ran_s - sum(self._going.pop(name).values())
        if rest_s > 0.0:
            use = TimeUse.ENDING.value if cause is None else f"{LOST}.{cause}"
            self._add(name, use, rest_s, rest_s)

    def _add(self, name: ProcessName, use: str, more_s: float, whole_s: float) -> None:
        self.spent_s[use] = self.spent_s.get(use, 0.0) + more_s
        if whole_s > self.most.get(use, (name, 0.0))[1]:
            self.most[use] = (name, whole_s)
