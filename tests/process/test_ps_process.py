"""Parameter servers as processes: they attach, serve, are cut and saved, killed and replaced under
load, and leave.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec, TableSpec
from elasticdl.errors import ExitCode, Refused, TransientError, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core.state import JobState
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_server import Call
from elasticdl.rpc.channel import Caller
from elasticdl.rpc.parameters import Pulled, Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.rpc.ps_control import GrpcServerControl, ServerCut, ServerSaved
from elasticdl.shard import Applied, ShardId, SnapshotId
from elasticdl.tokens import MOST_TERM, bulk_key, process_token, proof_to_master
from tests.contract.ps_stage import as_ids, counting_spec, shown, update
from tests.served_calls import ServedCalls

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
TOKEN = "the job's token"
ONES = np.ones(6, np.float32)


def _proof(caller: Caller) -> str:
    return proof_to_master(process_token(TOKEN, caller.name))


class Master:
    """What servers need of a master."""

    def __init__(self, job: str, restore_from: str, servers: int, limit_s: float) -> None:
        self.job, self.restore_from, self.servers = job, restore_from, servers
        self._limit_s = limit_s
        self.attached: queue.Queue[tuple[str, pb.AttachRequest]] = queue.Queue()
        self.reports: dict[str, pb.ReportRequest] = {}
        self.reported = threading.Condition()
        self.finish = threading.Event()
        self.asked: queue.Queue[str] = queue.Queue()
        self.status = JobState(JobSpec.model_validate_json(job)).status()
        self._served = ServedCalls(self, _proof)
        self.address = self._served.address

    async def Attach(self, request: Any, call: Call) -> Any:
        if request.bulk_address:
            self.attached.put((call.caller.name, request))
        index = int(call.caller.name.removeprefix("ps-").partition(".")[0])
        return pb.AttachReply(
            term=3,
            heartbeat_s=0.2,
            job=self.job,
            restore_from=self.restore_from,
            run="this-run",
            bulk_tokens=[bulk_key(TOKEN, index)],
            place=index,
            places=self.servers,
        )

    async def Report(self, request: Any, call: Call) -> Any:
        with self.reported:
            self.reports[call.caller.name] = request
            self.reported.notify_all()
        return pb.ReportReply()

    async def Orders(self, request: Any, call: Call) -> AsyncGenerator[Any]:
        yield pb.Order(servers=pb.Servers(addresses=[]))
        await asyncio.to_thread(self.finish.wait, self._limit_s)
        yield pb.Order(finish=pb.Done())

    async def Status(self, request: Any, call: Call) -> Any:
        return pb.StatusReply(status=json.dumps(self.status.to_json()))

    async def Checkpoint(self, request: Any, call: Call) -> Any:
        self.asked.put(call.caller.name)
        return pb.Done()

    def report_of(self, name: str, version: int) -> Any:
        with self.reported:
            assert self.reported.wait_for(
                lambda: name in self.reports and self.reports[name].version >= version,
                self._limit_s,
            )
            return self.reports[name]

    def close(self) -> None:
        self.finish.set()
        self._served.close()


class Job:
    """A master of our own and server processes."""

    def __init__(self, directory: Path, servers: int, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        flags = {"model_zoo": "z", "model_def": "m", "training_data": "t", "num_ps_pods": servers}
        self.directory = directory
        self.servers = servers
        spec = JobSpec.from_flags(Action.TRAIN, flags)
        self.master = Master(spec.model_dump_json(), "", servers, limit_s)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.bulk = [""] * servers
        self.control = [""] * servers
        self.names = [""] * servers
        self.versions: dict[str, int | None] = {}

    def start(self, name: str, token: str | None = None, **variables: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **variables,
            "ELASTICDL_MASTER": self.master.address,
            "ELASTICDL_TOKEN": token or process_token(TOKEN, name),
            "ELASTICDL_PROCESS": name,
            "ELASTICDL_JOB_DIR": str(self.directory),
            PARENT_PID_VARIABLE: str(os.getpid()),
        }
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.ps.main"],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.processes[name]

    def await_attached(self, count: int) -> None:
        for _ in range(count):
            name, request = self.master.attached.get(timeout=self.limit_s)
            index = int(name.removeprefix("ps-").partition(".")[0])
            self.bulk[index], self.control[index] = request.bulk_address, request.control_address
            self.names[index] = name
            self.versions[name] = request.restored_version if request.has_state else None

    def start_all(self) -> None:
        for k in range(self.servers):
            self.start(f"ps-{k}")
        self.await_attached(self.servers)

    def controls(self, term: int = 3, token: str | None = None) -> list[GrpcServerControl]:
        """`token`: another than each server's own."""
        return [
            GrpcServerControl(
                f"ps-{k}", address, token or process_token(TOKEN, self.names[k]), term
            )
            for k, address in enumerate(self.control)
        ]

    async def checkpoint(self, snapshot: int) -> Path:
        controls, limit_s = self.controls(), 10.0
        gates = [await control.gate(timeout_s=limit_s) for control in controls]
        numbers: dict[str, int] = {}
        for gate in gates:
            for worker, number in gate.items():
                numbers[worker] = max(number, numbers.get(worker, 0))
        cuts: list[ServerCut] = [
            await control.cut(SnapshotId(snapshot), numbers, timeout_s=limit_s)
            for control in controls
        ]
        for control in controls:
            await control.ungate(timeout_s=limit_s)
        assert cuts[0].applied == cuts[1].applied and cuts[0].sequences == cuts[1].sequences
        making = directories.begin(self.directory / "checkpoints")
        saved: list[ServerSaved] = [
            await control.save(SnapshotId(snapshot), str(making), timeout_s=limit_s)
            for control in controls
        ]
        for control in controls:
            await control.drop(SnapshotId(snapshot), saved=True, timeout_s=limit_s)
            await control.close()
        files = tuple(
            PartFile(name=file.name, bytes=file.bytes, checksum=file.checksum)
            for one in saved
            for file in one.files
        )
        parameters = ParametersSpec.model_validate_json(saved[0].parameters)
        return directories.complete(
            making,
            Manifest(
                version=saved[0].version, servers=self.servers, parameters=parameters, files=files
            ),
        )

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate(timeout=self.limit_s)
        self.master.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, 2)
    yield made
    made.close()


