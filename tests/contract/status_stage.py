"""A master's page over loopback: real decisions, a real driver, a cluster in memory; the test is
browser and processes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import Cluster, ProcessName, ProcessSpec
from elasticdl.history.event_log import EventLog
from elasticdl.history.lines import JsonLines
from elasticdl.history.snapshot import about
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.events import Event
from elasticdl.master.core.ps.steps import Steps
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.collector import Collector, MetricsLog
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.limits import PageLimits
from elasticdl.master.status.server import StatusServer
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Applied, Lease, ShardId, Source, Task
from tests.contract.absent_parts import NoArchive, NoJournal, no_preflight
from tests.fake_cluster import FakeCluster

TOKEN = "the-token-of-this-job"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PS = ProcessName.parse("ps-0")
LIMIT_S = 30.0


def worker(index: int) -> ProcessName:
    return ProcessName.parse(f"worker-{index}")


def spec(**flags: Any) -> JobSpec:
    known = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "training_data": "iris.csv",
        "job_name": "iris",
        "num_workers": "2:4",
    }
    return JobSpec.from_flags(Action.TRAIN, {**known, "records_per_task": 64, **flags})


class Stage:
    """`watched` and `inbox` are the master's; `url` is where its page is."""

    def __init__(
        self,
        directory: Path,
        job: JobSpec,
        limits: PageLimits = PageLimits(),
        context: ssl.SSLContext | None = None,
    ) -> None:
        clock = SystemClock()
        self.inbox = EventQueue(clock)
        self.core = JobState(job)
        self._roster = PsRegistry(
            1, lambda name, address: GrpcServerControl(str(name), address, TOKEN, 1)
        )
        fences = Fences(self._roster)
        self.gateway = ProcessGateway(self.inbox, self._roster, fences, Task.TRAINING, self.core)
        self.chronicle = EventLog(directory / "events.jsonl", clock.wall_s())
        self.collector = Collector(directory / "series.json", clock)
        self._metrics = MetricsLog(JsonLines(directory / "metrics.jsonl"), self.collector)
        self._fences = fences
        self.watched = JobView(
            about(job, clock.wall_s()),
            self.core,
            self.gateway,
            self.inbox,
            self.chronicle,
            self.collector,
        )
        guard = AccessGuard(TOKEN, ("iris-master",))
        self.server = StatusServer(self.watched, guard, 3, directory / "logs", limits, context)
        self._scheme = "http" if context is None else "https"
        self.cluster: Cluster = FakeCluster()
        self.port = self._asked = 0
        self.running: asyncio.Task[do.FinishJob] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host}"

    @property
    def fake(self) -> FakeCluster:
        assert isinstance(self.cluster, FakeCluster)
        return self.cluster

    async def open(self, records: int) -> None:
        self.watched.cluster = self.cluster
        launcher = Launcher(self.cluster, lambda name: ProcessSpec(name, ("true",)))
        means = ExecutorDeps(
            launcher,
            self._fences,
            Snapshots(self._roster),
            NoArchive(),
            self.chronicle,
            self._metrics,
            no_preflight,
        )
        hands = Executor(self.inbox, self.gateway, means)
        self.port = await self.server.start("127.0.0.1", 0)
        self.running = asyncio.ensure_future(
            Driver(self.core, NoJournal(), self.inbox, self.gateway, hands).run(
                self.cluster.observe()
            )
        )
        await self.post(happened.JobStarted(self.inbox.at_s(), (Source("iris.csv", records),)))

    async def close(self) -> None:
        await self.server.close(None)
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        await self.cluster.close()
        await self._roster.close()
        self._metrics.close()
        self.chronicle.close()

    def turns(self, orders: OrderStreams) -> StepTurns:
        """For `gateway.train_in_steps`: steps of two gradients."""
        outlook, lock = self.core.step_outlook, asyncio.Lock()
        return StepTurns(Steps(2, 0), outlook, self.inbox, self._roster, orders, lock)

    async def post(self, event: Event) -> None:
        await self.inbox.post(event)

    async def attach(self, *names: ProcessName) -> None:
        for name in names:
            self.gateway.sessions.claim(name, str(name))
            at: dict[str, Any] = (
                {"control_address": "127.0.0.1:1", "bulk_address": "127.0.0.1:2"}
                if name.role == "ps"
                else {}
            )
            await self.post(happened.ProcessAttached(self.inbox.at_s(), name, **at))

    async def lease(self, name: ProcessName) -> int:
        """The shard that the worker gets."""
        self._asked += 1
        lease = await self.gateway.poll(name, self._asked, LIMIT_S)
        assert isinstance(lease, Lease) and lease.shard is not None
        return lease.shard.id

    async def report(
        self,
        name: ProcessName,
        shard: int,
        offset: int,
        *,
        done: bool = False,
        loss: float | None = None,
    ) -> None:
        applied = Applied(ShardId(shard), 0, offset)
        await self.post(
            happened.ProgressReported(
                self.inbox.at_s(), name, Task.TRAINING, applied, loss=loss, done=done
            )
        )


@asynccontextmanager
async def staged(
    directory: Path,
    job: JobSpec | None = None,
    records: int = 6400,
    limits: PageLimits = PageLimits(),
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Stage]:
    stage = Stage(directory, job or spec(), limits, context)
    try:
        async with asyncio.timeout(LIMIT_S):
            await stage.open(records)
            yield stage
    finally:
        await stage.close()


@asynccontextmanager
async def browser(stage: Stage, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stage.url, **options) as session:
        yield session


Page: TypeAlias = tuple[Stage, aiohttp.ClientSession]
"""A page, and a client that has the token."""


@asynccontextmanager
async def paged(directory: Path, **options: Any) -> AsyncIterator[Page]:
    async with staged(directory, **options) as stage, browser(stage, headers=BEARER) as session:
        yield stage, session


async def raw(stage: Stage, request: bytes, *, at_most: int = 1 << 20) -> bytes:
    """Bytes as they are: clients of good manners would not send them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read(at_most)
    writer.close()
    return answer


def get(path: str, host: str, *more: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {TOKEN}",
        "Connection: close",
        *more,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
