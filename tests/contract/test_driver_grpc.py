"""The driver between real gRPC on both sides and a cluster in memory; only the decisions are scripted."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ProcessName, ProcessSpec
from elasticdl.cluster.fake import FakeCluster
from elasticdl.errors import ExitCode, PermanentError, Refused, TransientError, UserError
from elasticdl.job import Action, JobSpec
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.commands import Command
from elasticdl.master.core.events import Event
from elasticdl.master.driver import Driver
from elasticdl.master.fencing import Fences
from elasticdl.master.files import JsonLines
from elasticdl.master.front_desk import FrontDesk
from elasticdl.master.hands import Hands, Means
from elasticdl.master.inbox import Inbox
from elasticdl.master.launching import Launcher
from elasticdl.master.server_roster import ServerRoster
from elasticdl.master.servicer import MasterServer, MasterService, Welcome
from elasticdl.master.snapshots import Snapshots
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import AsyncChecks, Credentials, server_options
from elasticdl.rpc.conversation import Drain, Failure, Finished, Progress, Report, Revoke, Servers, Summary, Wait
from elasticdl.rpc.elasticdl_pb2_grpc import MasterStub, ParameterServerServicer, add_ParameterServerServicer_to_server
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Applied, Lease, Shard, ShardId, SnapshotId, Task

pytestmark = pytest.mark.contract

TOKEN = "the-token-of-this-job"
EPOCH = 3
WORKER = ProcessName.parse("worker-1")
PS = (ProcessName.parse("ps-0"), ProcessName.parse("ps-1"))
SPEC = JobSpec.from_flags(Action.TRAIN, {"model_zoo": "zoo", "model_def": "iris", "training_data": "iris.csv", "num_ps_pods": 2})
LEASE = Lease(Task.TRAINING, Shard(ShardId(4), "iris.csv", 0, 100), attempt=0)
T = TypeVar("T")
E = TypeVar("E", bound=Event)


class ScriptedCore:
    """Says what it was told to say, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.changed = threading.Condition()
        self.answers: dict[type[Event], Callable[[Any], Sequence[Command]]] = {}

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
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= number, 20), f"no {kind.__name__}: {self.heard}"
            return self.of(kind)[number - 1]


class ListJournal:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.safe: list[Event] = []
        self._pending: list[Event] = []

    def append(self, event: Event) -> None:
        self._pending.append(event)

    def flush(self) -> None:
        self.safe += self._pending
        self.log += [type(event).__name__ for event in self._pending]
        self._pending = []


