"""Simulated parameter servers: which pushes they let in, as `ps/native/admission.cc` decides, and
the way to them.

Instead of weights a server has the list of the pushes that are in them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from elasticdl.errors import Corrupted, ElasticDLError, ExitCode, Refused, TransientError
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.rpc.conversation import Drain, Finish, Load, Order, Report, Restore, WrittenFile
from elasticdl.rpc.parameters import Pulled, Pushed, Update
from elasticdl.rpc.ps_control import Fenced, RecentSteps, ServerCut, ServerSaved
from elasticdl.shard import Applied, SnapshotId
from tests.simulation.cluster import Running
from tests.simulation.scheduler import Process, Scheduler, Task
from tests.simulation.threads import Lock
from tests.simulation.workload import ALL_KEPT

if TYPE_CHECKING:
    from tests.simulation.network import Client
    from tests.simulation.world import World

Key: TypeAlias = tuple[str, int]
"""A push: whose, and its number."""

_HEARTBEAT_S = 2.0
_AGAIN_S = 0.1
_SERVED_S = 0.02
"""How long a request takes at most, on a slow server so many times longer."""


@dataclass(slots=True)
class _Pushes:
    """Of one worker."""

    sequence: int = 0
    applied: Applied | None = None
    queued: int = 0
    gone: int = 0
    covered: int = 0
    here: bool = False
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a server has at one moment."""

    version: int
    log: tuple[Key, ...]
    pushes: Mapping[str, tuple[int, Applied]]
    steps: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Waiting:
    worker: str
    update: Update
    reply: Callable[[Any, BaseException | None], None]


