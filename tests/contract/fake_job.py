"""A whole job but for its processes: the real core, driver and desks on a cluster in memory, with
workers that only count.

Time runs ten times as fast as outside, for everything that goes by the job's clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.cluster.base import (
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.errors import PermanentError, Refused
from elasticdl.history.event_log import EventLog
from elasticdl.history.lines import JsonLines
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master import driver
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.core.events import JobStarted, ProcessAttached
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.rpc.conversation import Finished, Progress, Report
from elasticdl.rpc.ps_control import Fenced, ServerCut
from elasticdl.shard import Applied, Lease, SnapshotId, Source, Task
from tests.contract.absent_parts import NoArchive, NoJournal, no_preflight
from tests.fake_cluster import FakeCluster
from tests.waiting import until_async

SPEED = 10.0
TICK_S = 1.0 / SPEED
LIMIT_S = 30.0
BATCH = 8
SOURCE = Source("a", 640)


class FastClock:
    """Ten seconds for each that passes."""

    def now_s(self) -> float:
        return time.monotonic() * SPEED

    def wall_s(self) -> float:
        return time.time()


@dataclass
class CountingServer:
    """Knows each worker's last push, and whom to refuse."""

    last: dict[str, Applied] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)

    async def fence(self, worker: str, *, timeout_s: float) -> Fenced:
        self.fenced.add(worker)
        return Fenced(self.last.get(worker), 0)

    async def gate(self, *, timeout_s: float) -> dict[str, int]:
        return {}

    async def cut(
        self, snapshot: SnapshotId, admit_until: Mapping[str, int], *, timeout_s: float
    ) -> ServerCut:
        return ServerCut(1, {}, {})

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        return step

    async def ungate(self, *, timeout_s: float) -> None: ...

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
        *,
        timeout_s: float,
    ) -> Any:
        raise PermanentError("nothing is kept here")

    async def hurry(self, snapshot: SnapshotId, *, timeout_s: float) -> None: ...

    async def recent_steps(self, *, timeout_s: float) -> Any:
        raise PermanentError("nothing is applied here")

    async def seal(self, snapshot: SnapshotId, *, timeout_s: float) -> dict[str, int]:
        return {}

    async def unseal(self, snapshot: SnapshotId, *, timeout_s: float) -> None: ...

    async def drop(
        self, snapshot: SnapshotId, *, saved: bool = False, timeout_s: float
    ) -> None: ...

    async def keep(self, snapshots: Sequence[SnapshotId], *, timeout_s: float) -> None: ...

    async def close(self) -> None: ...