class ScriptedServer(ParameterServerServicer):  # type: ignore[misc]
    """One parameter server: a gate, some workers' last pushes, and things that go wrong on demand."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gated = False
        self.last = {"worker-1": (7, pb.Applied(shard=4, attempt=0, offset=70))}
        self.version = 10
        self.fail: dict[str, grpc.StatusCode] = {}
        self.hang: set[str] = set()
        self.admitted: dict[str, int] = {}
        self._changed = threading.Condition()

    def wait_for_call(self, name: str, number: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls.count(name) >= number, 20), f"no {name}: {self.calls}"

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
        return pb.GateReply(sequences={worker: sequence for worker, (sequence, _) in self.last.items()})

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

    async def Drop(self, request: Any, context: Any) -> Any:
        await self._called("Drop", context)
        return pb.Done()


class NoArchive:
    async def save(self, command: do.SaveSnapshot, snapshots: Snapshots) -> tuple[str, int]:
        raise PermanentError("no space left on device")


class Stage:
    """A driver on a loop in a thread of its own, as in the master; the test is the processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.core = ScriptedCore()
        self.journal = ListJournal()
        self.clock = ManualClock()
        self.servers: dict[ProcessName, ScriptedServer] = {}
        self.clients: list[MasterClient] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._grpc_servers: list[Any] = []
        self.call(self._open())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _open(self) -> None:
        self.inbox = Inbox(self.clock)
        credentials = Credentials(TOKEN, "master")
        self.roster = ServerRoster(2, lambda name, address: GrpcServerControl(str(name), address, credentials, EPOCH))
        fences = Fences(self.roster)
        self.desk = FrontDesk(self.inbox, self.roster, fences, Task.TRAINING, lambda name: name.index < 9)
        self.cluster = FakeCluster()
        self.events = JsonLines(self.directory / "events.jsonl")
        self.metrics = JsonLines(self.directory / "metrics.jsonl")
        launcher = Launcher(self.cluster, lambda name: ProcessSpec(name, ("true",)))
        means = Means(launcher, fences, Snapshots(self.roster), NoArchive(), self.events, self.metrics)
        driver = Driver(self.core, self.journal, self.inbox, self.desk, Hands(self.inbox, self.desk, means))
        welcome = Welcome(EPOCH, SPEC.model_dump_json(), lambda: "checkpoints/version-5")
        service = MasterService(self.inbox, self.desk, welcome, lambda: json.dumps({"state": "fine", **self.desk.numbers()}))
        self._service = service
        self._master = MasterServer(service, TOKEN)
        self.address = f"127.0.0.1:{await self._master.start('127.0.0.1', 0)}"
        self.run = asyncio.get_running_loop().create_task(driver.run(self.cluster))

    async def _serve(self, name: ProcessName) -> str:
        server = grpc.aio.server(interceptors=[AsyncChecks(TOKEN, lambda caller, _: "")], options=server_options())
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
        self._master = MasterServer(self._service, TOKEN)
        await self._master.start("127.0.0.1", int(self.address.rpartition(":")[2]))

    def client(self, name: str = "worker-1", token: str = TOKEN, away_s: float = 5.0) -> MasterClient:
        self.clients.append(MasterClient(self.address, token, name, away_s=away_s))
        return self.clients[-1]

    def worker(self) -> MasterClient:
        client = self.client()
        client.attach()
        return client

    def attach_servers(self) -> None:
        for name in PS:
            self.client(str(name)).attach(self.call(self._serve(name)), "127.0.0.1:1", None)

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


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(4) as made:
        yield made


# -- who may speak ----------------------------------------------------------------------------------------------------


def test_a_process_that_attaches_is_told_what_it_needs(stage: Stage) -> None:
    attached = stage.client().attach()
    assert (attached.epoch, attached.spec, attached.restore_from) == (EPOCH, SPEC, "checkpoints/version-5")
    assert stage.core.wait_for(happened.ProcessAttached).name == WORKER


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_a_wrong_token_is_refused_and_nothing_is_acted_on(stage: Stage, token: str) -> None:
    client = stage.client(token=token)
    for call in (client.attach, client.status, lambda: client.stop("x"), lambda: client.report(Report())):
        with pytest.raises(Refused, match="token"):
            call()
    assert not stage.core.of(happened.ProcessAttached)
    assert not stage.core.of(happened.StopRequested)


