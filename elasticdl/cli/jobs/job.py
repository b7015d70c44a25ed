"""The interface to an existing job, local or on a cluster, for the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, final

from elasticdl.errors import ExitCode
from elasticdl.job_status import JobStatus

if TYPE_CHECKING:
    from elasticdl.jobdir.outcome import Outcome
    from elasticdl.rpc.master_client import MasterClient


class Kind(StrEnum):
    """Where a job's processes run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


@final
@dataclass(frozen=True, slots=True)
class JobLocation:
    """`namespace` of a job on a cluster, `job_dir` of a local job."""

    kind: Kind
    namespace: str = ""
    job_dir: str = ""

    def __str__(self) -> str:
        return self.job_dir if self.kind is Kind.LOCAL else f"namespace {self.namespace}"


@final
@dataclass(frozen=True, slots=True)
class Report:
    """The current state of a job."""

    job: str
    place: JobLocation
    state: str
    """A value of `cluster.kubernetes.job_state.JobStage`, such as waiting, running or done."""
    age_s: float
    status: JobStatus
    exit_code: int | None = None
    outcome: str = ""
    hint: str = ""
    master: str = ""
    """Where the master of a local job runs, as `ProcessStatus.where`; '' if it does not."""

    @classmethod
    def of(
        cls,
        job: Job,
        state: str,
        age_s: float,
        status: JobStatus,
        end: Outcome | None = None,
        hint: str = "",
    ) -> Report:
        """Make a report of a status and of the job's `end`, if it has ended."""
        code, outcome = status.exit_code, status.outcome or ""
        if end is not None:
            code, outcome, hint = end.exit_code, end.message, end.hint
        return cls(job.name, job.place, state, max(0.0, age_s), status, code, outcome, hint)

    def as_dict(self) -> dict[str, object]:
        """Return JSON and YAML values, with one schema for local jobs and jobs on a cluster."""
        head = {
            "job": self.job,
            "place": str(self.place.kind),
            "namespace": self.place.namespace,
            "job_dir": self.place.job_dir,
        }
        tail = {"exit_code": self.exit_code, "outcome": self.outcome, "hint": self.hint}
        state = {"state": self.state, "age_s": round(self.age_s, 1)}
        return {**head, **state, **self.status.to_json(), **tail}


@final
@dataclass(frozen=True, slots=True)
class LogEntry:
    """A log that can be read.

    `process` is a valid argument of `logs`. `what` describes its size, or the state of the pod.
    """

    process: str
    what: str


@final
@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which part of a log to read: its last `lines` (0: all), and whether to follow it."""

    process: str
    lines: int = 200
    follow: bool = False


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Explanation of a job: `story` as in `history.diagnosis.Story`.

    `missing` explains what is not available; it is empty if nothing is missing.
    """

    story: Mapping[str, Any]
    missing: str = ""


class Job(Protocol):
    """A job.

    Methods block for seconds at most, unless they say otherwise, and raise ElasticDLError.
    """

    name: str
    place: JobLocation

    def report(self) -> Report:
        """Return the current state, or the outcome of an ended job."""

    def outcome(self) -> Outcome | None:
        """Return the outcome; None if the job has not ended."""

    def stop(self, reason: str) -> str:
        """Stop the job gracefully; return a message about what happens next."""

    def end(self, reason: str) -> str:
        """End the job at once; return a message. Nothing waits for a last checkpoint."""

    def scale(self, low: int, high: int) -> str:
        """Change the range of workers; return what stays as it is, in words, or ''."""

    def scale_servers(self, number: int) -> None:
        """Change the number of parameter servers."""

    def checkpoint(self) -> None:
        """Request a checkpoint now."""

    def logs(self) -> list[LogEntry]:
        """Return the readable logs."""

    def read_log(self, request: LogRequest) -> Iterator[str]:
        """Yield text as it arrives; when following, until the process or the job has ended."""

    def page(self, *, read_only: bool = False) -> AbstractContextManager[str]:
        """Return the status page's address with a token: `http://127.0.0.1:4711/#token=…`.

        The token is the job's, or the viewer's for a `read_only` page. The address is valid inside
        the context.
        """

    def story(self) -> Diagnosis:
        """Explain a running or ended job."""

    def snapshot(self) -> dict[str, object]:
        """Return the data of the job's page, as in `history.snapshot`.

        Raises ElasticDLError if the data is not available; the error says where to find it.
        """

    def close(self) -> None:
        """Drop connections. The job continues."""


@final
@dataclass(frozen=True, slots=True)
class JobQuery:
    """The arguments that name a job."""

    job: str = ""
    job_dir: str = ""
    namespace: str = ""
    kube_context: str = ""
    places: tuple[str, ...] = ()
    """Places already searched."""


def asked_to_stop(master: MasterClient, reason: str) -> str:
    """Have a job stop gracefully. Return what it waits for. Raises ElasticDLError."""
    before = master.status()
    master.stop(reason)
    if before.phase != "ending":
        return "asked to stop; it ends when its workers have drained"
    then = "it ends when its processes have"
    if before.exit_code == ExitCode.DONE and before.action == "train":
        return f"its work is done: cutting off on_train_end of callbacks; {then}"
    return f"it is over; {then}"
