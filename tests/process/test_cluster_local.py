"""The local cluster's own promises: nothing survives us, output is kept, threads are shared
fairly.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.machine import usable_cores
from elasticdl.cluster.logs.log_files import open_log
from tests.open_files import open_files
from tests.waiting import gone, process_state, until, until_async

pytestmark = pytest.mark.process
LIMIT_S = 20.0
W0 = ProcessName(Role.WORKER, 0)

# A process with a child of its own; both write their ids.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(f"pids {os.getpid()} {child.pid}", flush=True)
time.sleep(600)
"""


def pids_in(log: Path) -> list[int]:
    if not log.exists():
        return []
    lines = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("pids ")]
    return [int(pid) for line in lines for pid in line]


async def ended(cluster: LocalCluster, name: ProcessName) -> ExitStatus:
    async with asyncio.timeout(LIMIT_S), aclosing(cluster.observe()) as events:
        async for event in events:
            if isinstance(event, ProcessExited) and event.name == name:
                return event.exit_status
    raise AssertionError("closed before")


async def run_to_end(cluster: LocalCluster, spec: ProcessSpec) -> ExitStatus:
    await cluster.create(spec)
    return await ended(cluster, spec.name)


OWNER = """
import asyncio, sys
from pathlib import Path
from elasticdl.cluster.base import *
from elasticdl.cluster.local.cluster import LocalCluster

async def main():
    cluster = LocalCluster(Path(sys.argv[1]), cores=2)
    for index in range(2):
        command = (sys.executable, "-c", sys.argv[2])
        await cluster.create(ProcessSpec(ProcessName(Role.WORKER, index), command))
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_orphan_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    logs = [tmp_path / "worker-0.log", tmp_path / "worker-1.log"]
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), FAMILY]) as owner:
        try:
            until("all four processes run", lambda: all(len(pids_in(log)) == 2 for log in logs))
        finally:
            owner.kill()
    pids = [pid for log in logs for pid in pids_in(log)]
    until(f"{pids} are gone, children of children too", lambda: all(map(gone, pids)))


# A process with a temporary file; it writes where that is.
UNTIDY = """
import tempfile, time
with tempfile.NamedTemporaryFile(delete=False) as file:
    print(file.name, flush=True)
