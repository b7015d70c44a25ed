"""A driver between real calls on both sides and a cluster in memory; only the decisions are
scripted.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from elasticdl.clock import Clock, ManualClock
from elasticdl.cluster.base import ProcessName, ProcessSpec
from elasticdl.history.event_log import EventLog
from elasticdl.history.lines import JsonLines
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import unknown_status
from elasticdl.master.core import events as happened
from elasticdl.master.core.commands import Command
from elasticdl.master.core.events import Event
from elasticdl.master.core.presence import Presence
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.driver import Driver
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.ring_coordinator import RingCoordinator
from elasticdl.master.executor.snapshots import CutLimits, Snapshots
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.servicer import MasterService, Welcome, proof_of
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_server import CallServer
from elasticdl.rpc.channel import refusal_of, server_options
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ParameterServerServicer,
    add_ParameterServerServicer_to_server,
)
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.tls import CertifiedKey
from elasticdl.tls.contexts import server_context
from elasticdl.tokens import process_token
from tests.contract.absent_parts import NoArchive, no_preflight
from tests.fake_cluster import FakeCluster

TOKEN = "the-token-of-this-job"
TERM = 3
WORKER = ProcessName.parse("worker-1")
PS = (ProcessName.parse("ps-0"), ProcessName.parse("ps-1"))
SPEC = JobSpec.from_flags(
    Action.TRAIN,
    {"model_zoo": "zoo", "model_def": "iris", "training_data": "iris.csv", "num_ps_pods": 2},
)
LEASE = Lease(Task.TRAINING, Shard(ShardId(4), "iris.csv", 0, 100), attempt=0)
T = TypeVar("T")
E = TypeVar("E", bound=Event)


class ScriptedCore:
    """Says what it was told to say, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.changed = threading.Condition()
        self.answers: dict[type[Event], Callable[[Any], Sequence[Command]]] = {}
        self.too_late = ""

    def why_not_scale(self, low: int, high: int) -> str | None:
        return self.too_late

    def why_not_scale_servers(self) -> str | None:
        return self.too_late

    def what_steps_stay(self, workers: int) -> str | None:
        return f"{workers} are too many"

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        return ServerMap(0, 2), False

    def why_not_checkpoint(self) -> str | None:
        return self.too_late

    roll_back: RollBack | None = None

    def handle(self, event: Event) -> Sequence[Command]:
        answer = self.answers.get(type(event))
        commands = answer(event) if answer else ()
        with self.changed:
            self.heard.append(event)
            self.changed.notify_all()
        return commands

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.heard if isinstance(event, kind)]

    def wait_for(self, kind: type[E], number: int = 1) -> E:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= number, 20), (
                f"no {kind.__name__}: {self.heard}"
            )
            return self.of(kind)[number - 1]


class Expected:
    """Expects nine processes of each role. `residents`: who is in the place of whom."""

    def __init__(self, residents: dict[ProcessName, ProcessName]) -> None:
        self._residents = residents

    def may_attach(self, name: ProcessName) -> bool:
        return name.index < 9

    def resident(self, place: ProcessName) -> ProcessName | None:
        return self._residents.get(place)

    def place_of(self, server: int) -> tuple[ServerMap, bool]:
        return ServerMap(0, 2), False


class ListJournal:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.safe: list[Event] = []
        self._pending: list[Event] = []

    def append(self, event: Event) -> None:
        self._pending.append(event)

    async def flush(self) -> None:
        self.safe += self._pending
        self.log += [type(event).__name__ for event in self._pending]
        self._pending = []


