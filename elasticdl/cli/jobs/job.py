"""A job that was found, wherever it is: what the verbs that look after jobs can ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, final

from elasticdl.job_status import JobStatus

if TYPE_CHECKING:
    from elasticdl.jobdir.outcome import Outcome


class Kind(StrEnum):
    """Where a job's processes are."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"


@final
@dataclass(frozen=True, slots=True)
class JobLocation:
    """`namespace` of a job on a cluster, `job_dir` of one on this machine."""

    kind: Kind
    namespace: str = ""
    job_dir: str = ""

    def __str__(self) -> str:
        return self.job_dir if self.kind is Kind.LOCAL else f"namespace {self.namespace}"


@final
@dataclass(frozen=True, slots=True)
class Report:
    """How a job is doing."""

    job: str
    place: JobLocation
    state: str
    """waiting, stuck, running, leaving, done, failed or stopped: see
    `cluster.job_facts.Standing`.
    """
    age_s: float
    status: JobStatus
    exit_code: int | None = None
    outcome: str = ""
    hint: str = ""

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
        """`end`: how the job ended; without, what the status says of an end that is near."""
        code, outcome = status.exit_code, status.outcome or ""
        if end is not None:
            code, outcome, hint = end.exit_code, end.message, end.hint
        return cls(job.name, job.place, state, max(0.0, age_s), status, code, outcome, hint)

    def as_dict(self) -> dict[str, object]:
        """For JSON and YAML: one schema, wherever the job is."""
        head = {
            "job": self.job,
            "place": str(self.place.kind),
            "namespace": self.place.namespace,
            "job_dir": self.place.job_dir,
        }
        tail = {"exit_code": self.exit_code, "outcome": self.outcome, "hint": self.hint}
        state = {"state": self.state, "age_s": round(self.age_s, 1)}
        return {**head, **state, **self.status.to_json(), **tail}

    def as_row(self) -> dict[str, object]:
        """For `list`."""
        whole, counts = self.as_dict(), self.status.records
        records = {"trained": counts.trained, "expected": counts.expected}
        keys = (
            "job",
            "place",
            "namespace",
            "job_dir",
            "state",
            "age_s",
            "message",
            "exit_code",
            "outcome",
        )
        return {**{key: whole[key] for key in keys}, "records": records}


@final
@dataclass(frozen=True, slots=True)
class LogEntry:
    """A log that can be read.

    `process` as `logs` takes it; `what` for people: its size, or how its pod is doing.
    """

    process: str
    what: str


@final
@dataclass(frozen=True, slots=True)
class LogRequest:
    """What to read of a log: its last `lines` (0: all), and whether to go on as it grows."""

    process: str
    lines: int = 200
    follow: bool = False


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What happened in a job and why: `story` as `history.why.Story` gives it; `missing`: what
    nobody can tell any more, in words.
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
        """How it is doing, or how it ended."""

    def outcome(self) -> Outcome | None:
        """How it ended; None if it has not."""

    def stop(self, reason: str) -> str:
        """Have it end in order; what happens now, in words."""

    def end(self, reason: str) -> str:
        """End it at once, without a last checkpoint; what happens now, in words."""

    def scale(self, low: int, high: int) -> None:
        """Ask for another range of workers."""

    def checkpoint(self) -> None:
        """Ask for a checkpoint now."""

    def logs(self) -> list[LogEntry]:
        """What can be read."""

    def read_log(self, request: LogRequest) -> Iterator[str]:
        """Text as it comes; following, until the process or the job has ended."""

    def page(self) -> AbstractContextManager[str]:
        """The status page's address with the token that opens it, `http://127.0.0.1:4711/#token=…`,
        good within the context.
        """

    def story(self) -> Diagnosis:
        """What happened so far, and why, also when it has ended."""

    def snapshot(self) -> dict[str, object]:
        """All that its page shows, as `history.snapshot` has it.

        Raises ElasticDLError that says where it is, if that is elsewhere.
        """

    def close(self) -> None:
        """Drop connections. The job does not notice."""


@final
@dataclass(frozen=True, slots=True)
class JobQuery:
    """What somebody typed to name a job."""

    job: str = ""
    job_dir: str = ""
    namespace: str = ""
    kube_context: str = ""
    places: tuple[str, ...] = ()
    """Where it was looked for already."""
