"""The process table: every worker and parameter server, from its start to its end.

A worker's index is never reused. A parameter server keeps its index and comes back as the next
incarnation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.processes.causes import ASKED, Cause
from elasticdl.master.core.processes.worker_times import WorkerTimes
from elasticdl.shard import ShardId

_CLOCKS_S = 5.0
"""By how much a worker's account may exceed the time that the master has seen."""
LEAVE_LIMIT_S = 60.0
"""A worker that drains or fails by itself may take this long to end, then it is given up."""
SHOWN_ENDED = 200
"""Ended processes that are shown; the record of the job has them all."""


class Life(StrEnum):
    """The state of a process."""

    REQUESTED = "requested"
    """Ordered; the cluster has not shown it yet."""
    REFUSED = "refused"
    """The cluster refused to create it; tried again at `deadline_s`."""
    PENDING = "pending"
    """The cluster shows it, but it does not run yet; `message` says why."""
    STARTING = "starting"
    """It runs and has not attached yet."""
    READY = "ready"
    """It attached. A worker that is still in a `part` of its start is shown as starting."""
    STOPPING = "stopping"
    """Asked to end; `message` says why. It may still give work back."""
    LOST = "lost"
    """Given up before its end was seen: its reports no longer count."""
    ENDED = "ended"


_LIVE = (Life.REQUESTED, Life.REFUSED, Life.PENDING, Life.STARTING, Life.READY)


@dataclass(slots=True, eq=False)
class Census:
    """What follows from the states of all processes, kept up to date as they change.

    Decisions after every event read it, with up to ten thousand workers.
    """

    live_changes: int = 0
    """How often a process became live, or ceased to be."""
    refused: dict[ProcessName, Process] = field(default_factory=dict)
    """Processes in REFUSED."""
    unreplaced: dict[ProcessName, Process] = field(default_factory=dict)
    """Processes that are not live any more, without those that are known to be replaced."""
    coming: dict[ProcessName, Process] = field(default_factory=dict)
    """Live processes that are not ready for work yet."""
    unproven: dict[ProcessName, Process] = field(default_factory=dict)
    """Live workers that have made no progress yet."""
    leaving: dict[ProcessName, Process] = field(default_factory=dict)
    """Processes in STOPPING."""
    lost: dict[ProcessName, Process] = field(default_factory=dict)
    """Processes in LOST."""

    def begins(self, process: Process) -> None:
        """Note a new process."""
        self.live_changes += 1
        self.coming[process.name] = process
        if process.name.role is Role.WORKER:
            self.unproven[process.name] = process

    def enters(self, process: Process, life: Life) -> None:
        """Note that a process enters a state."""
        if life is Life.REFUSED:
            self.refused[process.name] = process
        elif process.life is Life.REFUSED:
            del self.refused[process.name]
        if life is Life.STOPPING:
            self.leaving[process.name] = process
        else:
            self.leaving.pop(process.name, None)
        if life is Life.LOST:
            self.lost[process.name] = process
        else:
            self.lost.pop(process.name, None)
        if process.live and life not in _LIVE:
            self.live_changes += 1
            self.unreplaced[process.name] = process
            self.coming.pop(process.name, None)
            self.unproven.pop(process.name, None)