def test_a_call_without_any_metadata_is_unauthenticated(stage: Stage) -> None:
    with grpc.insecure_channel(stage.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            MasterStub(channel).Status(pb.StatusRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            next(MasterStub(channel).Orders(pb.OrdersRequest(), timeout=5))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_second_process_that_claims_a_name_is_refused(stage: Stage) -> None:
    first, second = stage.client(), stage.client()
    first.attach()
    with pytest.raises(Refused, match="worker-1 is attached already"):
        second.attach()
    with pytest.raises(Refused):
        second.report(Report())
    first.report(Report())
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_process_that_nobody_ordered_is_refused(stage: Stage) -> None:
    with pytest.raises(Refused, match="worker-9 is not a process that this job expects"):
        stage.client("worker-9").attach()


def test_an_attach_repeated_by_the_same_process_is_one_event(stage: Stage) -> None:
    client = stage.client()
    client.attach()
    client.attach()
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_process_that_never_attached_is_refused(stage: Stage) -> None:
    client = stage.client("worker-8")
    client._epoch = EPOCH
    with pytest.raises(Refused, match="worker-8 is not attached"):
        client.report(Report())


def test_a_process_of_an_older_master_is_refused(stage: Stage) -> None:
    client = stage.worker()
    client._epoch = EPOCH - 1
    for call in (lambda: client.report(Report()), lambda: client.request_lease(1), lambda: next(client.orders())):
        with pytest.raises(Refused, match="epoch 2, this is epoch 3"):
            call()


def test_a_process_that_ended_is_refused_however_late_it_comes(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.StartProcess(WORKER))
    stage.core.wait_for(happened.ProcessSeen)
    stage.call(asyncio.sleep(0))
    stage._loop.call_soon_threadsafe(stage.cluster.kill, WORKER)
    stage.core.wait_for(happened.ProcessEnded)
    with pytest.raises(Refused, match="replaced"):
        client.report(Report())
    with pytest.raises(Refused, match="replaced"):
        stage.client().attach()


@pytest.mark.parametrize("name", ["", "cook-1", "worker", "worker-x", "../etc-1", "master-0"])
def test_a_name_that_is_none_of_a_process_is_invalid(stage: Stage, name: str) -> None:
    with pytest.raises(UserError):
        stage.client(name).attach()
    assert not stage.core.of(happened.ProcessAttached)


def test_a_server_with_half_of_its_addresses_is_invalid(stage: Stage) -> None:
    with pytest.raises(UserError, match="half of its addresses"):
        stage.client("ps-0").attach("127.0.0.1:1")


def test_a_server_learns_what_to_restore_before_anybody_hears_of_it(stage: Stage) -> None:
    client = stage.client("ps-0")
    assert client.attach().restore_from == "checkpoints/version-5"
    client.report(Report())
    assert not stage.core.of(happened.ProcessAttached)
    for _ in range(2):
        client.attach(stage.call(stage._serve(PS[0])), "127.0.0.1:9", 5)
    [attached] = stage.core.of(happened.ProcessAttached)
    assert (attached.name, attached.bulk_address, attached.restored_version) == (PS[0], "127.0.0.1:9", 5)


def test_a_message_that_is_too_big_is_refused_and_the_master_goes_on(stage: Stage) -> None:
    client = stage.worker()
    big = Report(failures=tuple(Failure(Task.TRAINING, ShardId(1), 0, "x" * 60_000) for _ in range(300)))
    with pytest.raises(PermanentError, match=r"RESOURCE_EXHAUSTED|larger than max"):
        client.report(big)
    client.report(Report(gauges={"rss_bytes": 1.0}))


def test_nonsense_is_invalid_and_nothing_of_it_counts(stage: Stage) -> None:
    client = stage.worker()
    with pytest.raises(UserError, match="offset is -1"):
        client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(1), 0, -1)),)))
    assert not stage.core.of(happened.ProgressReported)
    with pytest.raises(UserError, match="expected 1 <= MIN <= MAX"):
        client.scale(4, 2)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_lease_is_granted(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.GrantLease(event.worker, LEASE),)
    assert stage.worker().request_lease(5) == LEASE


def test_a_long_poll_ends_with_the_reason_or_with_work_when_it_appears(
    stage: Stage, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.NoLeaseNow(event.worker, "all shards are leased"),)
    client = stage.worker()
    assert client.request_lease(0.05) == Wait("all shards are leased")
    asked = len(stage.core.of(happened.LeaseRequested))
    waiting = pool.submit(client.request_lease, 20)
    stage.core.wait_for(happened.LeaseRequested, asked + 1)
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.GrantLease(event.worker, LEASE),)
    stage.post(happened.LeaseReturned(0.0, ProcessName.parse("worker-9"), Applied(ShardId(4), 0, 0)))
    assert waiting.result(20) == LEASE


def test_the_end_of_the_work_is_told(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.WorkFinished(event.worker),)
    assert stage.worker().request_lease(5) == Finished()