@final
class Server:
    """One incarnation of a server."""

    def __init__(self, world: World, running: Running, servers: ServerMap) -> None:
        self._world = world
        self._scheduler: Scheduler = world.scheduler
        self._truth = world.truth
        self._in_steps = world.plan.spec.trains_in_steps
        self._staged: dict[Key, Update] = {}
        """Pushes that wait for their step, as `ps/native/steps.cc` keeps them."""
        self._step = 0
        self.steps: dict[int, tuple[tuple[str, int, float], ...]] = {}
        """All that it applied."""
        self.applied_steps: list[int] = []
        """The numbers of the steps in its weights."""
        self.running = running
        self.index = running.name.index
        self.map = servers
        self._sealed: SnapshotId | None = None
        self._undone = -1
        self.memory = next(world.memory_numbers) if world.plan.keeps_memory else 0
        """The number of its kept memory; 0: it keeps none."""
        self.version = 0
        self.term = 0
        """The newest master that it has heard of."""
        self.has_state = False
        self.replays = False
        self.log: list[Key] = []
        self.workers: dict[str, _Pushes] = {}
        self.views: dict[SnapshotId, View] = {}
        self.hurried: set[SnapshotId] = set()
        """Views that are written without further pauses."""
        self._held: list[_Waiting] = []
        self._opens_at_s = -1.0
        self._admit_until: Mapping[str, int] = {}
        self.broken: list[Callable[[], None]] = []
        """Called when the process dies: calls under way get no answer."""
        running.process.at_death.append(self._died)

    @property
    def dead(self) -> bool:
        return self.running.process.dead

    def restore(self, view: View, version: int) -> int:
        """Take what a checkpoint of that version has."""
        self.version, self.log, self.has_state = version, list(view.log), True
        self.replays = True
        self.applied_steps = list(view.steps)
        for worker, (sequence, applied) in view.pushes.items():
            self.workers[worker] = _Pushes(sequence, applied, covered=sequence)
        return self.version

    def take_on(self, before: Server) -> int:
        """Take on the memory that the process before has kept."""
        self.memory, self.version, self.log = before.memory, before.version, list(before.log)
        self.has_state, self.replays = before.has_state, before.replays
        self.applied_steps, self.steps = list(before.applied_steps), dict(before.steps)
        self._step, self._staged = before._step, dict(before._staged)
        for worker, one in before.workers.items():
            self.workers[worker] = _Pushes(one.sequence, one.applied, fenced=one.fenced)
        return self.version

    # Of workers

    def greet(
        self, worker: str, last: int, kept: bool, reply: Callable[[Any, BaseException | None], None]
    ) -> None:
        """A worker connects that has pushed up to `last`, and has `kept` the newest of them."""
        pushes = self.workers.setdefault(worker, _Pushes())
        if pushes.fenced:
            reply(None, _fenced(worker))
            return
        pushes.here = True
        pushes.gone = 0 if kept and self.replays else last
        reply((self, pushes.sequence), None)

    def push(
        self, worker: str, update: Update, reply: Callable[[Any, BaseException | None], None]
    ) -> None:
        self.has_state = True
        pushes = self.workers.setdefault(worker, _Pushes())
        pushes.here = True
        self._admit(_Waiting(worker, update, reply))

    def _admit(self, waiting: _Waiting) -> None:
        pushes, update = self.workers[waiting.worker], waiting.update
        if pushes.fenced:
            waiting.reply(None, _fenced(waiting.worker))
        elif update.sequence <= pushes.sequence:
            waiting.reply((self.version, pushes.covered), None)
        elif self._in_steps:
            self._staged[waiting.worker, update.sequence] = update
            waiting.reply((self.version, pushes.covered), None)
        elif self._gated and update.sequence > self._admit_until.get(waiting.worker, 0):
            pushes.queued = max(pushes.queued, update.sequence)
            self._held.append(waiting)
        else:
            pushes.queued = 0
            pushes.sequence, pushes.applied = update.sequence, update.applied
            self.version += 1
            self.log.append((waiting.worker, update.sequence))
            self._truth.applied(self.index, waiting.worker, update)
            waiting.reply((self.version, pushes.covered), None)

    def apply_step(self, number: int, named: Sequence[tuple[str, int, float]]) -> int:
        """As `Steps::apply`."""
        if number <= self._step:
            return self.version
        if self._gated:
            raise TransientError("no step: the gate is closed")
        if self._world.server_tears:
            # Others apply it.
            self._world.server_tears.pop()
            self._world.kill(self.running.process)
            raise TransientError("the server was killed")
        here = [(one[:2], self._staged[one[:2]]) for one in named if one[:2] in self._staged]
        self._truth.stepped(self.index, self.version, [update for _, update in here])
        for (worker, sequence), update in sorted(here, key=lambda one: one[0]):
            pushes = self.workers[worker]
            pushes.sequence, pushes.applied = sequence, update.applied
            self.log.append((worker, sequence))
            self._truth.applied(self.index, worker, update)
        self._staged.clear()
        self.version += 1
        self._step = number
        # Those that it has, as `Steps::end`.
        self.steps[number] = tuple(one for one in named if one[:2] in dict(here))
        # A server that lost its memory may be told a step again, but has no gradients of it.
        if len(here) == len(named):
            self.applied_steps.append(number)
        self._tear_master()
        return self.version

    def _tear_master(self) -> None:
        """The master may be killed when the first server has applied a step."""
        tears = self._world.master_tears
        for tear in tears:
            if tear.stage == "step":
                tear.left -= 1
                if tear.left < 0:
                    tears.remove(tear)
                    self._world.kill_master(tear.away_s)
                return

    def look_again(self) -> None:
        """The gate may be open for some that wait."""
        held, self._held = self._held, []
        for waiting in held:
            self._admit(waiting)

    # Of the master

    @property
    def _gated(self) -> bool:
        return self._scheduler.now_s < self._opens_at_s

    def close_gate(self, timeout_s: float) -> dict[str, int]:
        if self._sealed is not None:
            raise TransientError("the parameters of this server move to others")
        self._opens_at_s = self._scheduler.now_s + timeout_s
        self._admit_until = {}
        self._scheduler.after(timeout_s, self.look_again)
        return {
            name: pushes.sequence
            for name, pushes in self.workers.items()
            if pushes.applied is not None
        }

    def seal(self, snapshot: SnapshotId) -> dict[str, int]:
        """As `ps.servicer.ControlService.Seal`."""
        if snapshot <= self._undone or snapshot not in self.views:
            raise TransientError("the cut was given up")
        self._sealed, self._opens_at_s, self._admit_until = snapshot, math.inf, {}
        return {name: pushes.sequence for name, pushes in self.workers.items()}

    def unseal(self, snapshot: SnapshotId) -> None:
        self._undone = max(self._undone, snapshot)
        if self._sealed == snapshot:
            self._sealed = None
            self.open_gate()

    def let_in(self, admit_until: Mapping[str, int]) -> None:
        if not self.has_state:
            raise TransientError("no cut: this server has no parameters yet")
        if not self._gated:
            raise TransientError("no cut: the gate is open")
        self._admit_until = admit_until
        self.look_again()

    def missing(self) -> str:
        if self._in_steps:
            return ""
        for name, number in self._admit_until.items():
            pushes = self.workers.get(name)
            if (
                pushes is None
                or not pushes.here
                or pushes.fenced
                or pushes.queued > number
                or max(pushes.gone, pushes.sequence) >= number
            ):
                continue
            return f"{name} is at push {pushes.sequence} of {number}"
        return ""

    def freeze(self, snapshot: SnapshotId) -> ServerCut:
        if not self._gated:
            raise TransientError("no cut: the gate opened before all pushes were in")
        known = {
            name: (one.sequence, one.applied)
            for name, one in self.workers.items()
            if one.applied is not None
        }
        steps = tuple(self.applied_steps)
        self.views[snapshot] = View(self.version, tuple(self.log), known, steps)
        applied = {name: one for name, (_, one) in known.items()}
        return ServerCut(
            self.version, applied, {name: sequence for name, (sequence, _) in known.items()}
        )

    def drop(self, snapshot: SnapshotId, *, saved: bool) -> None:
        view = self.views.pop(snapshot, None)
        for worker, (sequence, _) in view.pushes.items() if view is not None and saved else ():
            pushes = self.workers[worker]
            pushes.covered = max(pushes.covered, sequence)

    def open_gate(self) -> None:
        if self._sealed is not None:
            return
        self._opens_at_s, self._admit_until = -1.0, {}
        self.look_again()

    def fence(self, worker: str) -> Fenced:
        pushes = self.workers.setdefault(worker, _Pushes())
        pushes.fenced = True
        self.look_again()
        return Fenced(pushes.applied, pushes.sequence)

    def _died(self) -> None:
        if self.memory:
            self._world.memories.pop(self.index, None)
            if self.has_state and self._world.draws_memories.random() < 0.5:
                self._world.memories[self.index] = self
        broken, self.broken = self.broken, []
        for call in broken:
            call()


