"""Whether a job on a cluster can start at all: Kubernetes tries for ever to get an image that is
not there, people need not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from elasticdl.cluster.kubernetes.job_facts import HINTS, JobStage
from elasticdl.cluster.kubernetes.pod_tracker import PATIENCE_S
from elasticdl.cluster.kubernetes.pods import no_room
from elasticdl.errors import ElasticDLError, PermanentError

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes.job_facts import JobFacts
    from elasticdl.jobdir.outcome import Outcome

LOOK_S = 5.0
"""For how long whoever does not wait for a job looks whether it starts."""
_LOOK_EVERY_S = 0.5


class Submitted(Protocol):
    """What of a job on a cluster is asked here."""

    name: str

    def facts(self) -> JobFacts:
        """What its Job and pods show. Raises ElasticDLError."""

    def outcome(self) -> Outcome | None:
        """How it ended, None if it has not. Raises CannotStart, ElasticDLError."""

    def delete(self) -> None:
        """Take the Job away. Raises ElasticDLError."""


class CannotStart(PermanentError):
    """No master of the job ever ran, and its pod cannot start.

    The job is there, and the cluster goes on trying.
    """

    def __init__(self, message: str, mend: str, clear: str = "") -> None:
        """`mend`: what to do about it; `clear`: and about the job that is there."""
        super().__init__(message, hint="; ".join(filter(None, (mend, clear))))
        self.mend = mend


@final
class Patience:
    """How long a job could not start, as somebody sees who looks at it again and again."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since_s: float | None = None
        self._well_since_s: float | None = None
        self._words = ""

    def seen(self, facts: JobFacts, has_run: Callable[[], bool]) -> None:
        """Raises CannotStart when it has been so for 40 s.

        `has_run`: the job had a master, which is asked only then.
        """
        barred, now_s = facts.barred, self._now_s()
        if barred is None:
            # A node that tries again, or the next pod being made, is no news; that all is well for
            # so long is.
            self._well_since_s = now_s if self._well_since_s is None else self._well_since_s
            if now_s - self._well_since_s > PATIENCE_S:
                self._since_s, self._words = None, ""
            return
        self._well_since_s = None
        self._since_s = now_s if self._since_s is None else self._since_s
        # Between its tries a node says less than what the registry said.
        self._words = max(self._words, barred.text, key=len)
        if now_s - self._since_s >= PATIENCE_S and not has_run():
            message = f"job {facts.name} cannot start: its master: {self._words}"
            raise CannotStart(message, HINTS[barred.lasting], way_out(facts.name))


def first_look(job: Submitted) -> None:
    """Return when the job's master runs or waits for a place, at the latest after 5 s.

    Blocks; 40 s more while it cannot start.

    Raises CannotStart. That nothing can be learned of it, or not by us, is no news: the job is
    submitted.
    """
    end_s = time.monotonic() + LOOK_S
    try:
        while True:
            facts = job.facts()
            if facts.running_master or facts.ended is not None or _waits_for_a_place(facts):
                return
            job.outcome()
            if facts.standing is not JobStage.STUCK and time.monotonic() > end_s:
                return
            time.sleep(_LOOK_EVERY_S)
    except CannotStart:
        raise
    except ElasticDLError:
        return


def _waits_for_a_place(facts: JobFacts) -> bool:
    suspended = bool((facts.job.get("spec") or {}).get("suspend"))
    return suspended or (facts.master is not None and bool(no_room(facts.master)))


def cleared_away(job: Submitted, error: CannotStart) -> CannotStart:
    """Delete a job that we submitted ourselves and that cannot start; what to tell of it."""
    try:
        job.delete()
    except ElasticDLError as refused:
        return CannotStart(
            f"{error.message}\nThe job is still there: {refused.message}",
            error.mend,
            way_out(job.name),
        )
    return CannotStart(f"{error.message}\nThe job is deleted again.", error.mend)


def way_out(name: str) -> str:
    """What to do about a job that cannot start."""
    return f"`elasticdl stop {name}` clears the job away"