def test_a_lease_granted_to_a_call_that_was_cancelled_goes_back(stage: Stage) -> None:
    client = stage.worker()
    request = pb.LeaseRequest(wait_s=20, sequence=1)
    call = client._stub.RequestLease.future(request, timeout=20, metadata=client._credentials.metadata(EPOCH))
    stage.core.wait_for(happened.LeaseRequested)
    call.cancel()
    # The cancellation travels on the same connection, so it is known when a later call has been answered.
    client.report(Report())
    stage.order(do.GrantLease(WORKER, LEASE))
    back = stage.core.wait_for(happened.LeaseReturned)
    assert (back.worker, back.applied) == (WORKER, Applied(ShardId(4), 0, 0))


def test_no_event_of_an_unanswered_question_is_kept(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.NoLeaseNow(event.worker, "wait"),)
    stage.worker().request_lease(0.05)
    assert "LeaseRequested" not in stage.journal.log


# -- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_becomes_events_in_order(stage: Stage) -> None:
    client = stage.worker()
    done = Progress(Task.TRAINING, Applied(ShardId(4), 0, 100), version=9, loss=0.5, done=True)
    back = Progress(Task.TRAINING, Applied(ShardId(5), 1, 20), returned=True)
    client.report(
        Report(
            progress=(done, back),
            summaries=(Summary(2, {"accuracy": 0.9}),),
            failures=(Failure(Task.TRAINING, ShardId(6), 0, "ZeroDivisionError"),),
            exported="out/model",
            stop_asked="enough",
        )
    )
    kinds = [type(event).__name__ for event in stage.journal.safe if not isinstance(event, happened.ProcessAttached)]
    assert kinds == [
        "ProgressReported",
        "ProgressReported",
        "LeaseReturned",
        "SummaryReported",
        "TaskFailed",
        "ExportFinished",
        "StopAsked",
    ]


def test_a_report_that_was_answered_is_on_disk(stage: Stage) -> None:
    client = stage.worker()
    for offset in range(1, 50):
        client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(4), 0, offset)),)))
        assert stage.journal.safe[-1].applied.offset == offset  # type: ignore[attr-defined]


def test_a_report_that_is_repeated_counts_once(stage: Stage) -> None:
    client = stage.worker()
    report = Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),))
    client.report(report)
    client._reports = 0
    client.report(report)
    client.report(report)
    assert len(stage.core.of(happened.TaskFailed)) == 2


def test_gauges_and_records_per_second_are_shown(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.GrantLease(event.worker, LEASE),)
    client = stage.worker()
    client.request_lease(5)
    client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(4), 0, 40)),), gauges={"step_ms": 3.5}))
    stage.clock.advance(4)
    status = stage.client("cli").status()
    assert status["records_per_s"] == 10.0
    assert status["gauges"]["worker-1"] == {"step_ms": 3.5, "records_per_s": 10.0}


def test_the_version_of_the_job_is_that_of_the_least_advanced_server(stage: Stage) -> None:
    stage.attach_servers()
    stage.clients[0].report(Report(version=12))
    assert not stage.core.of(happened.VersionAdvanced)
    stage.clients[1].report(Report(version=11))
    stage.clients[1].report(Report(version=11))
    stage.clients[1].report(Report(version=15))
    stage.core.wait_for(happened.VersionAdvanced, 2)
    assert [event.version for event in stage.core.of(happened.VersionAdvanced)] == [11, 12]


def test_a_process_that_is_not_heard_of_is_given_up_once(stage: Stage) -> None:
    client = stage.worker()

    async def pass_time() -> None:
        for _ in range(8):
            stage.clock.advance(2)
            stage.desk.tick()

    stage.call(pass_time())
    silent = stage.core.wait_for(happened.ProcessSilent)
    assert silent.name == WORKER and silent.silent_s >= 10
    assert len(stage.core.of(happened.ProcessSilent)) == 1
    with pytest.raises(Refused, match="not heard of"):
        client.report(Report())