class Worker(threading.Thread):
    """Pushes one after the other until it is told to stop; every update adds 1 everywhere."""

    def __init__(self, job: Job, name: str, kept_bytes: int = 0) -> None:
        super().__init__()
        self._limit_s = job.limit_s
        self.pool = ServerPool(job.bulk, name, shown(len(job.bulk), name), kept_bytes=kept_bytes)
        self.pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=self._limit_s)
        self.pushes = 0
        self.versions: tuple[int, ...] = ()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.stepped = threading.Condition()

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                versions = self.pool.pull([as_ids([0, 1])], timeout_s=self._limit_s).versions
                pushed = self.pool.push(
                    update(self.pushes + 1, versions, ONES, [0, 1]), timeout_s=self._limit_s
                )
                with self.stepped:
                    self.pushes, self.versions = self.pushes + 1, pushed.versions
                    self.stepped.notify_all()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def await_pushes(self, more: int) -> None:
        with self.stepped:
            wanted = self.pushes + more
            assert self.stepped.wait_for(
                lambda: self.pushes >= wanted or not self.is_alive(), self._limit_s
            )
        assert self.error is None, self.error

    def end(self) -> None:
        self.ended.set()
        self.join(self._limit_s)
        assert self.error is None, self.error


def pushed_on(job: Job, workers: list[Worker]) -> tuple[Pulled, int]:
    """What the servers have after the workers moved to them and pushed on; the pushes in all."""
    for worker in workers:
        worker.pool.move(job.bulk)
    for worker in workers:
        worker.await_pushes(20)
    for worker in workers:
        worker.end()
    pulled = workers[0].pool.pull([as_ids([0, 1])], timeout_s=job.limit_s)
    return pulled, sum(worker.pushes for worker in workers)


def test_servers_serve_report_and_leave_when_the_job_is_over(job: Job) -> None:
    job.start_all()
    assert job.versions == {"ps-0": None, "ps-1": None}
    worker = Worker(job, "worker-0")
    worker.start()
    worker.await_pushes(20)
    worker.end()
    report = job.master.report_of("ps-1", worker.pushes)
    assert report.gauges["rows"] == 1 and report.gauges["connections"] >= 2
    worker.pool.close()
    job.master.finish.set()
    assert [process.wait(LIMIT_S) for process in job.processes.values()] == [
        ExitCode.DONE,
        ExitCode.DONE,
    ]


def test_a_server_is_small_before_data_and_never_imports_tensorflow(job: Job) -> None:
    job.start_all()
    report = job.master.report_of("ps-0", 0)
    assert 0 < report.gauges["rss_bytes"] < 120 << 20
    maps = Path(f"/proc/{job.processes['ps-0'].pid}/maps").read_text()
    assert "_native" in maps and "tensorflow" not in maps and "numpy" not in maps


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_at_once(job: Job, number: signal.Signals) -> None:
    job.start_all()
    worker = Worker(job, "worker-0")
    job.processes["ps-0"].send_signal(number)
    # In milliseconds; what would keep it are connections that stay open, and those do so for good.
    assert job.processes["ps-0"].wait(LIMIT_S / 4) == ExitCode.DRAINED, (
        "or it would look as if it had crashed"
    )
    worker.pool.close()


