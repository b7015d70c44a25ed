"""Measure the master's cost of the status page: 1,000 workers, 100,000 shards, open browsers.

Costs are CPU time. The benchmark drives the clock.

The decisions, the page's server and its streams are the real ones; workers are simulated by what
they would say: each tells of
progress and gauges every two seconds. Browsers are streams of another process. `python -m
bench.page [PROFILE]`;
`python -m bench.page paint [ROUNDS]` measures only what a person waits for, which means something
on a machine that is idle.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench import paint
from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.history.event_log import EventLog
from elasticdl.history.snapshot import about
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import events as e
from elasticdl.master.core.commands import Announce, GrantLease
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.collector import Collector
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.server import StatusServer
from elasticdl.page import render_page
from elasticdl.rpc.conversation import Progress
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.shard import Applied, Lease, Source, Task
from tests.fake_cluster import FakeCluster

WORKERS, SHARDS, SHARD_RECORDS, BATCH = 1000, 100_000, 4096, 64
REPORT_EVERY_S = 2.0
SECONDS = 20
TOKEN = "token"
BROWSERS = (0, 1, 10)
PAINT = "paint"


class Master:
    """The master's core and page. Events are handled synchronously."""

    def __init__(self, directory: Path) -> None:
        flags = {
            "model_zoo": "z",
            "model_def": "m",
            "training_data": "t",
            "num_workers": f"1:{WORKERS}",
            "job_name": "large",
        }
        spec = JobSpec.from_flags(
            Action.TRAIN, {**flags, "records_per_task": SHARD_RECORDS, "num_epochs": 2}
        )
        self.clock = clock = ManualClock(wall_s=time.time())
        self.inbox = EventQueue(clock)
        self.core = JobState(spec)
        roster = PsRegistry(
            1,
            lambda name, address: GrpcServerControl(str(name), address, TOKEN, 1),
        )
        self.gateway = ProcessGateway(self.inbox, roster, Fences(roster), Task.TRAINING, self.core)
        self.event_log = EventLog(directory / "events.jsonl", clock.wall_s())
        collector = Collector(directory / "series.json", clock)
        self.watched = JobView(
            about(spec, clock.wall_s()),
            self.core,
            self.gateway,
            self.inbox,
            self.event_log,
            collector,
        )
        self.watched.cluster = FakeCluster()
        self.page = StatusServer(self.watched, AccessGuard(TOKEN), 1, directory / "logs")
        self.leases: dict[ProcessName, list[Lease]] = {}
        self.offsets: dict[ProcessName, int] = {}
        self.reports = 0

    def put(self, event: e.Event) -> None:
        for command in self.core.handle(event):
            match command:
                case GrantLease():
                    self.leases.setdefault(command.worker, []).append(command.lease)
                    self.gateway.throughput.granted(command.lease)
                case Announce():
                    stamp = {"at": self.inbox.clock.wall_s(), "at_s": self.inbox.at_s()}
                    told: dict[str, Any] = {
                        "kind": command.kind,
                        "text": command.text,
                        "process": command.process,
                        "details": command.details,
                    }
                    self.event_log.append(stamp, told)
                case _:
                    pass

    def begin(self) -> None:
        self.put(e.JobStarted(self.inbox.at_s(), (Source("data", SHARDS * SHARD_RECORDS),)))
        server = ProcessName(Role.PS, 0)
        self.put(e.ProcessAttached(self.inbox.at_s(), server, "a:1", "a:2"))
        for index in range(WORKERS):
            name = ProcessName(Role.WORKER, index)
            self.put(e.ProcessSeen(self.inbox.at_s(), name, True, f"node-{index % 50}"))
            self.put(e.ProcessAttached(self.inbox.at_s(), name))
            self.gateway.sessions.claim(name, "i").announced = True
            for _ in range(2):
                self.put(e.LeaseRequested(self.inbox.at_s(), name))

    def report(self, name: ProcessName) -> None:
        """Report ten more minibatches of the first lease."""
        self.reports += 1
        lease = self.leases[name][0]
        assert lease.shard is not None
        offset = min(lease.shard.records, self.offsets.get(name, lease.offset) + 10 * BATCH)
        done, at_s = offset == lease.shard.records, self.inbox.at_s()
        presence = self.gateway.sessions.heard(name)
        assert presence is not None
        gauges = {
            "rss_bytes": 4e8 + offset,
            "cpu_s": at_s,
            "step_ms": 12.5 + offset % 7,
            "pull_ms": 1.25,
            "push_ms": 2.5,
            "wait_ms": 0.5,
            "staleness_mean": 3.5,
        }
        presence.reported(gauges)
        applied = Applied(lease.shard.id, lease.attempt, offset)
        self.gateway.throughput.reported(name, Progress(lease.task, applied, done=done), at_s)
        self.put(
            e.ProgressReported(
                at_s,
                name,
                lease.task,
                applied,
                version=int(at_s * 100),
                loss=1.0 / (1 + at_s),
                done=done,
            )
        )
        self.offsets[name] = offset
        if done:
            self.leases[name].pop(0)
            self.offsets.pop(name)
            self.put(e.LeaseRequested(at_s, name))

    async def second(self) -> None:
        """Simulate one second of the job: half of the workers report, the page refreshes once."""
        for index in range(self.reports, self.reports + round(WORKERS / REPORT_EVERY_S)):
            self.report(ProcessName(Role.WORKER, index % WORKERS))
        self.clock.advance(1.0)
        feed = self.page._change_feed
        feed._tick(feed._view.reading(), 1.0)


