"""The process table: every worker and parameter server of the job, from its start to its end with
its cause.

A worker's index is never used twice. A parameter server keeps its index and comes back under the
next incarnation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.processes.failures import Cause

SHOWN_ENDED = 200
"""Of a job of days: the record has them all."""


class Life(StrEnum):
    """Where a process is between start and end."""

    REQUESTED = "requested"
    """Ordered; the cluster has not shown it yet."""
    REFUSED = "refused"
    """The cluster would not create it; tried again at `retry_at_s`."""
    PENDING = "pending"
    """The cluster shows it, but it does not run yet: `message` says why."""
    STARTING = "starting"
    """It runs and has not presented itself yet."""
    READY = "ready"
    """It presented itself. A worker that is at a `part` of its start then is shown as starting."""
    STOPPING = "stopping"
    """Asked to end; `message` says why. It may still give work back."""
    LOST = "lost"
    """Given up before its end was seen: nothing that it says counts any more."""
    ENDED = "ended"


_LIVE = (Life.REQUESTED, Life.REFUSED, Life.PENDING, Life.STARTING, Life.READY)


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Process:
    """One process.

    `since_s`: when it came into its present state. `deadline_s`: when that state has lasted too
    long.
    """

    name: ProcessName
    life: Life
    since_s: float
    started_s: float
    message: str = ""
    where: str = ""
    cause: Cause | None = None
    control_address: str = ""
    bulk_address: str = ""
    restored_version: int = 0
    """Of a parameter server: the version it came up with."""
    attached: bool = False
    finished: bool = False
    """It was told that there is no more work."""
    failure_reported: bool = False
    """Its user code's failure was told and counted already: its exit is not counted again."""
    revoked: bool = False
    """Its leases were voided and it has not asked for new ones since: what it gives back is no sign
    of draining.
    """
    done_records: int = 0
    """Of whatever task, as it reported: whether and when it gets on.

    What counts as done is the ledger's to say.
    """
    evaluated_records: int = 0
    busy_since_s: float = 0.0
    """Last progress, or when it got a lease while it had none."""
    deadline_s: float | None = None
    refusals: int = 0
    ordered_s: float = 0.0
    """When its start was due: later than `started_s` by the pause before it."""
    memory_bytes: int | None = None
    """What it may use; None: nothing is known to limit it."""
    ran: bool = False
    leased: bool = False
    """It had a lease: it has come up."""
    works: bool = False
    """It made progress, by itself or with its ring."""
    running_s: float | None = None
    """When the cluster first showed that it runs."""
    changes: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    """Called when it comes into another state."""
    ready_s: float | None = None
    attached_s: float | None = None
    part: str = ""
    """Of its start, which it is at since it presented itself; '' when it is ready for work."""
    part_since_s: float = 0.0
    took_s: dict[str, float] = field(default_factory=dict)
    """How long the parts of its start took that are over."""
    replaced: bool = False
    """Another was ordered in its place, or none is to be."""

    @property
    def live(self) -> bool:
        """It works, or may be expected to."""
        return self.life in _LIVE

    @property
    def up(self) -> bool:
        """Ready for work, in the one sense that this word has for people."""
        return self.life is Life.READY and not self.part

    @property
    def heard(self) -> bool:
        """What it says counts."""
        return self.life not in (Life.LOST, Life.ENDED)

    def enter(
        self, life: Life, at_s: float, message: str = "", *, deadline_s: float | None = None
    ) -> None:
        """Change the state. Raises ImpossibleTransition out of ENDED."""
        if self.life is Life.ENDED:
            raise ImpossibleTransition(
                f"{self.name} has ended ({self.message}) and cannot become {life}"
            )
        self.changes()
        self.life, self.since_s, self.message, self.deadline_s = life, at_s, message, deadline_s


def _index(process: Process) -> int:
    return process.name.index


@final
class Processes:
    """All processes by name; the ended ones stay for people to see."""

    def __init__(self) -> None:
        self.all: dict[ProcessName, Process] = {}
        self.shown: dict[ProcessName, Process] = {}
        """Those that have not ended and the newest 200 that have, in the order of their starts."""
        self.ends: dict[Role, Counter[Cause]] = {role: Counter() for role in (Role.PS, Role.WORKER)}
        self._shown_ended: deque[ProcessName] = deque()
        self.going: dict[ProcessName, Process] = {}
        """Those that have not ended."""
        self.next_worker = 0
        self._live: list[Process] | None = None
        self._servers: dict[int, Process] = {}
        """The newest incarnation of each."""

    def start(self, name: ProcessName, at_s: float) -> Process:
        """A new entry. Raises ImpossibleTransition for a name that was used before."""
        if name in self.all:
            raise ImpossibleTransition(f"{name} was started before: {self.all[name]}")
        process = Process(name, Life.REQUESTED, at_s, at_s, ordered_s=at_s, changes=self._forget)
        self._forget()
        self.all[name] = self.going[name] = self.shown[name] = process
        if name.role is Role.PS:
            self._servers[name.index] = process
        return process

    def new_worker_name(self) -> ProcessName:
        """A worker's name that was never used."""
        name = ProcessName(Role.WORKER, self.next_worker)
        self.next_worker += 1
        return name

    def end(self, process: Process, cause: Cause, message: str, at_s: float) -> None:
        """The process is gone for good."""
        process.enter(Life.ENDED, at_s, message)
        process.cause = cause
        del self.going[process.name]
        self.ends[process.name.role][cause] += 1
        self._shown_ended.append(process.name)
        if len(self._shown_ended) > SHOWN_ENDED:
            del self.shown[self._shown_ended.popleft()]

    def take_unreplaced(self, name: ProcessName) -> Process | None:
        """In whose place `name` comes: the first that is gone or going without another; that one is
        not given again.
        """
        for process in self.all.values():
            if process.name.role is not name.role or process.live or process.replaced:
                continue
            if name.role is Role.WORKER or process.name.index == name.index:
                process.replaced = True
                return process
        return None

    def workers(self) -> Iterator[Process]:
        """Workers that have not ended."""
        return (process for process in self.going.values() if process.name.role is Role.WORKER)

    def live_workers(self) -> list[Process]:
        """Workers that work, or may be expected to, in the order of their index."""
        # Looked at after every event, and there may be a thousand: made anew only after one of them
        # changed. Nobody changes the list.
        if self._live is None:
            live = [
                process
                for process in self.going.values()
                if process.life in _LIVE and process.name.role is Role.WORKER
            ]
            self._live = sorted(live, key=_index)
        return self._live

    def _forget(self) -> None:
        self._live = None

    def ran(self, role: Role) -> bool:
        """Whether any process of that role ever ran."""
        return any(process.ran for process in self.all.values() if process.name.role is role)

    def server(self, index: int) -> Process | None:
        """The parameter server of that index that works or may be expected to."""
        process = self._servers.get(index)
        return process if process and process.live else None

    def next_incarnation(self, index: int) -> int:
        """The incarnation under which a parameter server comes (back)."""
        newest = self._servers.get(index)
        return newest.name.incarnation + 1 if newest else 0

    def addresses(self, servers: int) -> tuple[str, ...]:
        """Bulk addresses in index order, '' where a server is away."""
        found = (self.server(index) for index in range(servers))
        return tuple(
            process.bulk_address if process and process.life is Life.READY else ""
            for process in found
        )

    def away(self, servers: int) -> list[int]:
        """Indices of servers that are not ready."""
        found = ((index, self.server(index)) for index in range(servers))
        return [
            index for index, process in found if process is None or process.life is not Life.READY
        ]