class FakeJob:
    """Make it within a running loop. `pace_s`: how long a worker takes for a batch, outside."""

    def __init__(self, directory: Path, *, pace_s: float = 0.01, **flags: object) -> None:
        base = {
            "model_zoo": "z",
            "model_def": "m",
            "training_data": "t",
            "minibatch_size": BATCH,
            "records_per_task": 4 * BATCH,
        }
        self.spec = JobSpec.from_flags(
            Action.TRAIN, {**base, "num_workers": 2, "num_ps_pods": 2, **flags}
        )
        self.core, self.cluster, self.inbox = (
            JobState(self.spec),
            FakeCluster(),
            EventQueue(FastClock()),
        )
        self.servers: dict[str, CountingServer] = {}
        self.pace_s = pace_s
        self._roster = PsRegistry(self.spec.servers, lambda name, _: self.servers[str(name)])
        fences = Fences(self._roster)
        self.gateway = ProcessGateway(self.inbox, self._roster, fences, Task.TRAINING, self.core)
        self._lines = (
            EventLog(directory / "events.jsonl", 0.0),
            JsonLines(directory / "metrics.jsonl"),
        )
        self.events_path = directory / "events.jsonl"
        launcher = Launcher(self.cluster, lambda name: ProcessSpec(name, ("train",)))
        means = ExecutorDeps(
            launcher, fences, Snapshots(self._roster), NoArchive(), *self._lines, no_preflight
        )
        self._driver = driver.Driver(
            self.core,
            NoJournal(),
            self.inbox,
            self.gateway,
            Executor(self.inbox, self.gateway, means),
            TICK_S,
        )
        self._lives: dict[ProcessName, asyncio.Task[None]] = {}

    async def run(self, scenario: Callable[[FakeJob], Any] | None = None) -> FinishJob:
        """Until the job is over. What the scenario or a process raises is raised."""
        world = asyncio.create_task(self._world())
        self.inbox.post(JobStarted(self.inbox.at_s(), (SOURCE,)))
        script = asyncio.create_task(scenario(self)) if scenario else None
        try:
            async with asyncio.timeout(LIMIT_S):
                finish = await self._driver.run(self.cluster.observe())
                if script is not None:
                    await script
                return finish
        finally:
            for task in (world, script, *self._lives.values()):
                if task is not None:
                    task.cancel()
            await asyncio.gather(world, *self._lives.values(), return_exceptions=True)
            await self.cluster.close()
            for lines in self._lines:
                lines.close()

    async def until(self, what: str, condition: Callable[[FakeJob], object]) -> None:
        """Look again and again, with a limit."""
        await until_async(
            what, lambda: condition(self), LIMIT_S / 2, every_s=0.005, context=self.core.status
        )

    @property
    def workers(self) -> list[ProcessName]:
        """Those that live, for all that the cluster knows."""
        return [name for name in self.cluster.live if name.role is Role.WORKER]

    @property
    def trained(self) -> int:
        return self.core.status().records.trained

    # processes

    async def _world(self) -> None:
        async for event in self.cluster.observe():
            match event:
                case ProcessObserved(name, running=True) if name not in self._lives:
                    life = self._server(name) if name.role is Role.PS else self._worker(name)
                    self._lives[name] = asyncio.create_task(life)
                case ProcessExited(name) if name in self._lives:
                    self._lives[name].cancel()

    async def _server(self, name: ProcessName) -> None:
        self.servers[str(name)] = CountingServer()
        await self.gateway.attach(
            ProcessAttached(self.inbox.at_s(), name, "here", "here"), str(name)
        )
        sequence = 0
        while True:
            sequence += 1
            await self.gateway.report(
                name, Report(version=1, gauges={"rss_bytes": 2.0**29}), sequence
            )
            await asyncio.sleep(0.02)

    async def _worker(self, name: ProcessName) -> None:
        with suppress(Refused):
            await self.gateway.attach(ProcessAttached(self.inbox.at_s(), name), str(name))
            reports = leases = 0
            while True:
                leases += 1
                answer = await self.gateway.poll(name, leases, 0.05)
                if isinstance(answer, Finished):
                    if name in self.cluster.live:
                        self.cluster.exit(name, ExitStatus(exit_code=0))
                    return
                if isinstance(answer, Lease):
                    reports = await self._train(name, answer, reports)

    async def _train(self, name: ProcessName, lease: Lease, reports: int) -> int:
        assert lease.shard is not None
        for begin in range(lease.offset, lease.shard.records, BATCH):
            await asyncio.sleep(self.pace_s)
            end = min(begin + BATCH, lease.shard.records)
            applied = Applied(lease.shard.id, lease.attempt, end)
            for server in self.servers.values():
                if str(name) in server.fenced:
                    raise Refused("fenced")
                server.last[str(name)] = applied
            progress = Progress(
                Task.TRAINING, applied, version=1, loss=1.0, done=end == lease.shard.records
            )
            reports += 1
            await self.gateway.report(
                name, Report(progress=(progress,), gauges={"rss_bytes": 0.98 * 2**30}), reports
            )
        return reports


async def whole_job(
    directory: Path,
    scenario: Callable[[FakeJob], Any] | None = None,
    prepare: Callable[[FakeJob], None] | None = None,
    **flags: Any,
) -> tuple[FinishJob, FakeJob]:
    """Run a job to its end."""
    job = FakeJob(directory, **flags)
    if prepare:
        prepare(job)
    return await job.run(scenario), job