def test_a_master_that_was_stopped_itself_gives_nobody_up(stage: Stage) -> None:
    stage.worker()
    stage.clock.advance(3600)

    async def tick() -> None:
        stage.desk.tick()

    stage.call(tick())
    assert not stage.core.of(happened.ProcessSilent)


# -- orders -----------------------------------------------------------------------------------------------------------


def test_orders_reach_a_worker_and_begin_with_the_servers(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.PublishServers(("a:1", "b:2")), do.RevokeLeases(WORKER, "it took too long"))
    orders = client.orders()
    assert next(orders) == Servers(("a:1", "b:2"))
    assert next(orders) == Revoke("it took too long")
    stage.order(do.PublishServers(("a:1", "")))
    assert next(orders) == Servers(("a:1", ""))


def test_a_stream_that_is_opened_anew_takes_over(stage: Stage) -> None:
    client = stage.worker()
    old, new = client.orders(), client.orders()
    assert next(old) == next(new) == Servers(("", ""))
    stage.order(do.RevokeLeases(WORKER, "late"))
    assert next(new) == Revoke("late")


def test_a_worker_that_is_stopped_is_told_why(stage: Stage) -> None:
    client = stage.worker()
    orders = client.orders()
    next(orders)
    stage.order(do.StopProcess(WORKER, 5.0, "scaled down to 1"))
    assert next(orders) == Drain("scaled down to 1")


def test_orders_end_when_the_client_is_closed(stage: Stage, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    client = stage.worker()
    orders = client.orders()
    next(orders)
    rest = pool.submit(list, orders)
    client.close()
    assert rest.result(20) == []


def test_a_client_survives_a_master_that_is_away(stage: Stage, pool: concurrent.futures.ThreadPoolExecutor) -> None:
    client = stage.worker()
    client._away_s = 30
    orders = client.orders()
    next(orders)
    stage.call(stage.vanish())
    failure = Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),))
    calls = [pool.submit(client.report, failure), pool.submit(client.request_lease, 0.2), pool.submit(next, orders)]
    assert not concurrent.futures.wait(calls, timeout=0.3).done
    stage.call(stage.come_back())
    calls[0].result(20)
    assert isinstance(calls[1].result(20), Wait)
    assert calls[2].result(20) == Servers(("", ""))
    assert len(stage.core.of(happened.TaskFailed)) == 1
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_client_gives_up_on_a_master_that_stays_away() -> None:
    client = MasterClient("127.0.0.1:1", TOKEN, "worker-1", away_s=0.3)
    with pytest.raises(TransientError, match=r"attach of worker-1 at master 127.0.0.1:1.*gave up after"):
        client.attach()
    client.close()


# -- servers ----------------------------------------------------------------------------------------------------------


def test_a_fenced_worker_is_fenced_on_every_server_and_what_they_have_is_told(stage: Stage) -> None:
    stage.attach_servers()
    stage.servers[PS[1]].last = {}
    stage.order(do.FenceWorker(WORKER))
    fenced = stage.core.wait_for(happened.WorkerFenced)
    assert fenced.applied == (Applied(ShardId(4), 0, 70), None)


def test_a_server_that_does_not_answer_is_asked_until_it_does(stage: Stage) -> None:
    stage.attach_servers()
    server = stage.servers[PS[0]]
    server.fail["Fence"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.FenceWorker(WORKER))
    server.wait_for_call("Fence", 2)
    assert not stage.core.of(happened.WorkerFenced)
    server.fail.clear()
    assert len(stage.core.wait_for(happened.WorkerFenced).applied) == 2


