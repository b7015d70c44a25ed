"""A master process with clients that attach, follow orders, lease, report, and compute nothing.

The master is the product's: it gets a job directory, and a supervisor that starts clients where
another one starts workers. A client of its own process is killed at the end, and then the master.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.jobs import cpu_time_s
from bench.load import Load
from bench.load_client import CALL_S
from elasticdl.cluster.base import ExitStatus, ProcessName, ProcessSpec
from elasticdl.cluster.local.supervisor.channel import Channel
from elasticdl.cluster.local.supervisor.messages import RESTART_VARIABLE, Predecessor, Welcome
from elasticdl.cluster.local.supervisor.session import Session
from elasticdl.cluster.port_reservations import PortReservations
from elasticdl.job import JobSpec
from elasticdl.job_choices import TLS_OFF, TLS_ON, Action
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.master.preflight import Preflight, save_preflight
from elasticdl.shard import Source
from tests.fake_cluster import FakeCluster

ROOT = Path(__file__).parent.parent
PROCESSES = 4
"""Processes that the clients share; one more has the client that is killed."""
SHARDS, SHARD_RECORDS = 1_000_000, 100
LOOK_S, ANSWER_S, NOTICE_S, TAKEOVER_S = 0.1, 60.0, 300.0, 120.0
SETTLED_LEASES = 2.0
LEASE_S = 5.0
"""How long a client works on a lease unless it is told otherwise, give or take a fifth."""
MASTER = (sys.executable, "-m", "bench.load_master_process")


class ClientProcess:
    """A process of `bench.load_clients`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def started(cls, first: dict[str, Any]) -> ClientProcess:
        """Start it; `first` is what it reads first."""
        command = (sys.executable, "-m", "bench.load_clients")
        pipe = asyncio.subprocess.PIPE
        process = cls(
            await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=pipe, stdout=pipe, limit=64 << 20
            )
        )
        process.send(first)
        return process

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def tell(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        self.send({"tell": True})
        async with asyncio.timeout(ANSWER_S):
            told: dict[str, Any] = json.loads(await self._process.stdout.readline())
            return told

    def cpu_s(self) -> float:
        return cpu_time_s(self._process.pid)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class ClientCluster:
    """Starts clients where the product starts processes. It does not notice their ends."""

    def __init__(self) -> None:
        self._fake = FakeCluster()
        self._processes: list[ClientProcess] = []
        self._ready = asyncio.Event()
        self._started = set[str]()
        """Names of all clients: a next master may order one again."""
        self.victim = ""
        self.stopped = 0
        """Clients that the master gave up."""
        self.noticed: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def use(self, processes: list[ClientProcess]) -> None:
        """Start clients in these processes, the first worker in the last one, alone."""
        self._processes = processes
        self._ready.set()

    async def create(self, spec: ProcessSpec) -> None:
        await self._ready.wait()  # The master begins before there are client processes.
        await self._fake.create(spec)
        name = str(spec.name)
        if name in self._started:
            return
        self._started.add(name)
        if name == "worker-0":
            self.victim = name
            self._processes[-1].send({"start": name})
            return
        number = len(self._started) % (len(self._processes) - 1)
        self._processes[number].send({"start": name})

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        self.stopped += 1
        if str(name) == self.victim and not self.noticed.done():
            self.noticed.set_result(time.monotonic())
        await self._fake.delete(name, grace_s=grace_s, for_good=for_good)

    def observe(self) -> Any:
        return self._fake.observe()


class Processes:
    """What a session of a supervisor needs of `JobProcesses`."""

    def __init__(self, cluster: ClientCluster) -> None:
        self.cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class LoadedMaster:
    """A job's masters, one after the other."""

    def __init__(self, directory: JobDirectory, cluster: ClientCluster) -> None:
        self._directory, self._cluster = directory, cluster
        self.ports, self.kept = PortReservations(), dict[str, str]()
        self.process: asyncio.subprocess.Process | None = None
        self._session: Session | None = None
        self._serving: asyncio.Task[None] | None = None
        self._number = 0
        self.uses_tls = JobSpec.model_validate_json(directory.spec.read_text()).uses_tls

    async def start(self, before: Predecessor | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        processes = cast("Any", Processes(self._cluster))
        session = Session(Channel(ours), processes, self.ports, self.kept, lambda records: None)
        session.begin(Welcome(self.kept, before), ())
        variables = {
            "ELASTICDL_JOB_DIR": str(self._directory.path),
            RESTART_VARIABLE: str(self._number),
        }
        self._number += 1
        with theirs, self._directory.master_log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *MASTER,
                cwd=ROOT,
                env={**os.environ, **variables},
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
            )
        self._session, self._serving = session, asyncio.ensure_future(session.serve())

    async def kill(self) -> None:
        assert self.process and self._serving and self._session
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._serving
        self._session.close()

    def cpu_s(self) -> float:
        assert self.process is not None
        return cpu_time_s(self.process.pid)

    def rss_mib(self) -> float:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    @property
    def log(self) -> str:
        return self._directory.master_log.read_text()[-2000:]


def job_directory(path: Path, clients: int, *, tls: bool = False) -> JobDirectory:
    """A job that has passed its preflight: its master starts no TensorFlow."""
    directory = JobDirectory(path)
    directory.logs.mkdir(parents=True)
    flags = {
        "model_zoo": str(path),
        "model_def": "none",
        "training_data": "records",
        "records_per_task": SHARD_RECORDS,
        "minibatch_size": SHARD_RECORDS,
        "num_workers": clients,
        "num_ps_pods": 1,
        "checkpoint_seconds": 0,
        "tls": TLS_ON if tls else TLS_OFF,
    }
    spec = JobSpec.from_flags(Action.TRAIN, flags)
    write_atomically(directory.spec, spec.model_dump_json())
    records = SHARDS * SHARD_RECORDS
    counted = {"ok": True, "training": [{"name": "records", "records": records}]}
    sources = (Source("records", records),)
    save_preflight(directory.preflight, Preflight(sources, (), (), counted))
    return directory


class Measurement:
    """One master and its clients."""

    def __init__(self, clients: int, master: LoadedMaster, cluster: ClientCluster) -> None:
        self.clients = clients
        self.master, self.cluster = master, cluster
        self.processes: list[ClientProcess] = []

    @asynccontextmanager
    async def running(self, lease_s: float) -> AsyncIterator[None]:
        """Start the master, and the processes of the clients as soon as there is a token."""
        await self.master.start()
        try:
            # Of what it keeps for its successors, this is the last.
            last = "key" if self.master.uses_tls else "token"
            await self._until("the master has a token", lambda: last in self.master.kept)
            address = f"127.0.0.1:{self.master.ports.reserve('master', '127.0.0.1', 0)}"
            first = {
                "address": address,
                "token": self.master.kept["token"],
                "lease_s": lease_s,
                "authority": self.master.kept.get("certificate", ""),
            }
            self.processes = [await ClientProcess.started(first) for _ in range(PROCESSES + 1)]
            self.cluster.use(self.processes)
            yield
        finally:
            await self.master.kill()
            await asyncio.gather(*(one.kill() for one in self.processes))
            self.master.ports.close()

    async def _until(self, what: str, true: Any, limit_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not true():
            assert self.master.process is not None
            if time.monotonic() > deadline_s or self.master.process.returncode is not None:
                raise RuntimeError(f"not within {limit_s:g} s: {what}\n{self.master.log}")
            await asyncio.sleep(0.02)

    async def tell(self) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(one.tell() for one in self.processes)))

    async def until_attached(self, term: int, wanted: int, limit_s: float) -> tuple[float, int]:
        """Wait until so many clients have attached to a master later than `term`.

        Returns when that was, or the limit, and their number.
        """
        end_s = time.monotonic() + limit_s
        while True:
            told = await self.tell()
            attached = sum(one > term for process in told for one in process["terms"])
            if attached >= wanted or time.monotonic() > end_s:
                return time.monotonic(), attached
            assert self.master.process is not None
            if self.master.process.returncode is not None:
                raise RuntimeError(f"the master has ended\n{self.master.log}")
            await asyncio.sleep(LOOK_S)

    async def notice(self) -> float | None:
        """Kill the process of one client: seconds until the master stops it.

        None if it was stopped before, or not within the limit.
        """
        if self.cluster.noticed.done():
            return None
        killed_s = time.monotonic()
        await self.processes.pop().kill()
        self.cluster.use([*self.processes, self.processes[-1]])
        try:
            async with asyncio.timeout(NOTICE_S):
                return await asyncio.shield(self.cluster.noticed) - killed_s
        except TimeoutError:
            return None

    def begin_window(self) -> None:
        """Have the clients forget what they have measured."""
        for process in self.processes:
            process.send({"window": True})

    def clients_cpu_s(self) -> float:
        """CPU time of all clients so far."""
        return sum(process.cpu_s() for process in self.processes)

    async def take_over(self) -> tuple[float, int]:
        """Kill the master: seconds until all its clients are the next one's, and their number."""
        self.begin_window()  # They tell little then, and soon.
        told = await self.tell()
        terms = [term for process in told for term in process["terms"]]
        killed_s, at = time.monotonic(), time.time()
        await self.master.kill()
        await self.master.start(Predecessor(ExitStatus(signal=9), 60.0, at))
        attached_s, number = await self.until_attached(max(terms), len(terms), TAKEOVER_S)
        return attached_s - killed_s, number


