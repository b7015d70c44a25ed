"""The protocol between a job and the platform that runs its processes.

No module above it knows about pods.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

STOPPED = "Stopped"
"""The condition of a process that SIGSTOP had stopped before its end."""


class Role(StrEnum):
    """The purpose of a process."""

    MASTER = "master"
    WORKER = "worker"
    PS = "ps"


@dataclass(frozen=True, slots=True, order=True)
class ProcessName:
    """`worker-3`: a role and an index.

    A job never uses a worker's index twice. A parameter server keeps its index for life and comes
    back with a higher `incarnation`.
    """

    role: Role
    index: int
    incarnation: int = 0

    def __hash__(self) -> int:
        # Hash only the numbers: this is faster, and equal in every process, so that runs are
        # reproducible.
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

    `secrets` are environment variables that must not be shown or logged. `cores` is the process's
    share of cores. `memory_bytes` replaces the role's memory limit; None keeps it. Local processes
    have no limit.
    """

    name: ProcessName
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    cores: float = 1.0
    memory_bytes: int | None = None
    in_gang: bool = False
    """The platform is to give all of the job's gang a place, or none of it."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """An exit as the platform reports it: `master/core/processes/causes.py` derives its cause.

    Exactly one of `exit_code` and `signal` is set, unless nothing is known (a lost node). `reason`
    and `conditions` are the platform's terms (`OOMKilled`,
    `DisruptionTarget:PreemptionByScheduler`). `log_tail` is the last lines printed.
    """

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    conditions: tuple[str, ...] = ()
    log_tail: str = ""
    asked: bool = False
    """The job itself ended the process through `Cluster.delete`."""
    memory_peak_bytes: int | None = None
    """The peak memory that the process reported; None: it reported nothing."""


@dataclass(frozen=True, slots=True)
class ProcessObserved:
    """A process exists; `where` names its node, for people."""

    name: ProcessName
    running: bool
    where: str = ""
    waiting_for: str = ""
    """Why it does not run yet, as text; empty when it runs."""
    place: ProcessName | None = None
    """The process that the platform was asked for, if it starts others after it in its place."""
    ladder_place: int | None = None
    """The k of worker k on the priority ladder; None: it has none there."""


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process has ended."""

    name: ProcessName
    exit_status: ExitStatus


class CreateRefused(Exception):
    """The platform refuses to create a process.

    `retry` is True if it may succeed later (quota), and False if it never will (forbidden).
    """

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry


class Cluster(Protocol):
    """Where processes run.

    Events arrive at least once. After a gap the list is read again, so that no exit is lost.
    """

    async def create(self, spec: ProcessSpec) -> None:
        """Start a process; idempotent by name. Raises CreateRefused."""

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        """Ask a process to end, and kill it after `grace_s`.

        An absent process is no error. Returns without waiting for the end. `for_good`: no process
        follows in its place, so nothing of it is kept for one.
        """

    def observe(self) -> AsyncGenerator[ProcessObserved | ProcessExited]:
        """Every live process first, then all events, until the iterator is closed."""

    @property
    def view_age_s(self) -> float | None:
        """The age of the view of the processes, in seconds; None if it is always current."""

    async def close(self) -> None:
        """End every remaining process and wait for the ends.

        The cluster is unusable afterwards.
        """