def test_a_server_that_ended_is_left_out_of_a_fence(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(do.StartProcess(PS[0]))
    stage.core.wait_for(happened.ProcessSeen)
    server = stage.servers[PS[0]]
    server.fail["Fence"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.FenceWorker(WORKER))
    server.wait_for_call("Fence")
    stage._loop.call_soon_threadsafe(stage.cluster.kill, PS[0])
    assert stage.core.wait_for(happened.WorkerFenced).applied == (Applied(ShardId(4), 0, 70),)


def test_a_worker_that_was_fenced_is_refused_by_the_master(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.FenceWorker(WORKER))
    stage.core.wait_for(happened.WorkerFenced)
    with pytest.raises(Refused, match="fenced"):
        client.report(Report())


def test_a_server_that_comes_later_refuses_the_fenced_too(stage: Stage) -> None:
    stage.order(do.FenceWorker(WORKER))
    stage.core.wait_for(happened.WorkerFenced)
    stage.attach_servers()
    for name in PS:
        stage.servers[name].wait_for_call("Fence")


def test_a_cut_lets_all_servers_reach_the_same_push_and_opens_the_gates(stage: Stage) -> None:
    stage.attach_servers()
    first, second = (stage.servers[name] for name in PS)
    second.last = {"worker-1": (8, pb.Applied(shard=4, attempt=0, offset=80)), "worker-2": (1, pb.Applied(shard=5))}
    second.version = 12
    gated: list[bool] = []
    stage.core.answers[happened.SnapshotCut] = lambda _: gated.append(first.gated and second.gated) or ()  # type: ignore[func-returns-value]
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    cut = stage.core.wait_for(happened.SnapshotCut)
    assert first.admitted == second.admitted == {"worker-1": 8, "worker-2": 1}
    # The first server never got push 8: the cut has push 7 of worker-1, and nothing of worker-2.
    assert (cut.snapshot, cut.version, cut.applied) == (SnapshotId(6), 10, {"worker-1": Applied(ShardId(4), 0, 70)})
    assert gated == [True], "the cut is handled while nobody can push"
    for server in (first, second):
        server.wait_for_call("Ungate")
        assert server.calls == ["Gate", "Cut", "Ungate"]


@pytest.mark.parametrize("step", ["Gate", "Cut"])
def test_a_server_that_fails_in_a_cut_leaves_every_gate_open(stage: Stage, step: str) -> None:
    stage.attach_servers()
    stage.servers[PS[1]].fail[step] = grpc.StatusCode.INTERNAL
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    failed = stage.core.wait_for(happened.SnapshotFailed)
    assert failed.snapshot == SnapshotId(6) and f"{step} was told to fail" in failed.reason
    for server in stage.servers.values():
        assert server.calls[-2:] == ["Ungate", "Drop"]
        assert not server.gated
    assert not stage.core.of(happened.SnapshotCut)


def test_a_server_that_is_away_fails_the_cut_by_name(stage: Stage) -> None:
    stage.client("ps-0").attach(stage.call(stage._serve(PS[0])), "127.0.0.1:1")
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.EVALUATION))
    assert stage.core.wait_for(happened.SnapshotFailed).reason == "ps-1 is away"
    assert "Gate" not in stage.servers[PS[0]].calls


