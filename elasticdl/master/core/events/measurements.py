"""What processes measured: times, delays, shares, dropped messages."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.master.core.events.base import Event


@dataclass(frozen=True, slots=True)
class ActivityReported(Event):
    """A worker has spent `age_s` in one activity (`feed`, a step, a read).

    '' if it no longer does anything that takes long.
    """

    worker: ProcessName
    what: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StalenessChosen(Event):
    """A worker decided how many of its own updates its steps may miss.

    `share` is what pull and push take, as a share of a step.
    """

    worker: ProcessName
    limit: int
    share: float


@dataclass(frozen=True, slots=True)
class StepDelayed(Event):
    """A synchronous step waits for gradients of the `missing` workers; '' if it does no longer."""

    reason: str = ""
    missing: tuple[ProcessName, ...] = ()


@dataclass(frozen=True, slots=True)
class StepsWaited(Event):
    """In `waited_s` of the last `of_s` seconds, synchronous steps had all gradients but its own."""

    worker: ProcessName
    waited_s: float
    of_s: float


@dataclass(frozen=True, slots=True)
class ServerDelayed(Event):
    """Most workers wait `took_ms` for this server in a pull and push, `others_ms` for the others.

    `server` is its index; None: they no longer wait for any in particular.
    """

    server: int | None = None
    took_ms: float = 0.0
    others_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuShareReported(Event):
    """A process gets this share of the CPU time that its threads ask for, from 0 to 1.

    Reported when it changed by much.
    """

    name: ProcessName
    share: float


@dataclass(frozen=True, slots=True)
class TimeReported(Event):
    """What workers have spent their time on since they attached: seconds by worker and `TimeUse`.

    One event has the accounts of many, and a worker's is in it again only with later ones.
    """

    spent_s: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class MessagesDropped(Event):
    """The master's transport or a process dropped messages before they reached the core."""

    name: ProcessName
    cause: DropCause
    count: int