def _fenced(worker: str) -> Refused:
    return Refused(f"{worker} was fenced: its shards went to other workers")


def main(world: World, running: Running) -> int:
    """As `ps.main`."""
    try:
        return _serve(world, running)
    except ElasticDLError as error:
        return int(error.exit_code)


def _serve(world: World, running: Running) -> int:
    """As `ps.lifecycle.serve`."""
    scheduler = world.scheduler
    scheduler.sleep(world.plan.start_s * scheduler.random.random())
    client = world.client(running)
    attached = client.attach()
    first = running.name.index - attached.place
    server = Server(world, running, ServerMap(first, attached.places))

    def report() -> None:
        try:
            while True:
                client.report(Report(version=server.version))
                scheduler.sleep(_HEARTBEAT_S)
        except ElasticDLError as error:
            running.exit_code = int(error.exit_code)
            running.process.kill()

    running.process.spawn(report, "report")
    orders, version, saved = client.orders(), None, attached.restore_from
    before = None if attached.rolls_back else world.memories.get(server.index)
    if before is not None:
        version, saved = server.take_on(before), ""
    if attached.stands_by:
        found = _stand_by(world, client, orders)
        if isinstance(found, ExitCode):
            return int(found)
        saved = found
    if saved:
        disk = world.disk
        if saved in disk.removed:
            world.truth.violated(f"{running.name} is told to restore {saved}, which was removed")
        # As `restore_newest_intact`.
        tries = [saved, *disk.before(saved)]
        saved = next((one for one in tries if (one, server.index) not in disk.damaged), "")
        if not saved:
            raise Corrupted("no usable checkpoint")
        view = view_of(disk.servers[saved], server.index)
        version = server.restore(view, disk.versions[saved])
    kept = world.plan.kept_pushes == ALL_KEPT
    world.truth.cannot_push_again |= bool(running.name.incarnation) and not (saved and kept)
    address = f"{running.name}:1"
    world.servers[address] = server
    world.truth.servers[server.index] = server
    client.attach(address, address, version, memory=server.memory, kept=before is not None)
    for order in orders:
        match order:
            case Finish():
                return int(ExitCode.DONE)
            case Drain():
                return int(ExitCode.DRAINED)
            case _:
                continue
    return int(ExitCode.DONE)


