"""Workers that are forks of a template: as processes they are like those started anew."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

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
from elasticdl.cluster.local.machine import has_gpu
from elasticdl.cluster.local.orphan_reaper import OrphanReaper
from elasticdl.cluster.local.template import Forked, Template, TemplateLimits
from tests.open_files import open_files
from tests.waiting import gone, process_state, until, until_async

pytestmark = pytest.mark.process
LIMIT_S = 20.0
W0, W1, W2 = (ProcessName(Role.WORKER, index) for index in range(3))


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """A module `counted` that notes who imports it, as a template does; returns the pids."""
    note = tmp_path / "imported"
    (tmp_path / "counted.py").write_text(
        f"import os\nwith open({str(note)!r}, 'a') as note:\n    print(os.getpid(), file=note)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda: [int(line) for line in note.read_text().split()] if note.exists() else []


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `endless` whose import does not end; the file that exists once that has begun."""
    begun = tmp_path / "begun"
    (tmp_path / "endless.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return begun


def python(name: ProcessName, program: str, **environment: str) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", program), environment)


def pid(cluster: LocalCluster, name: ProcessName) -> int:
    return cluster._children[name].process.pid


async def ended(cluster: LocalCluster, name: ProcessName) -> ExitStatus:
    async with asyncio.timeout(LIMIT_S), aclosing(cluster.observe()) as events:
        async for event in events:
            if isinstance(event, ProcessExited) and event.name == name:
                return event.exit_status
    raise AssertionError("closed before")


def run(
    directory: Path,
    imports: tuple[str, ...],
    story: Callable[[LocalCluster], Coroutine[Any, Any, Any]],
) -> Any:
    """Play a story on a cluster. It leaves no process and no open file behind."""

    async def played() -> Any:
        before = open_files()
        cluster = LocalCluster(directory / "logs", cores=2, worker_imports=imports)
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                result = await story(cluster)
        finally:
            await cluster.close()
        assert open_files() <= before
        return result

    # The interpreter has some of its own, such as the tracker of a pool of processes.
    others = children()
    result = asyncio.run(played())
    assert children() <= others
    return result


def children() -> set[int]:
    """Processes of this one, also those that have ended and were not waited for."""
    listed = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in listed for pid in path.read_text().split()}


SHOWN = """
import json, os, sys
status = dict(line.split(":\\t") for line in open("/proc/self/status") if ":\\t" in line)
shown = open("/proc/self/environ", errors="surrogateescape").read().split("\\0")
print(json.dumps({
    "environment": dict(os.environ),
    "shown": sorted({one for one in shown if one.startswith(("ELASTICDL_", "COLOUR"))}),
    "command": open("/proc/self/cmdline").read().rstrip("\\0"),
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
    "files": [(name, os.path.basename(os.readlink(f"/proc/self/fd/{name}")))
              for name in os.listdir("/proc/self/fd") if name in "012"],
    "file count": len(os.listdir("/proc/self/fd")),
    "argv": sys.argv, "path": sys.path, "flags": list(sys.flags), "cwd": os.getcwd(),
    "leads": [os.getpid() == os.getpgid(0) == os.getsid(0), os.getppid()],
    "main": [__name__, sys.modules["__main__"].__dict__ is globals(), "__file__" in globals()],
    "threads": len(os.listdir("/proc/self/task")),
}))
"""


def test_a_fork_has_what_a_fresh_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "blü\udcff")
    monkeypatch.setenv("ELASTICDL_OURS", "x")
    spec = ProcessSpec(
        W0,
        (sys.executable, "-c", SHOWN, "an argument", ""),
        env={"ELASTICDL_A": "1 = \n", "B": "2"},
        secrets={"ELASTICDL_TOKEN": "t"},
    )

    async def shown(cluster: LocalCluster) -> dict[str, Any]:
        await cluster.create(spec)
        return json.loads((await ended(cluster, W0)).log_tail)

    anew = run(tmp_path / "anew", (), shown)
    forked = run(tmp_path / "forked", ("decimal",), shown)
    # The arguments of a template leave less room than this long program takes.
    assert anew.pop("command").startswith(forked.pop("command").rstrip("\0"))
    # Each cluster has a directory of its own.
    assert anew["environment"].pop("TMPDIR") != forked["environment"].pop("TMPDIR")
    assert forked == anew


