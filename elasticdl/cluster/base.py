"""The seam between the job and whatever runs its processes.

Nothing above it knows what a pod is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """What a process is for."""

    MASTER = "master"
    WORKER = "worker"
    PS = "ps"


@dataclass(frozen=True, slots=True, order=True)
class ProcessName:
    """`worker-3`: a role and an index.

    A worker's index is never used twice in a job; a parameter server keeps its
    index for life and comes back under a higher `incarnation`.
    """

    role: Role
    index: int
    incarnation: int = 0

    def __hash__(self) -> int:
        # Of numbers only: faster than of the role, and the same in every process, so that runs can
        # be repeated exactly.
        return hash((self.index, self.incarnation))

    def __str__(self) -> str:
        suffix = f".{self.incarnation}" if self.incarnation else ""
        return f"{self.role}-{self.index}{suffix}"

    @classmethod
    def parse(cls, text: str) -> ProcessName:
        """The inverse of `str`. Raises ValueError."""
        stem, _, incarnation = text.partition(".")
        role, _, index = stem.rpartition("-")
        return cls(Role(role), int(index), int(incarnation or 0))


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start: an argument vector (never a shell string) and its environment.

    `secrets` are environment entries that must not be shown or logged; `cores` is the share of
    cores it may count on.
    `memory_bytes`: what it is to have instead of what its role has; None: as its role. Local
    processes have no limit.
    """

    name: ProcessName
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    cores: float = 1.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """What is known of an exit, uninterpreted: `master/core/processes/failures.py` makes one cause
    of it.

    Exactly one of `exit_code` and `signal` is set unless nothing is known (a lost node). `reason`
    and `conditions` are
    the platform's own words (`OOMKilled`, `DisruptionTarget:PreemptionByScheduler`); `log_tail` the
    last lines printed.
    """

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    conditions: tuple[str, ...] = ()
    log_tail: str = ""
    asked: bool = False
    """We ended it ourselves through `Cluster.delete`."""
    memory_peak_bytes: int | None = None
    """The most memory that it told of while it lived; None: it told nothing."""


@dataclass(frozen=True, slots=True)
class ProcessObserved:
    """A process is there. `where` is the node, for people."""

    name: ProcessName
    running: bool
    where: str = ""
    waiting_for: str = ""
    """Why it does not run yet, in words; empty when running."""


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process has ended."""

    name: ProcessName
    facts: ExitFacts


class CreateRefused(Exception):
    """The platform would not create a process.

    `retry` tells whether it may later (quota) or never (forbidden).
    """

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log that there is.

    `process` is what `read_log` takes; `size_bytes` is None where only reading would tell.
    """

    process: str
    size_bytes: int | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of a log from `start` on. `size_bytes`: how many it has by now."""

    start: int
    data: bytes
    size_bytes: int


class NoSuchLog(LookupError):
    """There is no log of that process, or not any more: the message says which."""


class Cluster(Protocol):
    """Where processes run.

    Events come at least once; after a gap the list is read again, so no exit is lost.
    """

    async def create(self, spec: ProcessSpec) -> None:
        """Start a process; idempotent by name. Raises CreateRefused."""

    async def delete(self, name: ProcessName, *, grace_s: float) -> None:
        """Ask a process to end, and end it after `grace_s`.

        Absent is success. Returns without waiting for the end.
        """

    def observe(self) -> AsyncIterator[ProcessObserved | ProcessExited]:
        """Every live process first, then whatever happens, until the iterator is closed."""

    @property
    def view_age_s(self) -> float | None:
        """How old the view of the processes may be, in seconds; None where it cannot be old."""

    async def logs(self) -> Sequence[LogFile]:
        """The logs that can be read: of live processes, and of ended ones as long as they are kept.

        Raises ElasticDLError.
        """

    async def read_log(self, process: str, start: int, limit_bytes: int) -> LogPart:
        """At most `limit_bytes` of a log from byte `start` on, or (negative) from that many before
        its end.

        `process` is looked up among what is there, never made into a path. Raises NoSuchLog,
        ElasticDLError.
        """

    async def close(self) -> None:
        """End every process that is left, and wait for that.

        The cluster cannot be used afterwards.
        """