class Guarded(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """`channel.SyncChecks` for a server on a loop."""

    def __init__(self, guard: TermGuard) -> None:
        self._guard = guard

    async def intercept_service(self, continuation: Any, call: Any) -> Any:
        refusal = refusal_of(self._guard.proof, self._guard.check, call)
        if refusal is None:
            return await continuation(call)

        async def refuse(requests: Any, context: Any) -> None:
            await context.abort(refusal.code, refusal.details)

        return grpc.stream_stream_rpc_method_handler(refuse)


class ScriptedServer(ParameterServerServicer):
    """One parameter server: a gate, some workers' last pushes, and things that go wrong on
    demand.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gated = False
        self.last = {"worker-1": (7, pb.Applied(shard=4, attempt=0, offset=70))}
        self.version = 10
        self.fail: dict[str, grpc.StatusCode] = {}
        self.hang: set[str] = set()
        self.admitted: dict[str, int] = {}
        self.hurried = asyncio.Event()
        """Ends the pauses of a `Save`."""
        self._changed = threading.Condition()

    def wait_for_call(self, name: str, number: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls.count(name) >= number, 20), (
                f"no {name}: {self.calls}"
            )

    async def _called(self, name: str, context: Any) -> None:
        with self._changed:
            self.calls.append(name)
            self._changed.notify_all()
        if name in self.hang:
            await asyncio.sleep(3600)
        code = self.fail.get(name)
        if code is not None:
            await context.abort(code, f"{name} was told to fail")

    async def Fence(self, request: Any, context: Any) -> Any:
        await self._called("Fence", context)
        sequence, applied = self.last.get(request.worker, (0, None))
        return pb.FenceReply(seen=applied is not None, applied=applied, sequence=sequence)

    async def Gate(self, request: Any, context: Any) -> Any:
        self.gated = True
        await self._called("Gate", context)
        return pb.GateReply(
            sequences={worker: sequence for worker, (sequence, _) in self.last.items()}
        )

    async def Cut(self, request: Any, context: Any) -> Any:
        await self._called("Cut", context)
        self.admitted = dict(request.admit_until)
        applied = {worker: part for worker, (_, part) in self.last.items()}
        sequences = {worker: sequence for worker, (sequence, _) in self.last.items()}
        return pb.CutReply(version=self.version, applied=applied, sequences=sequences)

    async def Ungate(self, request: Any, context: Any) -> Any:
        self.gated = False
        await self._called("Ungate", context)
        return pb.Done()

    async def Save(self, request: Any, context: Any) -> Any:
        await self._called("Save", context)
        if request.pause_s:
            await self.hurried.wait()
        return pb.SaveReply(files=[pb.SavedFile(name="part")], version=self.version)

    async def Hurry(self, request: Any, context: Any) -> Any:
        await self._called("Hurry", context)
        self.hurried.set()
        return pb.Done()

    async def Drop(self, request: Any, context: Any) -> Any:
        await self._called("Drop", context)
        return pb.Done()

    async def Keep(self, request: Any, context: Any) -> Any:
        await self._called("Keep", context)
        return pb.Done()


class Stage:
    """A driver on a loop in a thread of its own, as in the master; the test is the processes."""

    def __init__(
        self,
        directory: Path,
        core: Any = None,
        clock: Clock | None = None,
        limits: CutLimits = CutLimits(),
        certified: CertifiedKey | None = None,
        *,
        on_ring: bool = False,
    ) -> None:
        """`core`: another than the scripted one, such as a whole `JobState`; `clock`: another than
        one that stands still. `certified`: the master's; None: clear text.
        """
        self._certified = certified
        self._on_ring = on_ring
        self.residents: dict[ProcessName, ProcessName] = {}
        self.directory, self._limits = directory, limits
        self.core = core or ScriptedCore()
        self.journal = ListJournal()
        self.clock: Any = clock or ManualClock()
        self.servers: dict[ProcessName, ScriptedServer] = {}
        self.clients: list[MasterClient] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._grpc_servers: list[Any] = []
        self.call(self._open())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _open(
        self, term: int = TERM, port: int = 0, presence: Presence | None = None
    ) -> None:
        """`presence`: of the master before, which had the same port."""
        self.inbox = EventQueue(self.clock)
        self.roster = PsRegistry(
            2,
            lambda name, address: GrpcServerControl(
                str(name), address, process_token(TOKEN, str(name)), term
            ),
        )
        fences = Fences(self.roster)
        self.gateway = ProcessGateway(
            self.inbox,
            self.roster,
            fences,
            Task.TRAINING,
            Expected(self.residents),
            RingCoordinator if self._on_ring else None,
        )
        self.cluster = FakeCluster()
        self.events = EventLog(self.directory / "events.jsonl", self.clock.wall_s())
        self.metrics = JsonLines(self.directory / "metrics.jsonl")
        launcher = Launcher(self.cluster, lambda name: ProcessSpec(name, ("true",)))
        means = ExecutorDeps(
            launcher,
            fences,
            Snapshots(self.roster, self._limits),
            NoArchive(),
            self.events,
            self.metrics,
            no_preflight,
        )
        driver = Driver(
            self.core,
            self.journal,
            self.inbox,
            self.gateway,
            Executor(self.inbox, self.gateway, means),
        )
        if presence is not None:
            self.gateway.restore(presence)
        welcome = Welcome(TOKEN, term, SPEC.model_dump_json, lambda: "checkpoints/version-5")
        service = MasterService(self.inbox, self.gateway, welcome, self.status_json, self.core)
        self._service = service
        self._master = self._call_server()
        self.address = f"127.0.0.1:{await self._master.start('127.0.0.1', port)}"
        self.run = asyncio.get_running_loop().create_task(driver.run(self.cluster.observe()))

    def _call_server(self) -> CallServer:
        certified = self._certified
        context = certified and server_context(certified.certificate, certified.key)
        server = CallServer(partial(proof_of, token=TOKEN), context)
        server.serve(self._service, self._service.refusal)
        return server

    def status_json(self) -> str:
        names = [name for name, _ in self.gateway.sessions]
        gauges, rate = self.gateway.gauges(names), self.gateway.records_per_s()
        status = replace(unknown_status("fine"), gauges=gauges, records_per_s=rate)
        return json.dumps(status.to_json())

    async def serve(self, name: ProcessName) -> str:
        """Start a scripted server of that name. Return its address."""
        guard = TermGuard(process_token(TOKEN, str(name)))
        server = grpc.aio.server(interceptors=[Guarded(guard)], options=server_options())
        self.servers[name] = ScriptedServer()
        add_ParameterServerServicer_to_server(self.servers[name], server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._grpc_servers.append(server)
        return f"127.0.0.1:{port}"

    async def vanish(self) -> None:
        """The master's port is closed, as when its machine is cut off."""
        await self._master.close()

    async def come_back(self) -> None:
        self._master = self._call_server()
        await self._master.start("127.0.0.1", int(self.address.rpartition(":")[2]))

    def replace_master(self, presence: Presence) -> None:
        """The master is killed, and another one continues the job."""

        async def replace_it() -> None:
            self.run.cancel()
            await asyncio.gather(self.run, return_exceptions=True)
            await self._master.close()
            await self.roster.close()
            await self._open(TERM + 1, int(self.address.rpartition(":")[2]), presence)

        self.call(replace_it())

    def client(
        self, name: str = "worker-1", token: str | None = None, away_s: float = 5.0
    ) -> MasterClient:
        """`token`: by default that of the process, or of the owner."""
        if token is None:
            is_process = name.startswith(("worker-", "ps-"))
            token = process_token(TOKEN, name) if is_process else TOKEN
        self.clients.append(MasterClient(self.address, token, name, away_s=away_s))
        return self.clients[-1]

    def worker(self) -> MasterClient:
        client = self.client()
        client.attach()
        return client

    def attach_servers(self) -> None:
        for name in PS:
            self.client(str(name)).attach(self.call(self.serve(name)), "127.0.0.1:1", None)

    def post(self, event: Event) -> None:
        async def put() -> None:
            await self.inbox.post(event)

        self.call(put())

    def order(self, *commands: Command) -> None:
        """Have the core order something now."""
        self.core.answers[happened.CheckpointRequested] = lambda _: commands
        self.post(happened.CheckpointRequested(0.0))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _close(self) -> None:
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)
        await self._master.close()
        for server in self._grpc_servers:
            await server.stop(None)
        await self.roster.close()
        await self.cluster.close()
        self.events.close()
        self.metrics.close()
