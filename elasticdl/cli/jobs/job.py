"""A job that was found, wherever it is: what the verbs that look after jobs can ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, final

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
    """How a job is doing.

    `status` always has every key of the master's `JobStatus`, with nothing in it where nothing is
    known.
    """

    job: str
    place: JobLocation
    state: str
    """waiting, stuck, running, leaving, done, failed or stopped: see
    `cluster.job_facts.Standing`.
    """
    age_s: float
    status: Mapping[str, Any]
    exit_code: int | None = None
    outcome: str = ""
    hint: str = ""

    @classmethod
    def of(
        cls,
        job: Job,
        state: str,
        age_s: float,
        status: Mapping[str, Any],
        end: Outcome | None = None,
        hint: str = "",
    ) -> Report:
        """`end`: how the job ended; without, what the status says of an end that is near."""
        code, outcome = status.get("exit_code"), str(status.get("outcome") or "")
        if end is not None:
            code, outcome, hint = end.exit_code, end.message, end.hint
        return cls(job.name, job.place, state, max(0.0, age_s), status, code, outcome, hint)

    def as_dict(self) -> dict[str, Any]:
        """For JSON and YAML: one schema, wherever the job is."""
        head = {
            "job": self.job,
            "place": str(self.place.kind),
            "namespace": self.place.namespace,
            "job_dir": self.place.job_dir,
        }
        tail = {"exit_code": self.exit_code, "outcome": self.outcome, "hint": self.hint}
        return {**head, "state": self.state, "age_s": round(self.age_s, 1), **self.status, **tail}

    def as_row(self) -> dict[str, Any]:
        """For `list`."""
        whole = self.as_dict()
        records = {"trained": whole["records"]["trained"], "expected": whole["records"]["expected"]}
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
class LogWish:
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

    def read_log(self, wish: LogWish) -> Iterator[str]:
        """Text as it comes; following, until the process or the job has ended."""

    def page(self) -> AbstractContextManager[str]:
        """The status page's address with the token that opens it, `http://127.0.0.1:4711/#token=…`,
        good within the context.
        """

    def story(self) -> Diagnosis:
        """What happened so far, and why, also when it has ended."""

    def snapshot(self) -> dict[str, Any]:
        """All that its page shows, as `history.snapshot` has it.

        Raises ElasticDLError that says where it is, if that is elsewhere.
        """

    def close(self) -> None:
        """Drop connections. The job does not notice."""


def blank_status(message: str, **known: Any) -> dict[str, Any]:  # noqa: ANN401 - values of a status
    """A status of a job of which only `message`, and what is `known`, can be told."""
    from elasticdl.master.core.status import JobStatus, RecordCounts, ScaleStatus

    blank = JobStatus(
        action="",
        phase="",
        message=message,
        at_s=0.0,
        epoch=0,
        epochs=0,
        version=0,
        records=RecordCounts(),
        shards={},
        scale=ScaleStatus(0, 0, 0, 0),
        processes=(),
        loss=None,
        metrics={},
        rounds=(),
        checkpoints=(),
        updates_lost=0,
        waiting=(),
        parked=(),
        bad_examples=(),
        receipt={"epochs": [], "total": {}},
    )
    return {**asdict(blank), "gauges": {}, "records_per_s": 0.0, **known}


_OF_A_PROCESS = ("name", "role", "state", "where", "cause", "message", "shard")
_OF_A_CHECKPOINT = ("version", "path")


def status_as_read(message: str, read: object) -> dict[str, Any]:
    """A status out of a file, which may be broken or of another version: what is not as it should
    be is as in `blank_status`.
    """
    found: dict[str, Any] = _fitting(blank_status(message), read)
    found["processes"] = _rows(found["processes"], _OF_A_PROCESS)
    found["checkpoints"] = _rows(found["checkpoints"], _OF_A_CHECKPOINT)
    found["metrics"] = {
        str(name): value
        for name, value in found["metrics"].items()
        if isinstance(value, int | float)
    }
    found["loss"] = found["loss"] if isinstance(found["loss"], int | float) else None
    return found


def _rows(found: Sequence[object], keys: tuple[str, ...]) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        row for row in found if isinstance(row, Mapping) and all(key in row for key in keys)
    )


def _fitting(blank: Any, read: Any) -> Any:  # noqa: ANN401 - any JSON value
    match blank:
        case Mapping():
            given = read if isinstance(read, Mapping) else {}
            return {
                **given,
                **{
                    key: _fitting(value, given[key]) if key in given else value
                    for key, value in blank.items()
                },
            }
        case list() | tuple():
            return read if isinstance(read, list | tuple) else blank
        case str():
            return read if isinstance(read, str) else blank
        case int() | float():
            return read if isinstance(read, int | float) else blank
        case _:
            return read


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
