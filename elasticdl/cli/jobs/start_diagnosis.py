"""Find out whether a job on a cluster can start.

Kubernetes retries a missing image for ever; users should not have to wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from elasticdl.cluster.kubernetes.job_state import HINTS, JobStage
from elasticdl.cluster.kubernetes.pod_tracker import START_PROBLEM_LIMIT_S
from elasticdl.cluster.kubernetes.pods import no_room
from elasticdl.errors import ElasticDLError, PermanentError

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.job_state import JobState
    from elasticdl.jobdir.outcome import Outcome


@final
@dataclass(frozen=True, slots=True)
class StartLimits:
    """Times in seconds."""

    start_limit_s: float = START_PROBLEM_LIMIT_S
    """How long a job may be unable to start."""
    look_s: float = 5.0
    """How long a detached submission checks whether the job starts."""
    look_every_s: float = 0.5


class Submitted(Protocol):
    """A submitted job, as far as this module needs it."""

    name: str

    def job_state(self) -> JobState:
        """Return what the Job and its pods show. Raises ElasticDLError."""

    def outcome(self) -> Outcome | None:
        """Return the job's outcome; None if it has not ended.

        Raises CannotStart, ElasticDLError.
        """

    def delete(self) -> None:
        """Delete the Job. Raises ElasticDLError."""


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


def first_look(job: Submitted, limits: StartLimits = StartLimits()) -> None:
    """Return when the job's master runs or waits for resources, or after 5 s.

    Blocks up to 40 s more while the master cannot start. Returns silently if the cluster does not
    answer or denies access, since the job is submitted.

    Raises CannotStart.
    """
    end_s = time.monotonic() + limits.look_s
    try:
        while True:
            state = job.job_state()
            if state.running_master or state.ended is not None or _waits_for_a_place(state):
                return
            job.outcome()
            if state.standing is not JobStage.STUCK and time.monotonic() > end_s:
                return
            time.sleep(limits.look_every_s)
    except CannotStart:
        raise
    except ElasticDLError:
        return


def _waits_for_a_place(state: JobState) -> bool:
    suspended = bool((state.job.get("spec") or {}).get("suspend"))
    return suspended or (state.master is not None and bool(no_room(state.master)))


def cleared_away(job: Submitted, error: CannotStart) -> CannotStart:
    """Delete a job that we just submitted and that cannot start; return the error to raise."""
    try:
        job.delete()
    except ElasticDLError as refused:
        return CannotStart(
            f"{error.message}\nThe job is still there: {refused.message}",
            error.mend,
            removal_hint(job.name),
        )
    return CannotStart(f"{error.message}\nThe job is deleted again.", error.mend)


def removal_hint(name: str) -> str:
    """Return the command that removes a job that cannot start."""
    return f"`elasticdl stop {name}` clears the job away"