def _stand_by(world: World, client: Client, orders: Iterator[Order]) -> str | ExitCode:
    """As `ps.lifecycle._stand_by`: what it has loaded only makes the last part faster."""
    scheduler, loaded = world.scheduler, False
    for order in orders:
        match order:
            case Load(directory):
                scheduler.sleep(world.plan.save_s * scheduler.random.random())
                loaded = True
                client.attach(loaded=directory)
            case Restore(directory):
                seconds = world.plan.save_s * (0.1 if loaded else 1.0)
                scheduler.sleep(seconds * scheduler.random.random())
                return directory
            case Finish():
                return ExitCode.DONE
            case Drain():
                return ExitCode.DRAINED
            case _:
                continue
    return ExitCode.DONE


def view_of(views: Mapping[int, View], server: int) -> View:
    """What a server restores: its own part, or of those of another map what all of them have."""
    if server in views:
        return views[server]
    every = list(views.values())
    log = tuple(key for key in every[0].log if all(key in one.log for one in every))
    workers = set.intersection(*(set(one.pushes) for one in every))
    pushes = {
        name: min((one.pushes[name] for one in every), key=lambda push: push[0])
        for name in sorted(workers)
    }
    return View(min(one.version for one in every), log, pushes, every[0].steps)


@final
class Control:
    """`rpc.ps_control.ServerControl` of a simulated server."""

    def __init__(self, world: World, address: str, term: int) -> None:
        self._world = world
        self._server: Server = world.servers[address]
        self._pending: list[asyncio.Future[Any]] = []
        self._closed = False
        self._term = term

    async def fence(self, worker: str, *, timeout_s: float) -> Fenced:
        return await self._call(timeout_s, lambda: self._server.fence(worker))

    async def gate(self, *, timeout_s: float) -> dict[str, int]:
        return await self._call(timeout_s, lambda: self._server.close_gate(timeout_s))

    async def cut(
        self, snapshot: SnapshotId, admit_until: Mapping[str, int], *, timeout_s: float
    ) -> ServerCut:
        await self._call(timeout_s, lambda: self._server.let_in(admit_until))
        end_s, pause_s = self._world.scheduler.now_s + timeout_s, 0.001
        while missing := self._server.missing():
            if self._world.scheduler.now_s >= end_s:
                raise TransientError(f"no cut: {missing}")
            await asyncio.sleep(pause_s)
            pause_s = min(0.1, pause_s * 2)
        return await self._call(timeout_s, lambda: self._server.freeze(snapshot))

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        version = await self._call(timeout_s, lambda: self._server.apply_step(step, contributions))
        return int(version)

    async def recent_steps(self, *, timeout_s: float) -> RecentSteps:
        def recent() -> RecentSteps:
            server = self._server
            return RecentSteps(server.version, dict(server.steps), server.memory)

        found: RecentSteps = await self._call(timeout_s, recent)
        return found

    async def ungate(self, *, timeout_s: float) -> None:
        await self._call(timeout_s, self._server.open_gate)

    async def seal(self, snapshot: SnapshotId, *, timeout_s: float) -> dict[str, int]:
        sealed: dict[str, int] = await self._call(timeout_s, lambda: self._server.seal(snapshot))
        return sealed

    async def unseal(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        await self._call(timeout_s, lambda: self._server.unseal(snapshot))

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
        *,
        timeout_s: float,
    ) -> ServerSaved:
        paused_s = 0.0

        def write() -> ServerSaved:
            view = self._server.views.get(snapshot)
            if view is None:
                raise TransientError(
                    f"there is no snapshot {snapshot} here: it was dropped or lost"
                )
            if self._world.disk.fails():
                raise TransientError("No space left on device")
            self._world.disk.servers.setdefault(directory, {})[self._server.index] = view
            return ServerSaved(
                (WrittenFile(f"server-{self._server.index}", 1, "crc32c:00000000"),),
                view.version,
                0,
                "{}",
                paused_s=paused_s,
            )

        save_s = self._world.plan.save_s
        await asyncio.sleep(save_s * self._world.scheduler.random.random())
        while paused_s < min(pause_s, 9 * save_s) and snapshot not in self._server.hurried:
            await asyncio.sleep(save_s)
            paused_s += save_s
        return await self._call(timeout_s, write)

    async def hurry(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        await self._call(timeout_s, lambda: self._server.hurried.add(snapshot))

    async def drop(self, snapshot: SnapshotId, *, saved: bool = False, timeout_s: float) -> None:
        await self._call(timeout_s, lambda: self._server.drop(snapshot, saved=saved))

    async def keep(self, snapshots: Sequence[SnapshotId], *, timeout_s: float) -> None:
        def release() -> None:
            for snapshot in set(self._server.views) - set(snapshots):
                del self._server.views[snapshot]
            self._server.open_gate()

        await self._call(timeout_s, release)

    async def close(self) -> None:
        self._closed = True
        for answer in self._pending:
            if not answer.done():
                answer.set_exception(TransientError("the server was given up"))

    async def _call(self, timeout_s: float, do: Callable[[], Any]) -> Any:
        """The request arrives even if its master is killed meanwhile."""
        latency_s, after = self._world.network.latency_s, self._world.scheduler.after
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if self._server.dead:
                return
            process = self._server.running.process
            if process.stopped:
                # It stays in the socket, and is handled whether or not anybody waits by then.
                process.at_go_on.append(arrive)
                return
            killed = self._world.master.term != self._term or self._world.master.dead
            # Some requests of a killed master arrive, others had not left it.
            if killed and self._world.scheduler.random.random() < 0.5:
                return
            try:
                found, error = self._of_term(do), None
            except ElasticDLError as refused:
                found, error = None, refused
            after(latency_s(), lambda: reply(found, error))

        def reply(found: Any, error: ElasticDLError | None) -> None:
            if not answer.done() and not self._server.dead:
                if error is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(error)

        if self._world.network.loses():
            await asyncio.sleep(latency_s())
            raise TransientError("the call was lost")
        if self._closed:
            raise TransientError("the server was given up")
        after(latency_s(), arrive)
        self._pending.append(answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise TransientError(f"{self._server.running.name} does not answer") from error
        finally:
            self._pending.remove(answer)

    def _of_term(self, do: Callable[[], Any]) -> Any:
        """As `rpc.term_guard.TermGuard`."""
        if self._term < self._server.term:
            raise Refused(f"the master of term {self._server.term} has replaced this one")
        self._server.term = self._term
        return do()


@dataclass(slots=True, eq=False)
class _Fan:
    """One call to all servers."""

    caller: Task
    left: int
    results: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    begin_s: float = 0.0
    error: BaseException | None = None
    over: bool = False
    push: Update | None = None
    addresses: tuple[str, ...] = ()
    """Of the servers when it began."""
    first: int = 0
    """The index of the first of them."""


class _NotMet(TransientError):
    """A push came to a server that has not met the worker."""


@final
class PushLog:
    """What a worker keeps of its pushes, as `rpc/native/push_log.cc` and `link.cc` do."""

    def __init__(self, servers: int, limit: int, complete: int) -> None:
        """`limit`: of pushes to each server. `complete`: the last that all servers have had."""
        self._limit = limit
        self.complete = complete
        self._last = [complete] * servers
        self._kept: list[deque[Update]] = [deque() for _ in range(servers)]
        self.has: dict[Server, int] = {}
        """Servers that were met, and the last push that each has."""
        self._lacks = [0] * servers
        """What servers lack that nobody was told; see `rpc.parameters.Pushed.met`."""
        self.told: set[Server] = set()

    @property
    def crowded(self) -> bool:
        return any(len(one) > self._limit // 2 for one in self._kept)

    def compare(self, server: Server, index: int, sequence: int, push: Update | None) -> None:
        """A server was met that has the pushes up to `sequence`."""
        if sequence < self._last[index]:
            if not server.replays:
                self._kept[index].clear()
            update = self.after(index, sequence)
            lacks = self._settled(index, push) if update is None else update.sequence - 1
            if lacks > sequence:
                self._lacks[index] = max(lacks, self._lacks[index])
        self.has[server] = sequence

    def _settled(self, index: int, push: Update | None) -> int:
        """The last push that is not made again by the caller, who makes `push` if it knows it."""
        return min(self._last[index], self.complete if push is None else push.sequence - 1)

    def take_lacks(self, index: int) -> int:
        lacks, self._lacks[index] = self._lacks[index], 0
        return lacks

    def position(self, index: int, push: Update | None) -> tuple[int, bool]:
        """As `wire::Hello` has it. An index of another map has none."""
        if not 0 <= index < len(self._last):
            return 0, False
        return self._settled(index, push), bool(self._kept[index])

    def after(self, index: int, sequence: int) -> Update | None:
        return next((one for one in self._kept[index] if one.sequence > sequence), None)

    def comes_first(self, server: Server, index: int, update: Update) -> bool:
        """Whether a server that was met gets another push again before this one."""
        again = self.after(index, self.has[server])
        return again is not None and again.sequence < update.sequence

    def acknowledged(self, index: int, server: Server, update: Update, covered: int) -> None:
        kept = self._kept[index]
        self.has[server] = max(update.sequence, self.has.get(server, 0))
        self._last[index] = max(update.sequence, self._last[index])
        if not kept or update.sequence > kept[-1].sequence:
            kept.append(update)
        while len(kept) > self._limit or (kept and kept[0].sequence <= covered):
            kept.popleft()


@final
class Parameters:
    """`rpc.parameters.Parameters` for one worker, over simulated servers."""

    def __init__(self, world: World, running: Running) -> None:
        self._world = world
        self._scheduler: Scheduler = world.scheduler
        self._process: Process = running.process
        self._name = str(running.name)
        self._addresses: tuple[str, ...] = ("",) * world.plan.servers
        self._first = 0
        self._fans: list[_Fan] = []
        """Calls under way."""
        self._log = PushLog(world.plan.servers, world.plan.kept_pushes, 0)
        self._new: dict[str, int] = {}
        """Addresses of servers that were met since the last push that all servers have."""
        self._pushing = Lock(gives_way=False)
        """Held as in `rpc.ps_client.ServerPool`: no server is met in the middle of a push.

        Seeds keep their jobs if nobody waits for it.
        """

    def initialise(self, spec: Any, dense: Any, *, timeout_s: float) -> bool:
        def ask(server: Server, reply: Callable[[Any, BaseException | None], None]) -> None:
            took, server.has_state = not server.has_state, True
            reply(took, None)

        return any(self._all(ask, timeout_s).results)

    def pull(
        self,
        ids: Sequence[Any],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        exact: bool = False,
        timeout_s: float,
    ) -> Pulled:
        def ask(server: Server, reply: Callable[[Any, BaseException | None], None]) -> None:
            server.has_state = True
            if snapshot is None:
                reply(server.version, None)
            elif snapshot in server.views:
                reply(server.views[snapshot].version, None)
            else:
                reply(None, TransientError(f"there is no snapshot {snapshot} here"))

        fan = self._all(ask, timeout_s)
        versions = tuple(fan.results)
        newest = np.asarray([min(versions)], np.float32) if dense else None
        return Pulled(versions, newest, (), tuple(fan.seconds))

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        with self._pushing:
            return self._push(update, timeout_s)

    def _push(self, update: Update, timeout_s: float) -> Pushed:
        self._world.truth.pushing(self._name, update)

        def ask(server: Server, reply: Callable[[Any, BaseException | None], None]) -> None:
            if server not in self._log.has:
                reply(None, _NotMet(f"{server.running.name} was not met yet"))
            elif self._log.comes_first(server, server.index - self._first, update):
                reply(None, _NotMet(f"{server.running.name} gets earlier pushes again first"))
            else:
                server.push(self._name, update, reply)

        late_s, first = 0.0, 0
        if self._world.push_tears:
            kill_s, late_s, first = (
                self._world.push_tears.pop(),
                self._scheduler.random.random(),
                self._scheduler.random.randrange(9),
            )
            if kill_s is not None:
                self._scheduler.after(kill_s, lambda: self._world.kill(self._process))
        fan = self._all(ask, timeout_s, first, late_s, push=update)
        self._log.complete = update.sequence
        versions = tuple(version for version, _ in fan.results)
        pulled = update.versions
        if len(pulled) != len(versions):
            pulled = (min(pulled),) * len(versions)
        met, self._new = self._new, {}
        return Pushed(
            versions,
            tuple(max(0, one - at) for one, at in zip(versions, pulled, strict=True)),
            tuple(fan.seconds),
            met,
            self._log.crowded,
        )

    def meet(self, *, timeout_s: float) -> Mapping[str, int]:
        with self._pushing:
            return self._meet_all(timeout_s)

    def _meet_all(self, timeout_s: float) -> Mapping[str, int]:
        end_s = self._scheduler.now_s + timeout_s
        while True:
            first = self._first
            try:
                self._meet(max(0.0, end_s - self._scheduler.now_s), None)
            except TransientError:
                if first == self._first or self._scheduler.now_s >= end_s:
                    raise
                continue
            met, self._new = self._new, {}
            return met

    def _meet(self, timeout_s: float, push: Update | None) -> None:
        """As a `Lane` that pushes: no server gets a push before all have met the worker.

        Otherwise a cut would not wait for the push at the others, which did not know the worker.
        Who lacks earlier pushes gets them again first.
        """

        def greet(server: Server, reply: Callable[[Any, BaseException | None], None]) -> None:
            last, kept = self._log.position(server.index - self._first, push)
            server.greet(self._name, last, kept, reply)

        if any(
            self._world.servers.get(address) not in self._log.has for address in self._addresses
        ):
            for server, sequence in self._ask_all(greet, timeout_s).results:
                if self._first <= server.index < self._first + len(self._addresses):
                    self._log.compare(server, server.index - self._first, sequence, push)
        while missing := self._missing():

            def again(server: Server, reply: Callable[[Any, BaseException | None], None]) -> None:
                update = missing.get(server)
                if update is None:
                    reply(None, None)
                else:
                    server.push(self._name, update, reply)

            self._ask_all(again, timeout_s)
            for server, update in missing.items():
                if not server.dead:
                    self._log.has[server] = update.sequence
        for index, address in enumerate(self._addresses):
            server = self._world.servers.get(address)
            if server in self._log.has and server not in self._log.told:
                self._log.told.add(server)
                self._new[address] = self._log.take_lacks(index)

    def _missing(self) -> dict[Server, Update]:
        """By server, what it gets again next."""
        found = {}
        for index, address in enumerate(self._addresses):
            server = self._world.servers.get(address)
            if server in self._log.has and not server.dead:
                update = self._log.after(index, self._log.has[server])
                if update is not None:
                    found[server] = update
        return found

    @property
    def servers(self) -> int:
        return len(self._addresses)

    def rows(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("there are no tables")

    def move(self, addresses: Sequence[str], first: int = 0, tokens: Sequence[str] = ()) -> None:
        """As `rpc.ps_client.ServerPool.move`."""
        before, self._addresses = self._addresses, tuple(addresses)
        if first == self._first:
            return
        self._first = first
        for index, address in enumerate(before):
            if lacks := self._log.take_lacks(index):
                self._new[address] = lacks
        self._log = PushLog(len(addresses), self._world.plan.kept_pushes, self._log.complete)
        for fan in self._fans:
            fan.error = TransientError("the parameters are on other servers")
            self._scheduler.wake(fan.caller)

    def close(self) -> None:
        """Nothing is open."""

    def _all(
        self,
        ask: Callable[[Server, Callable[[Any, BaseException | None], None]], None],
        timeout_s: float,
        first: int = 0,
        late_s: float = 0.0,
        *,
        push: Update | None = None,
    ) -> _Fan:
        """Ask every server, and again if the servers change, as `rpc.ps_client.ServerPool`."""
        end_s = self._scheduler.now_s + timeout_s
        while True:
            servers, left_s = self._first, end_s - self._scheduler.now_s
            try:
                if push is not None:
                    self._meet(left_s, push)
                return self._ask_all(ask, left_s, first, late_s, push=push)
            except _NotMet:
                # A `Link` to a new server begins anew by itself.
                if self._scheduler.now_s >= end_s:
                    raise
            except TransientError:
                if servers == self._first or self._scheduler.now_s >= end_s:
                    raise

    def _ask_all(
        self,
        ask: Callable[[Server, Callable[[Any, BaseException | None], None]], None],
        timeout_s: float,
        first: int = 0,
        late_s: float = 0.0,
        *,
        push: Update | None = None,
    ) -> _Fan:
        """Ask every server; all but the `first` so much later."""
        scheduler = self._scheduler
        assert scheduler.current is not None
        count = len(self._addresses)
        none: list[Any] = [None] * count
        fan = _Fan(
            scheduler.current,
            count,
            none,
            [0.0] * count,
            scheduler.now_s,
            push=push,
            addresses=self._addresses,
            first=self._first,
        )
        self._fans.append(fan)
        for index in range(count):
            self._send(fan, index, ask, 0.0 if index == first % count else late_s)
        end_s = scheduler.now_s + timeout_s
        try:
            while fan.left and fan.error is None:
                if (
                    not scheduler.park(end_s - scheduler.now_s)
                    and scheduler.now_s >= end_s
                    and fan.left
                ):
                    raise TransientError(
                        f"{fan.left} servers did not answer within {timeout_s:g} s"
                    )
        finally:
            fan.over = True
            self._fans.remove(fan)
        if fan.error is not None:
            raise fan.error
        return fan

    def _send(self, fan: _Fan, index: int, ask: Any, after_s: float = 0.0) -> None:
        self._scheduler.after(
            after_s + self._world.network.latency_s(), lambda: self._arrive(fan, index, ask)
        )

    def _arrive(self, fan: _Fan, index: int, ask: Any) -> None:
        if fan.over and not (self._process.dead and self._scheduler.random.random() < 0.5):
            return
        # A request of a lost worker may still be on its way to the servers that it knew.
        addresses = self._addresses if fan.first == self._first else fan.addresses
        server = self._world.servers.get(addresses[index])
        if server is None or server.dead or self._world.network.loses():
            self._again(fan, index, ask)
            return
        process = server.running.process
        if process.stopped:
            # It stays in the socket, and is handled later, whether or not anybody waits by then.
            process.at_go_on.append(lambda: self._handle(server, fan, index, ask))
        elif process.slowness > 1.0:
            delay_s = _SERVED_S * process.slowness * self._scheduler.random.random()
            self._scheduler.after(delay_s, lambda: self._handle(server, fan, index, ask))
        else:
            self._handle(server, fan, index, ask)

    def _handle(self, server: Server, fan: _Fan, index: int, ask: Any) -> None:
        """The server gets to a request."""
        if server.dead:
            self._again(fan, index, ask)
            return
        answered = False

        def reply(result: Any, error: BaseException | None) -> None:
            nonlocal answered
            answered = True
            if broken in server.broken:
                server.broken.remove(broken)
            if self._world.network.loses():
                self._again(fan, index, ask)
            else:
                self._scheduler.after(
                    self._world.network.latency_s(),
                    lambda: self._reply(fan, index, f"{server.running.name}:1", result, error),
                )

        def broken() -> None:
            self._again(fan, index, ask)

        ask(server, reply)
        if not answered:
            server.broken.append(broken)

    def _again(self, fan: _Fan, index: int, ask: Any) -> None:
        if not fan.over:
            self._send(fan, index, ask, _AGAIN_S)

    def _reply(
        self, fan: _Fan, index: int, address: str, result: Any, error: BaseException | None
    ) -> None:
        if fan.over or fan.error is not None:
            return
        if fan.push is not None and error is None and fan.first == self._first:
            self._log.acknowledged(index, self._world.servers[address], fan.push, result[1])
        if error is not None:
            fan.error = error
        else:
            fan.results[index] = result
            fan.seconds[index] = self._scheduler.now_s - fan.begin_s
            fan.left -= 1
        self._scheduler.wake(fan.caller)
