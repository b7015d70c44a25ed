"""Supervisor and master as real processes, workers and servers too: these do no training, but all
of the talking.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import ExitCode, Refused
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.rpc.master_client import MasterClient
from tests import churn
from tests.supervised import job_processes
from tests.waiting import gone, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
LIMIT_S = 150.0
"""Against a hang: on a busy machine, a master takes ten seconds to start."""

ROOT = Path(__file__).parent.parent.parent

MASTER = """
import sys
from elasticdl.cluster.base import Role
from elasticdl.master import main, preflight
from elasticdl.master.executor import process_env
process_env.COMMANDS = {
    Role.WORKER: (sys.executable, sys.argv[1]),
    Role.PS: (sys.executable, sys.argv[2]),
}
preflight.COMMAND = (sys.executable, sys.argv[3])
code = main.main()
foreign = {"tensorflow", "keras", "kubernetes", "numpy"} & set(sys.modules)
foreign |= {"cryptography", "prometheus_client"} & set(sys.modules)
print("imported for nothing:", sorted(foreign))
sys.exit(code)
"""

WORKER = """
import os, signal, sys, threading
from pathlib import Path
from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.errors import Refused
from elasticdl.rpc.conversation import Finished, Progress, Report, Summary, Wait
from elasticdl.rpc.master_client import MasterClient
from elasticdl.shard import Applied, Task

die_with_parent()
drain = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: drain.set())
name, directory = os.environ["ELASTICDL_PROCESS"], Path(os.environ["ELASTICDL_JOB_DIR"])
master, token = os.environ["ELASTICDL_MASTER"], os.environ["ELASTICDL_TOKEN"]
# Nobody leaves by itself: tests look for who is left, and a master may take long to start.
client = MasterClient(master, token, name, away_s=600)

def held_from():
    try:
        return int((directory / "hold").read_text() or 0)
    except FileNotFoundError:
        return sys.maxsize

try:
    attached = client.attach()
    stop = threading.Event()
    def beat():
        while not stop.wait(0.5):
            client.report(Report())
    threading.Thread(target=beat, daemon=True).start()
    while not drain.is_set():
        lease = client.request_lease(1.0)
        if isinstance(lease, Finished):
            sys.exit(0)
        if isinstance(lease, Wait):
            continue
        if lease.task is Task.SUMMARY:
            client.report(Report(summaries=(Summary(lease.round, {"accuracy": 0.5}),)))
            continue
        offset, size = lease.offset, lease.shard.records
        while offset < size and not drain.is_set():
            if offset and lease.epoch >= held_from():
                drain.wait(0.05)
                continue
            offset = min(size, offset + attached.spec.data.minibatch_size)
            done = offset == size
            applied = Applied(lease.shard.id, lease.attempt, offset)
            part = Progress(lease.task, applied, version=offset, loss=0.5, done=done)
            client.report(Report(progress=(part,), gauges={"step_ms": 1.0}))
        if offset < size:
            applied = Applied(lease.shard.id, lease.attempt, offset)
            client.report(Report(progress=(Progress(lease.task, applied, returned=True),)))
    sys.exit(66)
except Refused:
    os._exit(65)
"""

PS = """
import json, os, signal, sys, threading
from concurrent import futures
from pathlib import Path
import grpc
from elasticdl.checkpoint import directories
from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import SyncChecks, server_options
from elasticdl.rpc.conversation import Report
from elasticdl.rpc import elasticdl_pb2_grpc as services
from elasticdl.rpc.master_client import MasterClient

die_with_parent()
name = ProcessName.parse(os.environ["ELASTICDL_PROCESS"])
token = os.environ["ELASTICDL_TOKEN"]
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
version = 0
SPEC = ParametersSpec(optimizer=OptimizerSpec(kind=OptimizerKind.SGD))

class Service(services.ParameterServerServicer):
    def Fence(self, request, context): return pb.FenceReply()
    def Gate(self, request, context): return pb.GateReply()
    def Cut(self, request, context): return pb.CutReply(version=version)
    def Ungate(self, request, context): return pb.Done()
    def Drop(self, request, context): return pb.Done()
    def Save(self, request, context):
        path = Path(request.directory) / f"server-{name.index}-of-{servers}.bin"
        path.write_bytes(b"weights" * 100)
        file = pb.SavedFile(name=path.name, bytes=700, checksum=directories.checksum(path))
        parameters = SPEC.model_dump_json()
        return pb.SaveReply(files=[file], version=version, rows=3, parameters=parameters)