@dataclass(frozen=True, slots=True)
class Measured:
    """A load, and how many clients the next master had how long after the kill of the first."""

    load: Load
    took_over_s: float
    taken_over: int


async def measured(
    clients: int, seconds: float, lease_s: float = LEASE_S, *, tls: bool = False
) -> Measured:
    with tempfile.TemporaryDirectory() as path:
        cluster = ClientCluster()
        master = LoadedMaster(job_directory(Path(path) / "job", clients, tls=tls), cluster)
        measurement = Measurement(clients, master, cluster)
        began_s = time.monotonic()
        async with measurement.running(lease_s):
            attached_s, attached = await measurement.until_attached(
                0, clients, 60 + 0.015 * clients
            )
            print(
                f"{attached:,} attached after {attached_s - began_s:.1f} s,"
                f" {master.cpu_s():.1f} s of the master's CPU time",
                flush=True,
            )
            # All have had a lease then, and no longer ask in step.
            await asyncio.sleep(SETTLED_LEASES * lease_s)
            measurement.begin_window()
            cpu_s, window_s = master.cpu_s(), time.monotonic()
            clients_s = measurement.clients_cpu_s()
            await asyncio.sleep(seconds)
            told = await measurement.tell()
            cpu_s, window_s = master.cpu_s() - cpu_s, time.monotonic() - window_s
            clients_s = measurement.clients_cpu_s() - clients_s
            stopped = cluster.stopped
            noticed_s = await measurement.notice()
            rss_mib = master.rss_mib()
            before_s = measurement.clients_cpu_s()
            taken_s, number = await measurement.take_over()
            print(
                f"taken over: {number:,} clients after {taken_s:.1f} s,"
                f" {master.cpu_s():.1f} s of the next master's CPU time,"
                f" {measurement.clients_cpu_s() - before_s:.1f} s of the clients'",
                flush=True,
            )
    leases = sorted(one for process in told for one in process["leases_ms"])
    reports = sum(process["reports"] for process in told)
    failures = {name: why for process in told for name, why in process["failures"].items()}
    for name, why in sorted(failures.items())[:3]:
        print(f"{name}: {why}", flush=True)
    print(
        f"in {window_s:.1f} s: {len(leases) / window_s:,.0f} leases/s,"
        f" {reports / window_s:,.0f} reports/s, {100 * cpu_s / window_s:.0f} % of a core,"
        f" the clients {100 * clients_s / window_s:.0f} %",
        flush=True,
    )
    quantiles = statistics.quantiles(leases, n=100) if len(leases) > 1 else []
    lost = sum(age_s > CALL_S for process in told for age_s in process["answered_s"])
    load = Load(
        clients=clients,
        stranded=max(clients - attached, len(failures), lost, stopped),
        cpu_s=round(cpu_s, 2),
        rss_mib=round(rss_mib, 1),
        lease_p50_ms=round(quantiles[49], 2) if quantiles else None,
        lease_p99_ms=round(quantiles[98], 2) if quantiles else None,
        rows_per_s=None,
        noticed_s=round(noticed_s, 2) if noticed_s is not None else None,
    )
    return Measured(load, taken_s, number)


def run(clients: int, seconds: float, lease_s: float = LEASE_S, *, tls: bool = False) -> Load:
    """Put a master under the load of so many clients for so long, once all have attached.

    Each works `lease_s` on a lease.
    """
    return asyncio.run(measured(clients, seconds, lease_s, tls=tls)).load