async def watch(port: int, number: int) -> None:
    """Run browsers in a process of their own; return the bytes that each received."""
    counted = [0] * number

    async def one(session: aiohttp.ClientSession, place: int) -> None:
        async with session.get("/api/v1/stream") as answer:
            async for chunk in answer.content.iter_any():
                counted[place] += len(chunk)

    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", headers=headers, timeout=aiohttp.ClientTimeout()
    ) as session:
        streams = [asyncio.ensure_future(one(session, place)) for place in range(number)]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print(max(counted, default=0), flush=True)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def phase(master: Master, port: int, number: int) -> dict[str, float]:
    """CPU time of this process for each second of the job, while so many browsers watch: however
    busy the machine is.
    """
    command = (sys.executable, "-m", "bench.page", "--watch", str(port), str(number))
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    while master.page._change_feed.watchers < number:
        await asyncio.sleep(0.05)
    reporting_s = looking_s = 0.0
    for _ in range(SECONDS):
        begin_s = time.process_time()
        await master.second()
        # Lets the event loop send to the browsers and lets them receive.
        await asyncio.sleep(0.1)
        looking_s += time.process_time() - begin_s
    for _ in range(SECONDS):
        begin_s = time.process_time()
        for index in range(round(WORKERS / REPORT_EVERY_S)):
            master.report(ProcessName(Role.WORKER, index % WORKERS))
        reporting_s += time.process_time() - begin_s
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(b"\n")
    told = int(await child.stdout.readline())
    await child.wait()
    while master.page._change_feed.watchers:
        await master.second()
        await asyncio.sleep(0.1)
    return {
        "CPU ms per second": round(1000 * looking_s / SECONDS, 1),
        "of it reports": round(1000 * reporting_s / SECONDS, 1),
        "KiB/s to each browser": round(told / SECONDS / 1024, 1),
    }


async def requests(master: Master, port: int) -> dict[str, float]:
    """Return the milliseconds of CPU for one request of each kind, with all overhead."""
    found: dict[str, float] = {}
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity"}
    paths = (
        "/",
        "/api/v1/snapshot",
        "/api/v1/status",
        "/metrics",
        "/api/v1/timeline",
        "/api/v1/shards",
        "/api/v1/shards?state=done&offset=90000",
    )
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        for path in paths:
            begin_s = time.process_time()
            for _ in range(5):
                master.watched._reading = None
                async with session.get(path) as answer:
                    size = len(await answer.read())
                    assert answer.status == 200, path
            found[f"{path} ms"] = round(1000 * (time.process_time() - begin_s) / 5, 1)
            found[f"{path} KiB"] = round(size / 1024, 1)
    return found


async def painted(master: Master, port: int, *rounds: int) -> dict[str, Any]:
    """Return a browser's cost while the job runs."""
    command = (
        sys.executable,
        "-m",
        "bench.paint",
        f"http://127.0.0.1:{port}/#token={TOKEN}",
        *map(str, rounds),
    )
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    reading = asyncio.ensure_future(child.communicate())
    while not reading.done():
        await master.second()
        await asyncio.wait([reading], timeout=1.0)
    assert child.returncode == 0, "the browser failed"
    return dict(json.loads(reading.result()[0]))


@asynccontextmanager
async def staged() -> AsyncIterator[tuple[Master, int]]:
    """Return the master and the port of its page."""
    with tempfile.TemporaryDirectory() as folder:
        master = Master(Path(folder))
        master.begin()
        port = await master.page.start("127.0.0.1", 0)
        task = master.page._change_feed._task
        assert task is not None
        task.cancel()  # the benchmark drives the clock itself
        try:
            yield master, port
        finally:
            await master.page.close(None)


async def paint_story(rounds: int) -> dict[str, Any]:
    """Simulate a minute of the job, then paint its page `rounds` times."""
    async with staged() as (master, port):
        for _ in range(60):
            await master.second()
        return await painted(master, port, rounds)


async def story(profile: str) -> dict[str, Any]:
    async with staged() as (master, port):
        figures: dict[str, Any] = {"workers": WORKERS, "shards": SHARDS}
        profiler = cProfile.Profile()
        for number in (10,) if profile else BROWSERS:
            if profile:
                profiler.enable()
            figures[f"{number} browsers"] = await phase(master, port, number)
            profiler.disable()
        if profile:
            pstats.Stats(profiler).sort_stats(profile).print_stats(45)
        begin_s = time.process_time()
        render_page(master.watched.snapshot())
        figures["encoding the page ms"] = round(1000 * (time.process_time() - begin_s), 1)
        figures["requests"] = await requests(master, port)
        if not profile:
            figures["a browser"] = (
                await painted(master, port)
                if paint.chromium()
                else "left out: there is no Chromium"
            )
        figures["peak memory MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        return figures


def measure(profile: str = "", rounds: str = "5") -> dict[str, Any]:
    """Run the benchmark, and print the figures."""
    figures = asyncio.run(paint_story(int(rounds)) if profile == PAINT else story(profile))
    for name, value in figures.items():
        print(f"{name}: {value}", flush=True)
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        asyncio.run(watch(int(sys.argv[2]), int(sys.argv[3])))
    else:
        measure(*sys.argv[1:3])