def test_a_server_that_is_told_to_leave_hands_over_all_that_it_acknowledged(job: Job) -> None:
    job.start_all()
    job.master.status = replace(job.master.status, phase="working", version=7)
    workers = [Worker(job, f"worker-{w}") for w in range(2)]
    for worker in workers:
        worker.start()
        worker.await_pushes(20)
    job.processes["ps-1"].send_signal(signal.SIGTERM)
    assert job.master.asked.get(timeout=LIMIT_S) == "ps-1"
    # It goes on until the checkpoint's cut, and waits for the checkpoint.
    workers[0].await_pushes(20)
    assert job.processes["ps-1"].poll() is None
    directory = asyncio.run(job.checkpoint(1))
    assert job.processes["ps-1"].wait(LIMIT_S / 4) == ExitCode.DRAINED

    version = directories.read_manifest(directory).version
    job.master.restore_from = str(directory)
    job.start("ps-1.1")
    job.await_attached(1)
    assert job.versions["ps-1.1"] == version
    pulled, pushes = pushed_on(job, workers)
    assert pulled.dense is not None
    counted = {*-pulled.dense, *-pulled.rows[0].ravel()}
    assert counted == {pushes}, "each push is on both servers, once"
    for worker in workers:
        worker.pool.close()


def test_a_server_that_is_told_to_leave_waits_for_the_last_checkpoint_of_the_job(job: Job) -> None:
    job.start_all()
    job.master.status = replace(job.master.status, phase="checkpointing", version=7)
    job.processes["ps-0"].send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        job.processes["ps-0"].wait(0.5)
    job.master.status = replace(job.master.status, phase="exporting")
    assert job.processes["ps-0"].wait(LIMIT_S / 4) == ExitCode.DRAINED


def test_a_second_signal_does_not_wait_for_the_checkpoint(job: Job) -> None:
    job.start_all()
    job.master.status = replace(job.master.status, phase="working", version=7)
    job.processes["ps-0"].send_signal(signal.SIGTERM)
    assert job.master.asked.get(timeout=LIMIT_S) == "ps-0"
    job.processes["ps-0"].send_signal(signal.SIGTERM)
    assert job.processes["ps-0"].wait(LIMIT_S / 4) == ExitCode.DRAINED


def test_a_killed_server_comes_back_from_the_checkpoint_under_load(job: Job) -> None:
    job.start_all()
    workers = [Worker(job, f"worker-{w}") for w in range(2)]
    for worker in workers:
        worker.start()
        worker.await_pushes(20)
    job.master.restore_from = str(asyncio.run(job.checkpoint(1)))
    workers[0].await_pushes(20)
    job.processes["ps-1"].send_signal(signal.SIGKILL)
    job.processes["ps-1"].wait(LIMIT_S)
    job.start("ps-1.1")
    job.await_attached(1)
    saved = directories.read_manifest(Path(job.master.restore_from)).version
    assert job.versions["ps-1.1"] == saved
    pulled, pushes = pushed_on(job, workers)
    assert pulled.dense is not None
    first, second = -pulled.dense[:3], -pulled.dense[3:]
    assert set(first) == {pushes} == set(-pulled.rows[0][0]), (
        "the server that lived has every push once"
    )
    assert set(second) == set(-pulled.rows[0][1]) and saved + 40 <= second[0] < pushes
    assert pulled.versions == (pushes, second[0])
    asyncio.run(job.checkpoint(2))
    for worker in workers:
        worker.pool.close()


