"""The start, the presence and the end of a process."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.master.core.events.base import Event
from elasticdl.shard import Applied, ReceivedLease


@dataclass(frozen=True, slots=True)
class ProcessSeen(Event):
    """The cluster reported a process."""

    name: ProcessName
    running: bool
    where: str = ""
    waiting_for: str = ""
    place: ProcessName | None = None
    ladder_place: int | None = None
    """See `ProcessObserved`."""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """The cluster reported that a process ended."""

    name: ProcessName
    exit_status: ExitStatus


@dataclass(frozen=True, slots=True)
class CreateFailed(Event):
    """The cluster refused to create a process."""

    name: ProcessName
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class ProcessAttached(Event):
    """A process started and attached to the master.

    A parameter server gives the addresses of its two planes and the version it restored (None: it
    has no state yet). `kept`: it has taken on the memory of the process before, with every update.
    With `starting`, a worker reports with `StartWentOn` when it is ready for work. `instance`
    distinguishes it from another process of that name.
    """

    name: ProcessName
    control_address: str = ""
    bulk_address: str = ""
    restored_version: int | None = None
    starting: bool = False
    instance: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ProcessReturned(Event):
    """A process that had attached to an earlier master attached to this one.

    `received` are the newest leases that reached it: of those that it holds, no other did.
    """

    name: ProcessName
    received: tuple[ReceivedLease, ...] = ()


@dataclass(frozen=True, slots=True)
class StartWentOn(Event):
    """A worker reached another part of its start (`formatting.START_PARTS`); '': ready for work."""

    worker: ProcessName
    part: str


@dataclass(frozen=True, slots=True)
class ServerStandsBy(Event):
    """A server of the next map has started, or has loaded a checkpoint, and waits for orders."""

    name: ProcessName
    loaded: str = ""
    """The directory of the checkpoint that it was told to load and has loaded."""
    not_loaded: str = ""
    """The directory of one that was removed or replaced before. Both are '' if it has just started,
    or repeats a call whose answer was lost.
    """


@dataclass(frozen=True, slots=True)
class ProcessSilent(Event):
    """An attached process sent nothing for `silent_s` seconds.

    `connected`: its connection is open, so that it seems to hang. That of one that exited is not.
    """

    name: ProcessName
    silent_s: float
    connected: bool = True


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """The open call of a process ended, and the master did not end it.

    The process may be dead; the cluster reports that later.
    """

    name: ProcessName


@dataclass(frozen=True, slots=True)
class StateReported(Event):
    """A process answered AskState with its leases, its position in each, and its thread stacks.

    `doing` describes its current activity in words. `frames` are the frames of the user's code
    there, outermost first, as `FILE:LINE, in FUNCTION`.
    """

    process: ProcessName
    held: tuple[Applied, ...] = ()
    stacks: str = ""
    doing: str = ""
    frames: tuple[str, ...] = ()
