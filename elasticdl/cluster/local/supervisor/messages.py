"""The messages between a supervisor and its master, as JSON objects.

From the master, `id` numbers the requests that are answered:

    {"id", "do": "create", "spec"}
    {"id", "do": "delete", "name", "grace_s", "for_good"}
    {"id", "do": "beside", "spec"}           with descriptors for stdin, stdout and stderr
    {"id", "do": "release", "of"}            end the process that the request `of` started
    {"id", "do": "clear"}                    end all processes and forget their names
    {"id", "do": "close"}                    end all processes, for good
    {"id", "do": "reserve", "key", "host", "port"}
    {"observe": true}                        send events, of all live and ended processes first
    {"keep": {KEY: VALUE}}                   for the next master
    {"progress": RECORDS}
    {"finished": EXIT_CODE}                  the job's outcome is recorded

From the supervisor:

    {"welcome": {"kept", "before"}}          always the first
    {"signal": NUMBER}                       raise this signal once it can be handled
    {"event": ...}
    {"ended": ID, "status"}                  the process that the request ID started beside
    {"id", ...}                              the answer to a request, or its error
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TypeAlias, final

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
)
from elasticdl.cluster.event_bus import ProcessEvent

Message: TypeAlias = dict[str, Any]
RESTART_VARIABLE: Final = "ELASTICDL_RESTART"
"""In a master's environment: how many masters the job had before it."""


@final
@dataclass(frozen=True, slots=True)
class Predecessor:
    """How the previous master of a job ended, and when: `ended_at` is unix time."""

    status: ExitStatus
    lived_s: float
    ended_at: float


@final
@dataclass(frozen=True, slots=True)
class Welcome:
    """What a master gets first.

    `kept` are values that earlier masters of the job gave to keep, such as its token.
    """

    kept: Mapping[str, str] = field(default_factory=dict, repr=False)
    before: Predecessor | None = None

    def to_plain(self) -> Message:
        before = self.before and {
            "status": status_plain(self.before.status),
            "lived_s": self.before.lived_s,
            "ended_at": self.before.ended_at,
        }
        return {"welcome": {"kept": dict(self.kept), "before": before}}

    @classmethod
    def of(cls, message: Message) -> Self:
        """The inverse of `to_plain`. Raises KeyError, TypeError."""
        welcome = message["welcome"]
        before = welcome["before"] and Predecessor(
            status_of(welcome["before"]["status"]),
            float(welcome["before"]["lived_s"]),
            float(welcome["before"]["ended_at"]),
        )
        return cls(welcome["kept"], before)


def spec_plain(spec: ProcessSpec) -> Message:
    """Return a spec for JSON, with its secrets: the socket has no other reader."""
    return {
        "name": str(spec.name),
        "command": list(spec.command),
        "env": dict(spec.env),
        "secrets": dict(spec.secrets),
        "cores": spec.cores,
        "memory_bytes": spec.memory_bytes,
    }


def spec_of(plain: Message) -> ProcessSpec:
    """The inverse of `spec_plain`."""
    return ProcessSpec(
        ProcessName.parse(plain["name"]),
        tuple(plain["command"]),
        plain["env"],
        plain["secrets"],
        plain["cores"],
        plain["memory_bytes"],
    )


def status_plain(status: ExitStatus) -> Message:
    """Return an exit for JSON."""
    return asdict(status)


def status_of(plain: Message) -> ExitStatus:
    """The inverse of `status_plain`."""
    return ExitStatus(**{**plain, "conditions": tuple(plain["conditions"])})


def event_plain(event: ProcessEvent) -> Message:
    """Return an event for JSON."""
    match event:
        case ProcessObserved(name, running, where, waiting_for):
            seen = {"running": running, "where": where, "waiting_for": waiting_for}
            return {"name": str(name), "observed": seen}
        case ProcessExited(name, status):
            return {"name": str(name), "exited": status_plain(status)}


def event_of(plain: Message) -> ProcessEvent:
    """The inverse of `event_plain`."""
    name = ProcessName.parse(plain["name"])
    if "exited" in plain:
        return ProcessExited(name, status_of(plain["exited"]))
    return ProcessObserved(name, **plain["observed"])


def error_plain(error: Exception) -> Message:
    """Return the part of an answer that says why a request failed."""
    match error:
        case CreateRefused():
            return {"refused": error.reason, "retry": error.retry}
        case OSError():
            return {"os_error": [error.errno or 0, error.strerror or str(error)]}
        case _:
            return {"failed": repr(error)}


def error_of(answer: Message) -> Exception | None:
    """The inverse of `error_plain`; None if the request succeeded."""
    if "refused" in answer:
        return CreateRefused(answer["refused"], retry=answer["retry"])
    if "os_error" in answer:
        return OSError(*answer["os_error"])
    if "failed" in answer:
        return RuntimeError(f"the supervisor failed: {answer['failed']}")
    return None