time.sleep(600)
"""


def temporary_file(log: Path) -> Path:
    """Wait for the one that a process has made."""

    def written() -> list[str]:
        return [line for line in log.read_text().splitlines() if line.startswith("/")]

    until("the process has written a file", lambda: log.exists() and written())
    return Path(written()[0])


def test_no_temporary_file_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), UNTIDY]) as owner:
        try:
            files = [temporary_file(tmp_path / f"worker-{index}.log") for index in range(2)]
            assert all(file.exists() for file in files)
        finally:
            owner.kill()
    assert files[0].parent == files[1].parent
    until("the directory is gone", lambda: not files[0].parent.exists())


def test_temporary_files_are_deleted_when_the_cluster_closes_though_the_guard_was_killed(
    tmp_path: Path,
) -> None:
    async def scenario() -> Path:
        cluster = LocalCluster(tmp_path, cores=1)
        await cluster.create(ProcessSpec(W0, (sys.executable, "-c", UNTIDY)))
        file = await asyncio.to_thread(temporary_file, tmp_path / "worker-0.log")
        guard = cluster._guard._process
        assert guard is not None
        guard.kill()
        guard.wait()
        await cluster.close(0.0)
        return file

    file = asyncio.run(scenario())
    assert not file.parent.exists() and file.parent.parent.exists()


def test_a_process_starts_where_no_temporary_directory_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.delenv("TMPDIR", raising=False)

    async def scenario() -> ExitStatus:
        cluster = LocalCluster(tmp_path, cores=1)
        program = "import os; print(os.environ.get('TMPDIR'))"
        status = await run_to_end(cluster, ProcessSpec(W0, (sys.executable, "-c", program)))
        await cluster.close()
        return status

    assert asyncio.run(scenario()).log_tail == "None"


def test_each_worker_sees_the_gpu_that_the_fewest_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command = ("sh", "-c", "echo gpu=$CUDA_VISIBLE_DEVICES; exec sleep 600")
    names = [ProcessName(Role.WORKER, index) for index in range(4)]

    def seen(name: ProcessName) -> str:
        log = tmp_path / f"{name}.log"
        until(f"{name} has started", lambda: log.exists() and "gpu=" in log.read_text())
        return log.read_text().rpartition("gpu=")[2].strip()

    async def scenario() -> list[str]:
        cluster = LocalCluster(tmp_path, cores=1, gpus=("0", "GPU-7"))
        await cluster.create(ProcessSpec(ProcessName(Role.PS, 0), command))
        for name in names[:3]:
            await cluster.create(ProcessSpec(name, command))
        assert [await asyncio.to_thread(seen, name) for name in names[:3]] == ["0", "GPU-7", "0"]
        await cluster.delete(names[1], grace_s=0.0)
        await ended(cluster, names[1])
        await cluster.create(ProcessSpec(names[3], command))
        last = [await asyncio.to_thread(seen, one) for one in (names[3], ProcessName(Role.PS, 0))]
        await cluster.close(0.0)
        return last

    assert asyncio.run(scenario()) == ["GPU-7", ""]


def test_no_orphan_is_left_when_the_guard_was_killed_before(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        cluster = LocalCluster(tmp_path, cores=1)
        await cluster.create(ProcessSpec(W0, ("sleep", "600")))
        guard = cluster._guard._process  # the test plays somebody who kills it
        assert guard is not None
        guard.kill()
        guard.wait()
        await cluster.create(ProcessSpec(ProcessName(Role.WORKER, 1), ("sleep", "600")))
        again = cluster._guard._process
        assert again is not None and again.pid != guard.pid
        pids = [child.process.pid for child in cluster._children.values()]
        cluster._guard.close()  # as if we ended: both groups must be known to the new guard
        await until_async("both groups are gone", lambda: all(map(gone, pids)))
        await cluster.close()
        return pids

    assert len(asyncio.run(scenario())) == 2


def test_children_of_a_stopped_process_end_with_its_group(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        cluster = LocalCluster(tmp_path, cores=1)
        await cluster.create(ProcessSpec(W0, (sys.executable, "-c", FAMILY)))
        log = tmp_path / "worker-0.log"
        await until_async("both processes run", lambda: len(pids_in(log)) == 2)
        await cluster.delete(W0, grace_s=LIMIT_S)
        assert (await ended(cluster, W0)).signal == signal.SIGTERM
        await cluster.close()
        return pids_in(log)

    pids = asyncio.run(scenario())
    until("the grandchild ended too", lambda: all(map(gone, pids)))


def test_a_stopped_process_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def scenario() -> ExitStatus:
        cluster = LocalCluster(tmp_path, cores=1)
        await cluster.create(ProcessSpec(W0, ("sleep", "600")))
        pid = cluster._children[W0].process.pid
        os.kill(pid, signal.SIGSTOP)
        await until_async("it is stopped", lambda: process_state(pid) == "T")
        await cluster.delete(W0, grace_s=0.1)
        status = await ended(cluster, W0)
        await cluster.close()
        return status

    assert asyncio.run(scenario()) == ExitStatus(signal=signal.SIGKILL, asked=True)


def kept() -> set[str]:
    """Servers whose memory this process keeps for the next one."""
    found = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    names = (one.partition("memfd:elasticdl-")[2].split(" ")[0] for one in found)
    return {name for name in names if name}


def test_the_memory_of_a_server_that_ends_for_good_is_freed(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = LocalCluster(tmp_path, cores=1)
        servers = [ProcessName(Role.PS, index) for index in range(3)]
        for name in servers:
            await cluster.create(ProcessSpec(name, ("sleep", "600")))
        assert kept() == {"ps-0", "ps-1", "ps-2"}
        await cluster.delete(servers[0], grace_s=0)
        await ended(cluster, servers[0])
        await cluster.delete(servers[1], grace_s=0, for_good=True)
        os.kill(cluster._children[servers[2]].process.pid, signal.SIGKILL)
        await ended(cluster, servers[2])
        assert kept() == {"ps-0", "ps-2"}, "one may follow"
        await cluster.delete(servers[2], grace_s=0, for_good=True)
        assert kept() == {"ps-0"}, "also if it had ended"
        await cluster.close()

    asyncio.run(scenario())


def test_what_a_process_printed_is_in_its_log_and_the_end_of_it_in_its_exit_status(
    tmp_path: Path,
) -> None:
    program = (
        "import sys; print('to stdout', flush=True); print('x' * 200_000, file=sys.stderr);"
        " sys.exit('last words')"
    )

    async def scenario() -> ExitStatus:
        cluster = LocalCluster(tmp_path / "logs", cores=1)
        status = await run_to_end(cluster, ProcessSpec(W0, (sys.executable, "-c", program)))
        await cluster.close()
        return status

    status = asyncio.run(scenario())
    log = (tmp_path / "logs/worker-0.log").read_text()
    assert (
        log.startswith("=== worker-0 started ") and "\nto stdout\n" in log and "x" * 200_000 in log
    )
    assert status.exit_code == 1
    assert status.log_tail == "last words"


def test_incarnations_share_a_file_and_each_has_a_header_and_its_own_tail(tmp_path: Path) -> None:
    async def scenario() -> list[ExitStatus]:
        cluster = LocalCluster(tmp_path, cores=1)
        status = [
            await run_to_end(
                cluster,
                ProcessSpec(ProcessName(Role.PS, 1, incarnation), ("echo", f"life {incarnation}")),
            )
            for incarnation in range(2)
        ]
        await cluster.close()
        return status

    status = asyncio.run(scenario())
    lines = (tmp_path / "ps-1.log").read_text().splitlines()
    assert [line.split(" started")[0] for line in lines] == [
        "=== ps-1",
        "life 0",
        "=== ps-1.1",
        "life 1",
    ]
    assert [fact.log_tail for fact in status] == ["life 0", "life 1"]


def test_a_process_gets_its_environment_its_secrets_and_its_share_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    spec = ProcessSpec(
        W0,
        (sys.executable, "-c", program),
        env={"A": "1"},
        secrets={"ELASTICDL_TOKEN": "t"},
        cores=3,
    )

    async def scenario() -> ExitStatus:
        cluster = LocalCluster(tmp_path, cores=4)
        status = await run_to_end(cluster, spec)
        await cluster.close()
        return status

    env = json.loads(asyncio.run(scenario()).log_tail)
    shown = (
        "A",
        "COLOUR",
        "ELASTICDL_TOKEN",
        "ELASTICDL_THREADS",
        "OMP_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_CPP_MIN_LOG_LEVEL",
    )
    assert [env[name] for name in shown] == ["1", "blue", "t", "3", "3", "3", "2"]
    assert env["ELASTICDL_PARENT_PID"] == str(os.getpid())
    assert env["PATH"] == os.environ["PATH"]
    assert (tmp_path / "worker-0.log").stat().st_mode & 0o077 == 0


def test_threads_never_exceed_the_machine_and_an_explicit_setting_wins(tmp_path: Path) -> None:
    program = "import os; print(os.environ['ELASTICDL_THREADS'], os.environ['OMP_NUM_THREADS'])"
    spec = ProcessSpec(W0, (sys.executable, "-c", program), env={"OMP_NUM_THREADS": "7"}, cores=64)

    async def scenario() -> ExitStatus:
        cluster = LocalCluster(tmp_path, cores=2)
        status = await run_to_end(cluster, spec)
        await cluster.close()
        return status

    assert asyncio.run(scenario()).log_tail == "2 7"


def test_a_program_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    async def scenario() -> CreateRefused:
        cluster = LocalCluster(tmp_path, cores=1)
        with pytest.raises(CreateRefused) as refused:
            await cluster.create(ProcessSpec(W0, ("/nowhere/trainer",)))
        await cluster.close()
        return refused.value

    refused = asyncio.run(scenario())
    assert refused.reason == "cannot start worker-0: No such file or directory: /nowhere/trainer"
    assert not refused.retry


def test_usable_cores_are_at_most_those_of_the_affinity() -> None:
    assert 0 < usable_cores() <= len(os.sched_getaffinity(0))


def test_closing_leaves_no_process_and_no_file_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = open_files()
        cluster = LocalCluster(tmp_path, cores=1)
        for index in range(3):
            await cluster.create(ProcessSpec(ProcessName(Role.WORKER, index), ("sleep", "600")))
        await cluster.close()
        assert open_files() <= before

    asyncio.run(scenario())


def test_a_process_that_outlives_sigkill_is_logged_and_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stuck in the kernel. The job that is being closed is over all the same."""

    async def scenario() -> tuple[int, int]:
        before = open_files()
        cluster = LocalCluster(tmp_path, cores=1, reap_limit_s=0.2)
        await cluster.create(ProcessSpec(W0, ("sleep", "600")))
        child = cluster._children[W0]
        # No process can be stuck in the kernel at will: its end is not noticed instead.
        asyncio.get_running_loop().remove_reader(child.pidfd)
        try:
            await cluster.close()
        finally:
            child.process.wait()
        assert open_files() <= before
        return child.process.pid, len(cluster._children)

    pid, left = asyncio.run(scenario())
    assert left == 0
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert f"worker-0 (pid {pid}) has not ended" in record.getMessage()
    assert "its state: Z (zombie)" in record.getMessage()


