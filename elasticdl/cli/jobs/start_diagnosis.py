"""Find out whether a job on a cluster can start.

Kubernetes retries a missing image for ever; users should not have to wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from elasticdl.cluster.kubernetes.job_state import HINTS
from elasticdl.cluster.kubernetes.pod_tracker import START_PROBLEM_LIMIT_S
from elasticdl.errors import PermanentError

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.job_state import JobState


class CannotStart(PermanentError):
    """The job never had a running master, and the master's pod cannot start.

    The Job still exists, and the cluster keeps trying.
    """

    def __init__(self, message: str, mend: str, clear: str = "") -> None:
        """`mend` says how to fix the cause; `clear` says how to remove the Job."""
        super().__init__(message, hint="; ".join(filter(None, (mend, clear))))
        self.mend = mend


@final
class StartTimer:
    """Measures over repeated observations how long a job has been unable to start."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, limit_s: float = START_PROBLEM_LIMIT_S
    ) -> None:
        self._now_s, self._limit_s = now_s, limit_s
        self._since_s: float | None = None
        self._well_since_s: float | None = None
        self._words = ""

    def seen(self, state: JobState, has_run: Callable[[], bool]) -> None:
        """Add an observation. Raises CannotStart if the job cannot start for 40 s.

        `has_run` returns whether the job ever had a master. It is called only before the error.
        """
        barred, now_s = state.barred, self._now_s()
        if barred is None:
            # A retry or a replacement pod hides the problem for a moment, so reset only after
            # lasting success.
            self._well_since_s = now_s if self._well_since_s is None else self._well_since_s
            if now_s - self._well_since_s > self._limit_s:
                self._since_s, self._words = None, ""
            return
        self._well_since_s = None
        self._since_s = now_s if self._since_s is None else self._since_s
        # Between retries a node reports less than the registry's error, so keep the longest text.
        self._words = max(self._words, barred.text, key=len)
        if now_s - self._since_s >= self._limit_s and not has_run():
            message = f"job {state.name} cannot start: its master: {self._words}"
            raise CannotStart(message, HINTS[barred.lasting], removal_hint(state.name))


def removal_hint(name: str) -> str:
    """Return the command that removes a job that cannot start."""
    return f"`elasticdl stop {name}` clears the job away"
