"""What the time of all workers went to, by use: of those that run, and of those that ended.

A worker reports its own account (`worker/process/time_account.py`). Before it attaches and after
its last report, only the master knows of it. So the account of an ended worker is that of all its
time, however it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.processes.causes import Cause
from elasticdl.time_use import LOST, TimeUse

_HUNG = f"{LOST}.{Cause.HUNG}"


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
        self._newest_use: dict[ProcessName, str] = {}
        """What each of them spent most on between its last two accounts."""

    def reported(self, name: ProcessName, launch_s: float, spent_s: Mapping[str, float]) -> None:
        """Take in a worker's account so far. It attached `launch_s` after it began to run."""
        before = self._going.get(name, {})
        # Together with the account, so that a worker without one is not half counted.
        newest = self._going[name] = {**spent_s, TimeUse.LAUNCH.value: launch_s}
        more_s = {
            use: newest.get(use, 0.0) - before.get(use, 0.0)
            for use in newest.keys() | before.keys()
        }
        self._newest_use[name] = max(newest, key=more_s.__getitem__)
        for use, seconds in more_s.items():
            self._add(name, use, seconds, newest.get(use, 0.0))

    def hung(self, name: ProcessName, ran_s: float, hung_s: float) -> None:
        """A worker that ran for `ran_s` was in code that did not return for the last `hung_s`.

        Its account has a part of that as the use of this code.
        """
        account_s = self._going.get(name)
        if account_s is None:
            return
        # While it hung, nothing else grew.
        use, told_s = self._newest_use[name], account_s.get(_HUNG, 0.0)
        rest_s = ran_s - sum(account_s.values())
        vain_s = min(hung_s - rest_s - told_s, account_s[use])
        if vain_s > 0.0:
            if use in self.most and self.most[use][0] == name:
                del self.most[use]  # The next reports of the others say who has the most now.
            account_s[use] -= vain_s
            account_s[_HUNG] = told_s + vain_s
            self._add(name, use, -vain_s, account_s[use])
            self._add(name, _HUNG, vain_s, account_s[_HUNG])

    def ended(self, name: ProcessName, launch_s: float, ran_s: float, cause: str | None) -> None:
        """Account for the rest of a worker's time, `ran_s` in all.

        `cause`: why it was lost; None if it ended as it should.
        """
        if name not in self._going:
            self.reported(name, launch_s, {})
        account_s = self._going.pop(name)
        del self._newest_use[name]
        rest_s = ran_s - sum(account_s.values())
        if rest_s > 0.0:
            use = TimeUse.ENDING.value if cause is None else f"{LOST}.{cause}"
            self._add(name, use, rest_s, account_s.get(use, 0.0) + rest_s)

    def _add(self, name: ProcessName, use: str, more_s: float, whole_s: float) -> None:
        self.spent_s[use] = self.spent_s.get(use, 0.0) + more_s
        if whole_s > self.most.get(use, (name, 0.0))[1]:
            self.most[use] = (name, whole_s)