def test_a_full_disk_keeps_no_process_from_starting_and_is_no_refusal_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed meanwhile must come back: its log may lack lines, the job may not
    lack the server.
    """
    open_log(Path("/dev/full"), W0).close()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "worker-0.log")

    def no_room(*_: object) -> None:
        raise full

    async def story() -> None:
        cluster = LocalCluster(tmp_path / "logs", cores=1)
        monkeypatch.setattr("elasticdl.cluster.local.cluster.open_log", no_room)
        with pytest.raises(
            CreateRefused, match=r"No space left on device: worker-0\.log"
        ) as refused:
            await cluster.create(ProcessSpec(W0, (sys.executable, "-c", "")))
        assert refused.value.retry
        await cluster.close()

    asyncio.run(story())


def test_where_memory_is_short_one_worker_is_started_and_more_are_refused_for_now(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        free = [100 << 20]
        cluster = LocalCluster(tmp_path / "logs", cores=1, free_bytes=lambda: free[0])
        sleep = (sys.executable, "-c", "import time; time.sleep(600)")
        workers = [ProcessSpec(ProcessName(Role.WORKER, index), sleep) for index in range(2)]
        try:
            await cluster.create(workers[0])
            await cluster.create(ProcessSpec(ProcessName(Role.PS, 0), sleep))
            with pytest.raises(CreateRefused, match="100 MiB of free memory") as refused:
                await cluster.create(workers[1])
            assert refused.value.retry
            free[0] = 1 << 30
            await cluster.create(workers[1])
        finally:
            await cluster.close()

    asyncio.run(story())