def test_modules_are_imported_once_for_all_workers(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    async def story(cluster: LocalCluster) -> None:
        program = "import counted, os, time; print(os.getpid(), os.getppid(), flush=True)"
        for name in (W0, W1, W2):
            await cluster.create(python(name, program, ELASTICDL_PROCESS=str(name)))
            assert (await ended(cluster, name)).exit_code == 0
        assert len(imported()) == 1
        (log,) = {(tmp_path / f"logs/{name}.log").read_text().split()[-1] for name in (W0, W1, W2)}
        assert int(log) == os.getpid()

    run(tmp_path, ("counted",), story)
    assert gone(imported()[0])


def test_servers_and_other_programs_are_started_as_ever(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    async def story(cluster: LocalCluster) -> None:
        await cluster.create(python(ProcessName(Role.PS, 0), ""))
        await cluster.create(ProcessSpec(W0, ("true",)))
        assert (await ended(cluster, W0)).exit_code == 0
        assert imported() == []

    run(tmp_path, ("counted",), story)


def test_a_worker_with_other_variables_than_the_template_is_no_fork(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    """Libraries read theirs, such as OMP_NUM_THREADS, when they are imported."""

    async def story(cluster: LocalCluster) -> None:
        await cluster.create(python(W0, ""))
        await cluster.create(
            python(W1, "import counted, os; print(os.environ['LIMIT'])", LIMIT="3")
        )
        assert (await ended(cluster, W1)).log_tail == "3"
        assert len(imported()) == 2

    run(tmp_path, ("counted",), story)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import sys; sys.exit(3)", (3, None)),
        ("import sys; sys.exit('words')", (1, None)),
        ("1 / 0", (1, None)),
        ("import os; os._exit(66)", (66, None)),
        ("import os; os.abort()", (None, signal.SIGABRT)),
        ("import os; os.kill(0, 15)", (None, signal.SIGTERM)),
    ],
)
def test_how_a_fork_ends_is_reported(
    tmp_path: Path, program: str, expected: tuple[int | None, int | None]
) -> None:
    async def story(cluster: LocalCluster) -> ExitStatus:
        await cluster.create(python(W0, program))
        return await ended(cluster, W0)

    status = run(tmp_path, ("decimal",), story)
    assert (status.exit_code, status.signal) == expected


def test_the_log_has_all_output_in_order(tmp_path: Path) -> None:
    program = (
        "import atexit, os, sys; atexit.register(print, 'at exit'); print('one');"
        " print('two', file=sys.stderr); os.system('echo three'); print('four'); sys.exit('five')"
    )

    async def story(cluster: LocalCluster) -> ExitStatus:
        await cluster.create(python(W0, program))
        return await ended(cluster, W0)

    tail = run(tmp_path, ("decimal",), story).log_tail
    assert tail.split("\n") == ["one", "two", "three", "four", "five", "at exit"]
    assert (tmp_path / "logs/worker-0.log").read_text().startswith("=== worker-0 started ")


def test_a_fork_may_start_processes_and_threads(tmp_path: Path) -> None:
    program = (
        "import multiprocessing as m, threading, subprocess, sys\n"
        "with m.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]\n"
        "with m.get_context('spawn').Pool(1) as pool: assert pool.map(abs, [-3]) == [3]\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"
    )

    async def story(cluster: LocalCluster) -> ExitStatus:
        await cluster.create(python(W0, program))
        return await ended(cluster, W0)

    status = run(tmp_path, ("decimal",), story)
    assert status.exit_code == 0, status.log_tail
    assert status.log_tail == "thread\n1"


def test_the_end_of_a_fork_is_waited_for_however_many_files_are_open() -> None:
    """A master of many workers has more descriptors than the 1,024 that `select` accepts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    try:
        with ExitStack() as stack:
            for _ in range(1100):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            child = Forked(os.posix_spawnp("sleep", ["sleep", "100"], os.environ))
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.01)
            os.kill(child.pid, signal.SIGKILL)
            assert child.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_each_fork_draws_other_random_numbers(tmp_path: Path) -> None:
    program = "import random, numpy as np; print(random.random(), np.random.random())"

    async def story(cluster: LocalCluster) -> list[str]:
        drawn = []
        for name in (W0, W1):
            await cluster.create(python(name, program))
            drawn += (await ended(cluster, name)).log_tail.split()
        return drawn

    assert len(set(run(tmp_path, ("numpy",), story))) == 4


def test_workers_outlive_their_template_and_the_next_gets_another(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    async def story(cluster: LocalCluster) -> None:
        sleep = "import time; print('up', flush=True); time.sleep(600)"
        await cluster.create(python(W0, sleep))
        log = tmp_path / "logs/worker-0.log"
        await until_async("it runs", lambda: log.exists() and "up" in log.read_text())
        (template,) = imported()
        os.kill(template, signal.SIGKILL)
        await until_async("the template is dead", lambda: process_state(template) == "Z")
        await cluster.create(python(W1, "import counted"))
        assert (await ended(cluster, W1)).exit_code == 0
        assert len(imported()) == 2
        assert process_state(pid(cluster, W0)) == "S"

    run(tmp_path, ("counted",), story)


OWNER = """
import asyncio, sys
from pathlib import Path
from elasticdl.cluster.base import *
from elasticdl.cluster.local.cluster import LocalCluster

async def main():
    cluster = LocalCluster(Path(sys.argv[1]), cores=2, worker_imports=(sys.argv[3],))
    for index in range(2):
        command = (sys.executable, "-c", sys.argv[2])
        await cluster.create(ProcessSpec(ProcessName(Role.WORKER, index), command))
    await asyncio.sleep(600)

asyncio.run(main())
"""
FAMILY = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(f"pids {os.getpid()} {child.pid}", flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_owner_is_killed(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    logs = [tmp_path / "worker-0.log", tmp_path / "worker-1.log"]

    def pids() -> list[int]:
        texts = [log.read_text() for log in logs if log.exists()]
        lines = [text.splitlines()[-1].split() for text in texts if text]
        return [int(one) for line in lines if line[0] == "pids" for one in line[1:]]

    command = [sys.executable, "-c", OWNER, str(tmp_path), FAMILY, "counted"]
    with subprocess.Popen(command) as owner:
        try:
            until("all four processes run", lambda: len(pids()) == 4)
        finally:
            owner.kill()
    everyone = [*pids(), *imported()]
    assert len(everyone) == 5
    until(f"{everyone} are gone, children of children too", lambda: all(map(gone, everyone)))


def test_nothing_is_left_when_the_owner_is_killed_during_the_import(
    tmp_path: Path, endless: Path
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), "", "endless"]
    with subprocess.Popen(command) as owner:
        try:
            until("the import has begun", endless.exists)
            children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
        finally:
            owner.kill()
    until(f"{children} are gone", lambda: all(gone(int(child)) for child in children))


def test_closing_does_not_wait_for_an_import(tmp_path: Path, endless: Path) -> None:
    async def story(cluster: LocalCluster) -> None:
        starts = [asyncio.ensure_future(cluster.create(python(name, ""))) for name in (W0, W1)]
        await until_async("the import has begun", endless.exists)
        await cluster.close()
        for refused in await asyncio.gather(*starts, return_exceptions=True):
            assert isinstance(refused, CreateRefused) and not refused.retry

    run(tmp_path, ("endless",), story)


def test_a_worker_that_is_stopped_does_not_wait_for_an_import(
    tmp_path: Path, endless: Path
) -> None:
    async def story(cluster: LocalCluster) -> None:
        start = asyncio.ensure_future(cluster.create(python(W0, "import time; time.sleep(600)")))
        await until_async("the import has begun", endless.exists)
        await cluster.delete(W0, grace_s=1)
        await start
        await cluster.delete(W0, grace_s=0)
        assert (await ended(cluster, W0)).asked

    run(tmp_path, ("endless",), story)


def test_where_the_import_fails_workers_start_as_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: LocalCluster) -> None:
        for name in (W0, W1):
            await cluster.create(python(name, "print('works')"))
            assert (await ended(cluster, name)).log_tail == "works"

    run(tmp_path, ("no_such_module",), story)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "no_such_module" in record.getMessage()


def test_modules_that_start_threads_are_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def story(cluster: LocalCluster) -> None:
        await cluster.create(python(W0, "import sys; print('busy' in sys.modules)"))
        assert (await ended(cluster, W0)).log_tail == "False"

    run(tmp_path, ("busy",), story)
    assert len(caplog.records) == 1


def test_a_process_beside_the_workers_is_a_fork_of_the_same_template_with_its_own_streams(
    tmp_path: Path, imported: Callable[[], list[int]]
) -> None:
    async def story(cluster: LocalCluster) -> None:
        ours, theirs = socket.socketpair()
        program = (
            "import sys, time; print(sys.stdin.readline() + str('counted' in sys.modules),"
            " flush=True); time.sleep(600)"
        )
        with ours, theirs, (tmp_path / "errors").open("wb") as errors:
            ours.sendall(b"asked\n")
            standard = (theirs.fileno(), theirs.fileno(), errors.fileno())
            async with cluster.beside(python(W0, program), standard) as process:
                assert isinstance(process, Forked)
                answer = await asyncio.to_thread(ours.makefile().read, len("asked\nTrue"))
                assert answer == "asked\nTrue"
            assert gone(process.pid)
        await cluster.create(python(W0, "pass"))
        assert (await ended(cluster, W0)).exit_code == 0
        assert len(imported()) == 1

    run(tmp_path, ("counted",), story)


def test_a_template_that_does_not_answer_is_replaced_later(tmp_path: Path) -> None:
    async def story() -> None:
        guard = OrphanReaper()
        template = Template(("decimal",), guard, TemplateLimits(fork_s=0.2, retry_s=0.5))
        with (tmp_path / "log").open("wb") as log:

            async def fork() -> Forked | None:
                command = (sys.executable, "-c", "raise SystemExit(7)")
                standard = (log.fileno(),) * 3
                return await template.fork(command, dict(os.environ), standard)

            first = await fork()
            assert first is not None and first.wait() == 7
            assert template._running is not None
            stopped = template._running.process.pid
            os.kill(stopped, signal.SIGSTOP)
            assert await fork() is None
            assert gone(stopped)
            assert await fork() is None, "not yet"
            again = await until_async("there is another", fork, every_s=0.1)
            assert again.wait() == 7
        await template.close()
        guard.close()

    asyncio.run(story())


def test_sixty_four_workers_at_once(tmp_path: Path, imported: Callable[[], list[int]]) -> None:
    names = [ProcessName(Role.WORKER, index) for index in range(64)]

    async def story(cluster: LocalCluster) -> None:
        await asyncio.gather(
            *(cluster.create(python(name, f"print('worker-{name.index}')")) for name in names)
        )
        for name in names:
            assert (await ended(cluster, name)).log_tail == str(name)
        assert len(imported()) == 1

    run(tmp_path, ("counted",), story)


def test_what_workers_import_may_be_forked() -> None:
    """It starts no thread of Python, and TensorFlow has neither context nor session."""
    program = (
        "from elasticdl.worker.lifecycle import preload_ring; preload_ring();"
        " import threading, sys, logging;"
        " from tensorflow.python.eager import context;"
        " print(threading.active_count(), context.context()._initialized,"
        " 'elasticdl.worker.main' in sys.modules, logging.getLogger('tensorflow').handlers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "1 False False []\n"


def test_a_gpu_is_recognized_by_its_device(tmp_path: Path) -> None:
    (tmp_path / "null").touch()
    (tmp_path / "nvidia-caps").mkdir()
    assert not has_gpu({}, tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu({}, tmp_path)
    assert not has_gpu({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