@dataclass(slots=True)
class Process:
    """One process.

    `since_s`: when it entered its present state. `deadline_s`: when that state has lasted too long.
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
    """The version that a parameter server restored when it started."""
    attached: bool = False
    finished: bool = False
    """It knows that there is no more work."""
    failure_reported: bool = False
    """Its user code's failure was reported and counted, so its exit is not counted again."""
    revoked: bool = False
    """Its leases were voided and it has not asked for new ones since.

    If it gives work back, it need not be draining.
    """
    evaluated_records: int = 0
    busy_since_s: float = 0.0
    """Time of its last progress, or of its first lease after it had none."""
    deadline_s: float | None = None
    refusals: int = 0
    ordered_s: float = 0.0
    """When its start was due: `started_s` plus the back-off."""
    memory_bytes: int | None = None
    """Its memory limit; None: no limit is known."""
    ran: bool = False
    leased: bool = False
    """It had a lease, so its start is over."""
    works: bool = False
    """It made progress, by itself or with its ring."""
    running_s: float | None = None
    """When the cluster first showed that it runs."""
    census: Census = field(default_factory=Census, repr=False, compare=False)
    """The census of the table."""
    ready_s: float | None = None
    attached_s: float | None = None
    part: str = ""
    """The part of its start that it is in after attaching; '' when it is ready for work."""
    part_since_s: float = 0.0
    took_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each finished part of its start took."""
    instance: str = ""
    """What distinguishes it from another process of its name, as it said when it attached."""
    place: ProcessName | None = None
    """The process in whose place the platform starts it; see `ProcessObserved`."""
    ladder_place: int | None = None
    """See `ProcessObserved`."""
    in_gang: bool = False
    """It gets a place together with the servers and other workers; set at its start."""
    stop_ordered: bool = False
    """The cluster was asked to end it."""
    replaced: bool = False
    """Another was ordered in its place, or none will be."""
    hung_since_s: float | None = None
    """When the code began that did not return, if the process has to end for that."""
    lost_shard: ShardId | None = None
    """The training shard that it worked on when it was given up."""
    slow_times: float = 0.0
    """How many times slower than the others it is, if that is announced; 0: it is not slow."""
    slow_since_s: float = 0.0
    """When it was found to be slow."""
    cpu_share: float | None = None
    """How much of the CPU time that it asks for it gets, from 0 to 1; None: unknown."""
    backups: int = 0
    """How often idle workers got its leases."""

    @property
    def live(self) -> bool:
        """Whether it works, or is expected to."""
        return self.life in _LIVE

    @property
    def up(self) -> bool:
        """Whether it is ready for work: the only sense of "ready" that people see."""
        return self.life is Life.READY and not self.part

    @property
    def began_s(self) -> float | None:
        """When it first ran, as far as known."""
        known = [at_s for at_s in (self.running_s, self.attached_s) if at_s is not None]
        return min(known, default=None)

    def launch_s(self, now_s: float) -> float:
        """Seconds that it ran before it attached, or until now."""
        began_s = now_s if self.began_s is None else self.began_s
        return (now_s if self.attached_s is None else self.attached_s) - began_s

    @property
    def heard(self) -> bool:
        """Whether its reports count."""
        return self.life not in (Life.LOST, Life.ENDED)

    def enter(
        self, life: Life, at_s: float, message: str = "", *, deadline_s: float | None = None
    ) -> None:
        """Change the state. Raises ImpossibleTransition from ENDED."""
        if self.life is Life.ENDED:
            raise ImpossibleTransition(
                f"{self.name} has ended ({self.message}) and cannot become {life}"
            )
        # Every change of state passes here, so the census cannot go stale.
        self.census.enters(self, life)
        self.life, self.since_s, self.message, self.deadline_s = life, at_s, message, deadline_s
        self._count_coming()

    def enter_part(self, part: str, at_s: float) -> None:
        """Enter a part of the start after attaching; '' ends the start."""
        self.part, self.part_since_s = part, at_s
        self._count_coming()

    def progressed(self) -> None:
        """Note that it made progress."""
        self.works = True
        self.census.unproven.pop(self.name, None)

    def _count_coming(self) -> None:
        if self.live and not self.up:
            self.census.coming[self.name] = self
        else:
            self.census.coming.pop(self.name, None)


def _index(process: Process) -> int:
    return process.name.index


@final
class Processes:
    """All processes by name; ended ones stay, for people."""

    def __init__(self) -> None:
        self.all: dict[ProcessName, Process] = {}
        self.shown: dict[ProcessName, Process] = {}
        """Running processes and the newest 200 ended ones, in the order of their starts."""
        self.ends: dict[Role, Counter[Cause]] = {role: Counter() for role in (Role.PS, Role.WORKER)}
        self._shown_ended: deque[ProcessName] = deque()
        self.going: dict[ProcessName, Process] = {}
        """Processes that have not ended."""
        self.times = WorkerTimes()
        self.next_worker = 0
        self.worker_ended_s = -1.0
        """When a worker was last seen to end, or cut off from the servers; below 0: never."""
        self._census = Census()
        self._live: list[Process] = []
        self._live_at = -1
        """The count of changes that `_live` is from."""
        self.servers: list[Process] = []
        """All parameter servers that were ever started."""
        self._servers: dict[int, Process] = {}
        """The newest incarnation of each parameter server."""

    def start(self, name: ProcessName, at_s: float) -> Process:
        """Add a process. Raises ImpossibleTransition for a name that was used before."""
        if name in self.all:
            raise ImpossibleTransition(f"{name} was started before: {self.all[name]}")
        process = Process(name, Life.REQUESTED, at_s, at_s, ordered_s=at_s, census=self._census)
        self._census.begins(process)
        self.all[name] = self.going[name] = self.shown[name] = process
        if name.role is Role.PS:
            self.servers.append(process)
            self._servers[name.index] = process
        return process

    def new_worker_name(self) -> ProcessName:
        """A worker's name that was never used."""
        name = ProcessName(Role.WORKER, self.next_worker)
        self.next_worker += 1
        return name

    def end(self, process: Process, cause: Cause, message: str, at_s: float) -> None:
        process.enter(Life.ENDED, at_s, message)
        process.cause = cause
        if process.name.role is Role.WORKER:
            self.worker_ended_s = at_s
        if process.name.role is Role.WORKER and process.began_s is not None:
            lost = None if cause in ASKED else str(cause)
            self._count_hang(process, at_s)
            self.times.ended(process.name, process.launch_s(at_s), at_s - process.began_s, lost)
        del self.going[process.name]
        self.ends[process.name.role][cause] += 1
        self._shown_ended.append(process.name)
        if len(self._shown_ended) > SHOWN_ENDED:
            del self.shown[self._shown_ended.popleft()]

    def spent(self, name: ProcessName, spent_s: Mapping[str, float], now_s: float) -> bool:
        """Take in a worker's account of its time; False from one that has ended."""
        process = self.going.get(name) if name.role is Role.WORKER else None
        if process is None or process.attached_s is None:
            return False
        # A broken worker must not claim more time than it has had.
        most_s, whole_s = now_s - process.attached_s + _CLOCKS_S, sum(spent_s.values())
        if whole_s > most_s:
            spent_s = {use: use_s * most_s / whole_s for use, use_s in spent_s.items()}
        self.times.reported(name, process.launch_s(now_s), spent_s)
        self._count_hang(process, now_s)
        return True

    def hang(self, process: Process, since_s: float, now_s: float) -> None:
        """Note that a worker has to end since its code has not returned since then."""
        process.hung_since_s = since_s
        self._count_hang(process, now_s)

    def _count_hang(self, process: Process, now_s: float) -> None:
        if process.hung_since_s is not None and process.began_s is not None:
            ran_s, hung_s = now_s - process.began_s, now_s - process.hung_since_s
            self.times.hung(process.name, ran_s, hung_s)

    def take_unreplaced(self, name: ProcessName) -> Process | None:
        """The process that `name` replaces: the first ended or leaving one without a successor.

        It then counts as replaced and is not returned again.
        """
        unreplaced = self._census.unreplaced
        for process in [process for process in unreplaced.values() if process.replaced]:
            del unreplaced[process.name]
        candidates = [
            process.name
            for process in unreplaced.values()
            if process.name.role is name.role
            and (name.role is Role.WORKER or process.name.index == name.index)
        ]
        if not candidates:
            return None
        # In the order of their starts.
        first = unreplaced.pop(
            min(candidates, key=lambda candidate: (candidate.index, candidate.incarnation))
        )
        first.replaced = True
        return first

    def workers(self) -> Iterator[Process]:
        """Workers that have not ended."""
        return (process for process in self.going.values() if process.name.role is Role.WORKER)

    def live_workers(self) -> list[Process]:
        """Workers that work or are expected to, by index."""
        # Read after every event, so it is rebuilt only after a change. Callers must not change the
        # list.
        if self._live_at != self._census.live_changes:
            live = [
                process
                for process in self.going.values()
                if process.name.role is Role.WORKER and process.live
            ]
            self._live, self._live_at = sorted(live, key=_index), self._census.live_changes
        return self._live

    def coming_workers(self) -> Iterator[Process]:
        """Live workers that are not ready for work yet."""
        return (
            process for process in self._census.coming.values() if process.name.role is Role.WORKER
        )

    def up_workers(self) -> int:
        """How many workers are ready for work."""
        return len(self.live_workers()) - sum(1 for _ in self.coming_workers())

    @property
    def some_coming(self) -> bool:
        """Whether a live process is not ready for work yet."""
        return bool(self._census.coming)

    @property
    def all_up(self) -> bool:
        """Whether all processes that have not ended are ready for work."""
        census = self._census
        return not (census.coming or census.leaving or census.lost)

    def unproven_workers(self) -> Collection[Process]:
        """Live workers that have made no progress yet."""
        return self._census.unproven.values()

    @property
    def leaving_workers(self) -> bool:
        """Whether a worker was asked to end and has not ended."""
        return any(name.role is Role.WORKER for name in self._census.leaving)

    @property
    def live_changes(self) -> int:
        """How often a process became live, or ceased to be."""
        return self._census.live_changes

    def refused(self) -> list[Process]:
        """Processes that the cluster refused to create, and that have not ended."""
        return list(self._census.refused.values())

    def ran(self, role: Role) -> bool:
        """Whether any process of that role ever ran."""
        return any(process.ran for process in self.all.values() if process.name.role is role)

    def server(self, index: int) -> Process | None:
        """The parameter server of that index that works or is expected to."""
        process = self._servers.get(index)
        return process if process and process.live else None

    def next_incarnation(self, index: int) -> int:
        """The incarnation of the next start of a parameter server."""
        newest = self._servers.get(index)
        return newest.name.incarnation + 1 if newest else 0

    def addresses(self, servers: range) -> tuple[str, ...]:
        """Bulk addresses of the servers with these indices, '' where one is away."""
        ready = self._ready
        processes = [ready(index) for index in servers]
        return tuple([process.bulk_address if process is not None else "" for process in processes])

    def away(self, servers: range) -> list[int]:
        """Those of these indices whose servers are not ready."""
        # Decisions after every event ask this.
        ready = self._ready
        return [index for index in servers if ready(index) is None]

    def _ready(self, index: int) -> Process | None:
        process = self._servers.get(index)
        return process if process is not None and process.life is Life.READY else None