def resident_bytes(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def test_a_million_rows_through_two_servers_cost_little_and_are_restored_bit_for_bit(
    job: Job,
) -> None:
    job.start_all()
    dim, total, part = 16, 1_000_000, 50_000
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.ADAM),
        tables=(TableSpec(name="t", dim=dim, seed=5),),
    )
    pool = ServerPool(job.bulk, "worker-0", shown(2, "worker-0"))
    pool.initialise(spec, np.zeros(0, np.float32), timeout_s=LIMIT_S)
    before = sum(map(resident_bytes, job.processes.values()))
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, total + 1000))[:total]
    for sequence, first in enumerate(range(0, total, part), 1):
        some = ids[first : first + part]
        versions = pool.pull([some], timeout_s=LIMIT_S).versions
        gradients = rng.standard_normal((part, dim), dtype=np.float32)
        applied = Applied(ShardId(0), 0, first + part)
        pool.push(
            Update(sequence, applied, versions, 0.01, None, (some,), (gradients,)),
            timeout_s=LIMIT_S,
        )
    grown = sum(map(resident_bytes, job.processes.values())) - before
    raw, index = dim * 4 * 3, 32
    assert raw * 0.95 < grown / total < raw * 1.2 + index
    rows = pool.pull([ids], timeout_s=LIMIT_S).rows[0]
    job.master.restore_from = str(asyncio.run(job.checkpoint(1)))
    parts = [path.read_bytes() for path in sorted(Path(job.master.restore_from).glob("*.bin"))]
    for name in ("ps-0", "ps-1"):
        job.processes[name].kill()
        job.processes[name].wait(LIMIT_S)
        job.start(f"{name}.1")
    job.await_attached(2)
    pool.move(job.bulk)
    np.testing.assert_array_equal(pool.pull([ids], timeout_s=LIMIT_S).rows[0], rows)
    again = asyncio.run(job.checkpoint(2))
    assert [path.read_bytes() for path in sorted(again.glob("*.bin"))] == parts, (
        "slots and order too"
    )
    pool.close()


def test_a_server_without_a_checkpoint_is_given_what_a_worker_knows(job: Job) -> None:
    job.start_all()
    worker = Worker(job, "worker-0")
    worker.start()
    worker.await_pushes(20)
    job.processes["ps-0"].send_signal(signal.SIGKILL)
    job.processes["ps-0"].wait(LIMIT_S)
    job.start("ps-0.1")
    job.await_attached(1)
    worker.pool.move(job.bulk)
    worker.await_pushes(20)
    worker.end()
    dense = worker.pool.pull([as_ids([0])], timeout_s=LIMIT_S).dense
    assert dense is not None
    assert set(-dense[3:]) == {worker.pushes} and worker.pushes - 2 <= -dense[0] <= worker.pushes
    worker.pool.close()


def test_a_fence_reports_the_last_push_and_holds(job: Job) -> None:
    job.start_all()
    worker = Worker(job, "worker-0")
    worker.start()
    worker.await_pushes(5)

    async def fence() -> list[Applied | None]:
        controls = job.controls()
        fenced = [await control.fence("worker-0", timeout_s=10) for control in controls]
        for control in controls:
            await control.close()
        return [one.applied for one in fenced]

    applied = asyncio.run(fence())
    worker.join(LIMIT_S)
    assert isinstance(worker.error, Refused)
    for one in applied:
        assert (
            one is not None
            and one.shard == ShardId(7)
            and worker.pushes <= one.offset / 10 <= worker.pushes + 1
        )
    worker.pool.close()


def test_only_the_newest_master_controls_a_server(job: Job) -> None:
    job.start_all()

    async def gate(**who: Any) -> None:
        control = job.controls(**who)[0]
        try:
            await control.gate(timeout_s=5)
            await control.ungate(timeout_s=5)
        finally:
            await control.close()

    asyncio.run(gate(term=4))
    with pytest.raises(Refused, match="replaced that of term 3"):
        asyncio.run(gate(term=3))
    for token in ("another", TOKEN, process_token(TOKEN, "worker-3"), process_token(TOKEN, "ps-1")):
        with pytest.raises(Refused, match="token"):
            asyncio.run(gate(term=4, token=token))
    with pytest.raises(UserError, match="not a number from 0"):
        asyncio.run(gate(term=MOST_TERM + 1))
    asyncio.run(gate(term=4))


def test_a_save_of_what_is_not_there_is_answered_in_words(job: Job) -> None:
    job.start_all()

    async def save() -> None:
        control = job.controls()[0]
        try:
            await control.save(SnapshotId(9), str(job.directory), timeout_s=5)
        finally:
            await control.close()

    with pytest.raises(TransientError, match="there is no snapshot 9 here"):
        asyncio.run(save())


def test_a_wrong_token_ends_a_server_with_a_code_of_its_own(job: Job) -> None:
    process = job.start("ps-0", token="wrong")
    _, log = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.FENCED and "token is missing or wrong" in log


def test_a_checkpoint_that_is_damaged_is_named_in_the_log(job: Job) -> None:
    directory = job.directory / "version-3"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    job.master.restore_from = str(directory)
    process = job.start("ps-0")
    _, log = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.JOB_FAILED and str(directory / "manifest.json") in log