def test_a_server_that_ends_in_a_cut_leaves_the_other_gates_open(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(do.StartProcess(PS[1]))
    stage.core.wait_for(happened.ProcessSeen)
    stage.servers[PS[1]].hang.add("Cut")
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    stage.servers[PS[1]].wait_for_call("Cut")
    stage._loop.call_soon_threadsafe(stage.cluster.kill, PS[1])
    assert "given up" in stage.core.wait_for(happened.SnapshotFailed).reason
    assert not stage.servers[PS[0]].gated


def test_cuts_come_one_after_the_other(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(*(do.TakeSnapshot(SnapshotId(number), do.Purpose.EVALUATION) for number in (1, 2, 3)))
    stage.core.wait_for(happened.SnapshotCut, 3)
    stage.servers[PS[0]].wait_for_call("Ungate", 3)
    assert stage.servers[PS[0]].calls == ["Gate", "Cut", "Ungate"] * 3


def test_a_save_that_fails_is_an_event_and_the_job_goes_on(stage: Stage) -> None:
    stage.order(do.SaveSnapshot(SnapshotId(6), 40, "{}"))
    assert stage.core.wait_for(happened.SnapshotFailed).reason == "no space left on device"
    stage.worker().report(Report())


def test_a_view_is_dropped_everywhere_though_one_server_refuses(stage: Stage) -> None:
    stage.attach_servers()
    stage.servers[PS[0]].fail["Drop"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.DropSnapshot(SnapshotId(6)))
    for name in PS:
        stage.servers[name].wait_for_call("Drop")


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_process_is_started_after_its_delay_and_seen(stage: Stage) -> None:
    stage.order(do.StartProcess(WORKER, 0.01))
    assert stage.core.wait_for(happened.ProcessSeen).name == WORKER


def test_a_refused_start_is_an_event_with_the_reason(stage: Stage) -> None:
    stage.cluster.refuse("quota cpu 8/8", retry=True)
    stage.order(do.StartProcess(WORKER))
    failed = stage.core.wait_for(happened.CreateFailed)
    assert (failed.name, failed.reason, failed.retry) == (WORKER, "quota cpu 8/8", True)


def test_a_process_that_is_stopped_before_its_delay_is_over_never_starts(stage: Stage) -> None:
    stage.order(do.StartProcess(WORKER, 60.0))
    stage.order(do.StopProcess(WORKER, 5.0, "not needed any more"))
    ended = stage.core.wait_for(happened.ProcessEnded)
    assert ended.name == WORKER and ended.facts.asked
    assert WORKER not in stage.cluster.specs


def test_events_are_on_disk_before_their_commands_are_carried_out(stage: Stage) -> None:
    seen_at_create: list[list[str]] = []

    def launch(name: ProcessName) -> ProcessSpec:
        seen_at_create.append(list(stage.journal.log))
        return ProcessSpec(name, ("true",))

    async def rig() -> None:
        stage.cluster.specs.clear()

    stage.call(rig())
    create = stage.cluster.create

    async def watched(spec: ProcessSpec) -> None:
        launch(spec.name)
        await create(spec)

    stage.cluster.create = watched  # type: ignore[method-assign]
    stage.order(do.StartProcess(WORKER))
    stage.core.wait_for(happened.ProcessSeen)
    assert seen_at_create == [["CheckpointRequested"]]


def test_announcements_and_metrics_are_lines_of_json(stage: Stage) -> None:
    stage.order(
        do.Announce("exit", "worker-1 was killed by SIGKILL", process="worker-1", cause="infrastructure", level="warning"),
        do.RecordMetrics("evaluation", 40, 900, {"accuracy": 0.95}),
    )
    event = json.loads((stage.directory / "events.jsonl").read_text())
    assert (event["process"], event["cause"], event["level"]) == ("worker-1", "infrastructure", "warning")
    row = json.loads((stage.directory / "metrics.jsonl").read_text())
    assert (row["version"], row["values"]) == (40, {"accuracy": 0.95})


def test_a_core_that_contradicts_itself_ends_the_driver_visibly(stage: Stage) -> None:
    def fail(_: Event) -> Sequence[Command]:
        raise ZeroDivisionError("the state contradicts itself")

    async def outcome() -> None:
        await asyncio.wait_for(asyncio.shield(stage.run), 10)

    client = stage.worker()
    stage.core.answers[happened.TaskFailed] = fail
    client._away_s = 0.2
    with pytest.raises(TransientError):
        client.report(Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),)))
    with pytest.raises(ZeroDivisionError):
        stage.call(outcome())


def test_the_last_command_ends_the_driver(stage: Stage) -> None:
    finish = do.FinishJob(ExitCode.DONE, "trained 150 records")

    async def outcome() -> do.FinishJob:
        return await asyncio.wait_for(asyncio.shield(stage.run), 10)

    stage.order(finish)
    assert stage.call(outcome()) == finish