guard = TermGuard(token)
checks = SyncChecks(guard.proof, guard.check)
threads = futures.ThreadPoolExecutor(4)
server = grpc.server(threads, interceptors=[checks], options=server_options())
services.add_ParameterServerServicer_to_server(Service(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
client = MasterClient(os.environ["ELASTICDL_MASTER"], token, str(name), away_s=600)
attached = client.attach()
servers = attached.spec.cluster.num_ps_pods
if attached.restore_from:
    version = directories.verify(Path(attached.restore_from)).version
client.attach(f"127.0.0.1:{port}", "127.0.0.1:1", version or None)
Path(os.environ["ELASTICDL_JOB_DIR"], f"restored-{name}").write_text(attached.restore_from)
while not ended.wait(0.1):
    version += 1
    client.report(Report(version=version))
server.stop(None)
"""


CHECK = """
import os, sys, time
spec = sys.stdin.read()
with open(os.path.join(os.environ["ELASTICDL_JOB_DIR"], "checking"), "w") as file:
    file.write(str(os.getpid()))
if "slow" in spec:
    time.sleep(600)
print('{"ok": true, "training": [{"name": "a.csv", "records": 40}]}')
"""


class Running:
    """A supervisor and its master, in processes of their own."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self.directory = directory
        self.clients: list[MasterClient] = []

    def finish(self, timeout_s: float = LIMIT_S) -> int:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.tails()) from None
        return self.process.returncode

    def where(self, after: int = 0) -> dict[str, Any]:
        """Where the master listens; one of a higher term than `after`."""
        supervisor = self.process.pid

        def listens() -> bool:
            told, master = self._told("supervisor.json"), self._told("master.json")
            return (
                told.get("pid") == supervisor
                and master.get("term", 0) > after
                and not gone(master["pid"])
            )

        self.wait_until("the master listens", listens)
        return self._told("master.json")

    def _told(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.directory / name).read_text()))
        except FileNotFoundError:
            return {}

    def client(self, token: str = "") -> MasterClient:
        where = self.where()
        token = token or where["token"]
        self.clients.append(MasterClient(where["address"], token, "cli", away_s=10))
        return self.clients[-1]

    def wait_until(
        self, what: str, condition: Callable[[], bool], timeout_s: float = LIMIT_S
    ) -> None:
        def over() -> bool:
            return self.process.poll() is not None

        until(what, condition, timeout_s, context=self.tails, over=over)

    def wait_for_status(
        self, what: str, condition: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        client = self.client()
        last: dict[str, Any] = {}

        def holds() -> bool:
            last.clear()
            last.update(client.status().to_json())
            return condition(last)

        self.wait_until(what, holds)
        return last

    def pids(self, role: str) -> dict[str, int]:
        """Live processes of the job by name."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                entries = dict(
                    entry.split("=", 1) for entry in path.read_text().split("\0") if "=" in entry
                )
            except OSError:
                continue
            name = entries.get("ELASTICDL_PROCESS", "")
            if (
                name
                and name.startswith(role)
                and entries.get("ELASTICDL_JOB_DIR") == str(self.directory)
            ):
                found[name] = int(path.parent.name)
        return found

    def wait_for_nobody(self, timeout_s: float = LIMIT_S) -> None:
        until("no process is left", lambda: not job_processes(self.directory), timeout_s)

    def masters(self) -> list[int]:
        """Live masters, whether they listen or not."""
        command = f"{sys.executable}\0-c\0{MASTER}"
        processes = job_processes(self.directory).items()
        return [pid for pid, shown in processes if shown.startswith(command)]

    def kill_master(self) -> dict[str, Any]:
        """SIGKILL to the master that listens; where it listened."""
        where = self.where()
        os.kill(where["pid"], signal.SIGKILL)
        return where

    def kill_one(self, role: str, choose: random.Random) -> bool:
        """SIGKILL to one live process of a role; False if there is none."""
        pids = sorted(self.pids(role).values())
        with suppress(ProcessLookupError):
            if pids:
                os.kill(choose.choice(pids), signal.SIGKILL)
                return True
        return False

    def hold(self, epoch: int = 0) -> Path:
        """Workers hold between the steps of a shard of this epoch or a later one."""
        path = self.directory / "hold"
        path.write_text(str(epoch))
        return path

    def json(self, name: str) -> dict[str, Any]:
        found = json.loads((self.directory / name).read_text())
        assert isinstance(found, dict)
        return found

    def tails(self) -> str:
        logs = [self.directory / "master.log", *sorted((self.directory / "logs").glob("*"))]
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs if log.exists()
        )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []
    directory = tmp_path / "job"

    def run(preflight: bool = True, **flags: object) -> Running:
        directory.mkdir(exist_ok=True)
        for name, text in {"worker.py": WORKER, "ps.py": PS, "check.py": CHECK}.items():
            (tmp_path / name).write_text(text)
        given = {
            "model_zoo": "z",
            "model_def": "m",
            "training_data": "t",
            "num_ps_pods": 1,
            "minibatch_size": 10,
            **flags,
        }
        (directory / "job.json").write_text(
            JobSpec.from_flags(Action.TRAIN, given).model_dump_json()
        )
        sources = [{"name": "a.csv", "records": 400, "fingerprint": "f"}]
        if preflight:
            (directory / "preflight.json").write_text(json.dumps({"ok": True, "training": sources}))
        # As the command that claims the directory.
        (directory / "status.json").unlink(missing_ok=True)
        (directory / "supervisor.json").unlink(missing_ok=True)
        ours = {
            "ELASTICDL_JOB_DIR": str(directory),
            "ELASTICDL_PARENT_PID": str(os.getpid()),
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **ours}
        with (directory / "master.log").open("a") as log:
            command = [
                sys.executable,
                "-m",
                "elasticdl.cluster.local.supervisor",
                "",
                sys.executable,
                "-c",
                MASTER,
                *(str(tmp_path / f"{name}.py") for name in ("worker", "ps", "check")),
            ]
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True
            )
        started.append(Running(process, directory))
        return started[-1]

    yield run
    for job in started:
        for client in job.clients:
            client.close()
        job.process.kill()
        job.process.wait(20)
    for job in started:
        job.wait_for_nobody()


def test_a_job_runs_to_its_end_and_leaves_its_receipt(start: Callable[..., Running]) -> None:
    job = start(num_workers="2", num_epochs=3)
    where = job.where()
    assert where["term"] == 1 and len(where["token"]) == 43
    assert stat.S_IMODE((job.directory / "master.json").stat().st_mode) == 0o600
    assert job.finish() == ExitCode.DONE, job.tails()
    assert job.json("receipt.json")["total"] == {
        "expected": 1200,
        "trained": 1200,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 0,
    }
    assert job.json("status.json")["exit_code"] == 0
    assert "imported for nothing: []\n" in (job.directory / "logs/master-0.log").read_text()
    assert not (job.directory / "master.json").exists()
    assert [json.loads(line) for line in (job.directory / "events.jsonl").read_text().splitlines()]


def test_whoever_is_killed_no_record_is_lost(start: Callable[..., Running]) -> None:
    flags = {"num_workers": "1:3", "num_ps_pods": 2, "max_relaunches": 100}
    job = start(num_epochs=25, records_per_task=100, **flags)
    job.hold(4)
    job.wait_for_status("work has begun", lambda status: status["records"]["trained"] > 0)
    choose = random.Random(1)
    for kill, role in enumerate(("worker", "ps", "worker", "worker", "ps", "worker"), 1):
        time.sleep(choose.uniform(0.1, 0.4))
        job.wait_until(f"a {role} is killed", partial(job.kill_one, role, choose))
        # However fast they train, four epochs are left for the next kill.
        job.hold(4 + 4 * kill)
    assert job.finish() == ExitCode.DONE, job.tails()
    total = job.json("receipt.json")["total"]
    assert (total["trained"], total["lost"], total["repeated"]) == (10_000, 0, 0)


def test_a_stopped_job_drains_saves_and_continues_where_it_was_if_its_next_master_is_killed_too(
    start: Callable[..., Running],
) -> None:
    job = start(num_workers="2", num_epochs=2, checkpoint_steps=1000)
    job.hold()
    job.wait_for_status(
        "work has begun",
        lambda status: status["records"]["trained"] >= 20 and status["version"] > 0,
    )
    job.process.send_signal(signal.SIGTERM)
    code = job.finish()
    before = job.json("receipt.json")["total"]
    assert code == job.json("status.json")["exit_code"] != 0, job.tails()
    assert 0 < before["trained"] < 800
    [checkpoint] = (job.directory / "checkpoints").iterdir()

    (job.directory / "hold").unlink()
    again = start(num_workers="1", num_epochs=2, checkpoint_steps=1000, resume=True)
    # It has not begun a run of its own in the journal, whose last run was stopped.
    again.wait_until("the master is there", lambda: bool(again.masters()))
    for pid in again.masters():
        os.kill(pid, signal.SIGKILL)
    assert again.finish() == ExitCode.DONE, again.tails()
    after = again.json("receipt.json")["total"]
    assert (after["trained"], after["lost"], after["repeated"]) == (800, 0, 0)
    assert (again.directory / "restored-ps-0").read_text() == str(checkpoint)
    assert (job.directory / "logs/master-0.log").read_text().count("=== master-0.1 started") == 1


def test_a_second_signal_ends_the_job_at_once(start: Callable[..., Running]) -> None:
    job = start(num_workers="1")
    job.hold()
    job.wait_for_status("work has begun", lambda status: status["records"]["trained"] >= 10)
    workers = job.pids("worker")
    for pid in workers.values():
        os.kill(pid, signal.SIGSTOP)
    job.process.send_signal(signal.SIGINT)
    job.wait_for_status("the stop is known", lambda status: status["phase"] == "draining")
    job.process.send_signal(signal.SIGINT)
    # A stop alone waits 30 s for the worker.
    assert job.finish(25.0) == ExitCode.INTERRUPTED
    assert not job.pids("")
    status = job.json("status.json")
    assert status["exit_code"] == ExitCode.INTERRUPTED
    assert status["message"].endswith(", and ended at once")
    assert (job.directory / "receipt.json").exists()


def test_a_job_keeps_its_processes_and_its_run_in_the_tracker_when_its_master_is_killed(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    store = tmp_path / "curves"
    job = start(
        num_workers="2",
        num_epochs=2,
        checkpoint_steps=1000,
        tracker=f"mlflow:file:{store}",
        envs="MLFLOW_ALLOW_FILE_STORE=true",
    )
    hold = job.hold()
    job.wait_for_status(
        "work has begun",
        lambda status: status["records"]["trained"] >= 20 and status["version"] > 0,
    )
    job.wait_until("the tracker has a row", lambda: bool(job._told("tracker.json").get("rows")))
    job.client().checkpoint()
    job.wait_for_status("a checkpoint is there", lambda status: len(status["checkpoints"]) == 1)
    pids = job.pids("")
    before = job.kill_master()

    def opened() -> int:
        return (job.directory / "events.jsonl").read_text().count("tracking this job")

    after = job.where(after=before["term"])
    assert after == {**before, "pid": after["pid"], "term": 2}, "address, page and token stay"
    job.wait_for_status(
        "the records are known to the next master",
        lambda status: status["records"]["trained"] >= 20,
    )
    assert {**pids, **job.pids("")} == pids
    # At the end of the job its process may have no time left to begin.
    job.wait_until("the next tracker process has the run", lambda: opened() == 2)
    hold.unlink()
    assert job.finish() == ExitCode.DONE, job.tails()
    assert all(map(gone, pids.values()))
    total = job.json("receipt.json")["total"]
    assert (total["trained"], total["lost"], total["repeated"]) == (800, 0, 0)
    assert (job.directory / "restored-ps-0").read_text() == ""
    events = (job.directory / "events.jsonl").read_text()
    assert "killed by signal 9 (SIGKILL)" in events
    assert "another master continues the job" in events and "3 processes kept running" in events
    # The first one was killed before it could say so.
    assert "imported for nothing: []\n" in (job.directory / "logs/master-0.log").read_text()
    (run,) = (path.parent for path in store.glob("*/*/meta.yaml"))
    assert "status: 3" in (run / "meta.yaml").read_text(), "FINISHED"
    rows = map(json.loads, (job.directory / "metrics.jsonl").read_text().splitlines())
    points = (run / "metrics/train/loss").read_text().splitlines()
    assert {int(point.split()[2]) for point in points} == {row["version"] for row in rows}
    assert (run / "metrics/receipt/trained").read_text().split()[1] == "800.0"


def without_journal(job: Running) -> dict[str, Any]:
    """Kill the master, and let the next one know that its journal lacks events."""
    (job.directory / "journal/run-0001.gap").touch()
    return job.kill_master()


def test_a_job_whose_journal_has_a_gap_continues_from_its_newest_checkpoint(
    start: Callable[..., Running],
) -> None:
    job = start(num_workers="2", num_epochs=2, checkpoint_steps=1000)
    hold = job.hold()
    job.wait_for_status(
        "work has begun",
        lambda status: status["records"]["trained"] >= 20 and status["version"] > 0,
    )
    job.client().checkpoint()
    job.wait_for_status("a checkpoint is there", lambda status: len(status["checkpoints"]) == 1)
    [checkpoint] = (job.directory / "checkpoints").iterdir()
    pids = job.pids("")
    before = without_journal(job)
    after = job.where(after=before["term"])
    assert (after["address"], after["page"]) == (before["address"], before["page"])
    for token in (before["token"], "guessed"):
        with pytest.raises(Refused, match="token"):
            job.client(token).status()
    hold.unlink()
    assert job.finish() == ExitCode.DONE, job.tails()
    assert all(map(gone, pids.values()))
    total = job.json("receipt.json")["total"]
    assert (total["trained"], total["lost"]) == (800, 0) and total["repeated"] < 800
    assert (job.directory / "restored-ps-0").read_text() == str(checkpoint)
    events = (job.directory / "events.jsonl").read_text()
    assert "killed by signal 9 (SIGKILL)" in events
    assert "the master restarted: the job resumes from its newest checkpoint" in events


def test_a_job_without_journal_and_checkpoint_starts_over(start: Callable[..., Running]) -> None:
    job = start(num_workers="2", num_epochs=2)
    hold = job.hold()
    job.wait_for_status("work has begun", lambda status: status["records"]["trained"] >= 10)
    job.client().scale(1, 1)
    job.wait_until("the range is kept", (job.directory / "scale.json").exists)
    without_journal(job)
    hold.unlink()
    assert job.finish() == ExitCode.DONE, job.tails()
    total = job.json("receipt.json")["total"]
    assert (total["trained"], total["lost"]) == (800, 0) and total["repeated"] >= 10
    events = (job.directory / "events.jsonl").read_text()
    assert "starts over: it has no checkpoint" in events
    assert "the job was scaled: it continues with 1 workers" in events


@pytest.mark.parametrize("gap", [False, True])
def test_a_job_that_was_stopped_is_not_resumed_when_its_master_is_killed_meanwhile(
    start: Callable[..., Running], gap: bool
) -> None:
    job = start(num_workers="1")
    job.hold()
    job.wait_for_status("work has begun", lambda status: status["records"]["trained"] >= 10)
    for pid in job.pids("worker").values():
        os.kill(pid, signal.SIGSTOP)  # The stop waits for it.
    job.client().stop("enough")
    job.wait_for_status("the stop is known", lambda status: status["phase"] == "draining")
    _ = without_journal(job) if gap else job.kill_master()
    assert job.finish() == ExitCode.INTERRUPTED, job.tails()
    assert job.json("status.json")["message"] == "stopped: enough"


def test_a_master_killed_in_the_check_has_a_successor_that_checks_again_and_ends_it_when_stopped(
    start: Callable[..., Running],
) -> None:
    """The next master has the page at the port of the user's choice, too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job = start(preflight=False, model_def="slow", status_port=port)
    checking = job.directory / "checking"
    job.wait_until("the check has begun", lambda: checking.exists() and checking.read_text() != "")
    pid = int(checking.read_text())
    before = job.kill_master()
    job.wait_until("the check is gone", lambda: gone(pid))
    job.wait_until("another check has begun", lambda: int(checking.read_text() or pid) != pid)
    after = job.where(after=before["term"])
    assert after["page"] == before["page"] == f"http://127.0.0.1:{port}/"
    with socket.create_connection(("127.0.0.1", port), 20):
        pass
    pid = int(checking.read_text())
    job.process.send_signal(signal.SIGTERM)
    assert job.finish() == ExitCode.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert job.json("status.json")["message"] == "stopped: the master received SIGTERM"
    assert [path.name for path in (job.directory / "logs").iterdir()] == ["master-0.log"]
    assert not (job.directory / "receipt.json").exists()


def test_clients_of_a_job_with_tls_trust_its_next_master(start: Callable[..., Running]) -> None:
    job = start(preflight=False, model_def="slow", tls="on")
    before = job.kill_master()
    after = job.where(after=before["term"])
    assert before["authority"] and after["authority"] == before["authority"]
    client = MasterClient(
        before["address"], before["token"], "cli", away_s=20, authority=before["authority"]
    )
    job.clients.append(client)
    assert client.status().phase == "starting"
    for entry in (job.directory, Path(f"/proc/{job.process.pid}"), Path(f"/proc/{after['pid']}")):
        files = entry.rglob("*") if entry == job.directory else [entry / "environ"]
        for file in files:
            assert not file.is_file() or b"PRIVATE KEY" not in file.read_bytes(), file


def test_a_master_that_is_killed_over_and_over_without_progress_ends_the_job(
    start: Callable[..., Running],
) -> None:
    job = start(preflight=False, model_def="slow")
    term = 0
    for _ in range(6):
        where = job.where(after=term)
        term = where["term"]
        os.kill(where["pid"], signal.SIGKILL)
    assert job.finish() == ExitCode.JOB_FAILED
    assert term == 6
    assert "as 5 masters before it did" in job.json("supervisor.json")["message"]


@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_whenever_masters_are_killed_the_job_is_done(
    start: Callable[..., Running], seed: int
) -> None:
    choose = random.Random(seed)
    epochs = choose.choice([20, 100])
    job = start(preflight=False, num_workers="2", num_epochs=epochs, records_per_task=20)
    hold = job.hold()
    kills = 0
    while job.process.poll() is None and kills < 3:
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(choose.uniform(0.0, 2.0))
        for pid in job.masters():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        if kills:
            hold.unlink(missing_ok=True)
    assert kills, "it was killed before its end"
    assert job.finish() == ExitCode.DONE, job.tails()
    total = job.json("receipt.json")["total"]
    assert (total["trained"], total["lost"]) == (total["expected"], 0)
    job.wait_for_nobody(0)
    assert not (job.directory / "supervisor.json").exists()


@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_whenever_the_supervisor_is_killed_nobody_is_left_and_the_job_can_be_resumed(
    start: Callable[..., Running], seed: int
) -> None:
    choose = random.Random(seed)
    flags = {"num_workers": "2", "num_epochs": 20, "records_per_task": 20}
    job = start(preflight=False, **flags)
    hold = job.hold()
    time.sleep(choose.uniform(0.0, 4.0))
    assert job.process.poll() is None, "it was killed before its end"
    job.process.kill()
    job.process.wait(20)
    job.wait_for_nobody()
    hold.unlink()
    again = start(preflight=False, **flags, resume=True)
    assert again.finish() == ExitCode.DONE, again.tails()


def test_no_process_outlives_a_killed_supervisor_and_a_resume_counts_what_was_trained_before(
    start: Callable[..., Running],
) -> None:
    job = start(num_workers="2", num_epochs=2, num_ps_pods=2)
    hold = job.hold()
    job.wait_for_status("work has begun", lambda status: status["records"]["trained"] >= 10)
    job.wait_until("all are there", lambda: len(job.pids("")) == 4)
    job.process.kill()
    job.process.wait(20)
    job.wait_for_nobody()
    again = start(num_workers="1", num_epochs=2, num_ps_pods=1, resume=True)
    assert again.where()["term"] == 2, "the file of the dead master tells the term to go on from"
    hold.unlink()
    assert again.finish() == ExitCode.DONE, again.tails()
    events = (again.directory / "events.jsonl").read_text()
    assert "no checkpoint yet: starting from the first record" in events
    total = again.json("receipt.json")["total"]
    assert (total["trained"], total["lost"]) == (800, 0) and 10 <= total["repeated"] < 800


def test_a_master_checks_the_model_itself_and_a_page_whose_port_is_taken_costs_a_warning_only(
    start: Callable[..., Running],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        job = start(preflight=False, num_workers="1", status_port=server.getsockname()[1])
        assert job.where()["page"] == ""
        assert job.finish() == ExitCode.DONE, job.tails()
    assert "cannot serve the status page" in (job.directory / "events.jsonl").read_text()
    assert job.json("receipt.json")["total"]["trained"] == 40
    assert job.json("preflight.json")["training"] == [{"name": "a.csv", "records": 40}]


def test_a_job_that_is_none_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "job.json").write_text("{}")
    environment = {**os.environ, "ELASTICDL_JOB_DIR": str(directory)}
    supervisor = [sys.executable, "-m", "elasticdl.cluster.local.supervisor", ""]
    ended = subprocess.run(
        [*supervisor, sys.executable, "-m", "elasticdl.master.main"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == ExitCode.JOB_FAILED
    outcome = json.loads((directory / "status.json").read_text())
    assert "cannot read the job" in outcome["message"]
    assert "cannot read the job" in (directory / "logs/master-0.log").read_text()
    assert not (directory / "supervisor.json").exists()


def test_a_master_without_a_supervisor_says_so(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "elasticdl.master.main"],
        cwd=ROOT,
        env={**os.environ, "ELASTICDL_JOB_DIR": str(tmp_path), "ELASTICDL_RESTART": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == ExitCode.JOB_FAILED
    assert "this master has no supervisor" in ended.stderr and "elasticdl train" in ended.stderr
