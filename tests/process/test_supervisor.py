"""A real supervisor, real processes, and the test as their masters."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.supervisor.supervised_cluster import SupervisedCluster
from elasticdl.errors import ExitCode
from elasticdl.jobdir.job_end import job_end
from elasticdl.jobdir.outcome import Outcome, write_outcome
from elasticdl.jobdir.supervisor_file import read_supervisor
from tests.present import present
from tests.supervised import Supervised
from tests.waiting import gone, process_state, until, until_async

pytestmark = pytest.mark.process
LIMIT_S = 30.0
MOST_KIB = 40 * 1024
W0, W1, W2 = (ProcessName(Role.WORKER, index) for index in range(3))
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
# A process with a child of its own; both write their numbers.
FAMILY = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(f"pids {os.getpid()} {child.pid}", flush=True)
time.sleep(600)
"""


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    job = Supervised(tmp_path / "job")
    (job.directory.spec).write_text('{"cluster": {"job_name": "a"}, "action": "train"}')
    yield job
    job.close()


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * LIMIT_S):
            await story()

    asyncio.run(limited())


async def first(cluster: SupervisedCluster, number: int) -> list[ProcessObserved | ProcessExited]:
    """What an observer is told first."""
    async with asyncio.timeout(LIMIT_S), aclosing(cluster.observe()) as events:
        return [await anext(events) for _ in range(number)]


async def end_of(
    events: AsyncIterator[ProcessObserved | ProcessExited], name: ProcessName
) -> ExitStatus:
    async with asyncio.timeout(LIMIT_S):
        async for event in events:
            if isinstance(event, ProcessExited) and event.name == name:
                return event.exit_status
    raise AssertionError("the events ended")


def pid_of(event: ProcessObserved | ProcessExited) -> int:
    assert isinstance(event, ProcessObserved)
    return int(event.where.removeprefix("pid "))


def ended(job: Supervised) -> int:
    return job.process.wait(LIMIT_S)


# what outlives a master


def test_the_next_master_gets_what_was_kept_and_learns_how_the_last_one_ended(
    supervised: Supervised,
) -> None:
    master = supervised.master()
    assert (master.welcome.kept, master.welcome.before, master.restart) == ({}, None, 0)
    master.link.keep("token", "secret")
    master.link.keep("key", "-----BEGIN")
    master.kill()
    second = supervised.master()
    assert second.welcome.kept == {"token": "secret", "key": "-----BEGIN"}
    before = present(second.welcome.before)
    assert before.status.signal == signal.SIGKILL and 0 < before.lived_s < LIMIT_S
    assert second.restart == 1
    secrets = [
        path.name
        for path in supervised.directory.path.rglob("*")
        if path.is_file() and b"secret" in path.read_bytes()
    ]
    shown = Path(f"/proc/{second.pid}/environ").read_bytes()
    assert not secrets and b"secret" not in shown
    log = (supervised.directory.logs / "master-0.log").read_text()
    assert "=== master-0 started" in log and "=== master-0.1 started" in log
    assert "the master ended by signal SIGKILL" in log


def test_processes_outlive_their_master_and_the_next_one_learns_of_all(
    supervised: Supervised,
) -> None:
    async def story() -> None:
        master = supervised.master()
        cluster = SupervisedCluster(master.link)
        for name in (W0, W1, W2):
            await cluster.create(ProcessSpec(name, SLEEP))
        pids = {event.name: pid_of(event) for event in await first(cluster, 3)}
        os.kill(pids[W2], signal.SIGKILL)
        async with aclosing(cluster.observe()) as events:
            await end_of(events, W2)
        await cluster.leave()
        os.kill(master.pid, signal.SIGSTOP)  # The next one must not begin before W1 has ended.
        os.kill(pids[W1], signal.SIGTERM)
        await until_async("it has ended", lambda: gone(pids[W1]))
        master.kill()
        second = SupervisedCluster(supervised.master().link)
        seen = await first(second, 3)
        assert seen[0] == ProcessObserved(W0, running=True, where=f"pid {pids[W0]}")
        assert {event.name: event.exit_status.signal for event in seen[1:]} == {  # type: ignore[union-attr]
            W1: signal.SIGTERM,
            W2: signal.SIGKILL,
        }
        await second.create(ProcessSpec(W0, SLEEP))  # It is there: nothing happens.
        assert not gone(pids[W0])
        await second.delete(W0, grace_s=LIMIT_S)
        async with aclosing(second.observe()) as events:
            status = await end_of(events, W0)
        assert (status.signal, status.asked) == (signal.SIGTERM, True)
        await second.close()

    play(story)


def test_a_process_that_is_being_created_when_its_master_dies_is_the_next_one_s(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "slow_import.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    job = Supervised(tmp_path / "job", "slow_import", path=tmp_path)

    async def story() -> None:
        master = job.master()
        cluster = SupervisedCluster(master.link)
        creating = asyncio.ensure_future(cluster.create(ProcessSpec(W0, SLEEP)))
        await until_async("the template imports", lambda: children(job.process.pid) >= 3)
        master.kill()
        second = SupervisedCluster(job.master().link)
        gate.touch()
        (event,) = await first(second, 1)
        assert event.name == W0 and not gone(pid_of(event))
        creating.cancel()
        await cluster.leave()
        await second.close()

    try:
        play(story)
    finally:
        job.close()


def test_a_master_may_start_over_without_its_predecessor_s_processes(
    supervised: Supervised,
) -> None:
    async def story() -> None:
        master = supervised.master()
        cluster = SupervisedCluster(master.link)
        await cluster.create(ProcessSpec(W0, SLEEP))
        (before,) = await first(cluster, 1)
        await cluster.leave()
        master.kill()
        second = SupervisedCluster(supervised.master().link)
        await second.end_predecessors_processes()
        assert gone(pid_of(before))
        await second.create(ProcessSpec(W0, SLEEP))
        (event,) = await first(second, 1)
        assert event.name == W0 and pid_of(event) != pid_of(before)
        await second.close()

    play(story)


def test_a_process_beside_the_job_ends_with_its_master(supervised: Supervised) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        async def story() -> None:
            master = supervised.master()
            cluster = SupervisedCluster(master.link)
            standard = (theirs.fileno(),) * 3
            async with cluster.beside(ProcessSpec(W0, SLEEP), standard) as check:
                theirs.close()
                assert not gone(check.pid) and check.status is None
                master.kill()
                await asyncio.to_thread(ours.recv, 1)  # Returns when the last holder has ended.
                await until_async("it is gone", lambda: gone(check.pid))
                await cluster.leave()

        play(story)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise SystemExit(7)", ExitStatus(exit_code=7)),
        ("import os; os.kill(os.getpid(), 11)", ExitStatus(signal=signal.SIGSEGV)),
    ],
)
def test_a_process_beside_the_job_reports_its_end_and_talks_through_the_master_s_descriptors(
    supervised: Supervised, program: str, status: ExitStatus
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:

        async def story() -> None:
            cluster = SupervisedCluster(supervised.master().link)
            standard = (theirs.fileno(),) * 3
            command = (sys.executable, "-c", f"print(input() + '!', flush=True); {program}")
            async with cluster.beside(ProcessSpec(W0, command), standard) as check:
                ours.sendall(b"hello\n")
                assert await asyncio.to_thread(ours.makefile("rb").readline) == b"hello!\n"
                await until_async("it has ended", lambda: check.status)
                assert check.status == status
                assert process_state(check.pid) == "Z", "its number is its own until released"
            assert process_state(check.pid) == ""
            await cluster.close()

        play(story)


def test_a_program_that_is_not_there_is_refused_beside_the_job_too(supervised: Supervised) -> None:
    async def story() -> None:
        cluster = SupervisedCluster(supervised.master().link)
        with pytest.raises(OSError, match="No such file"):
            async with cluster.beside(ProcessSpec(W0, ("/nowhere",)), (0, 1, 2)):
                raise AssertionError("it runs")
        with pytest.raises(CreateRefused, match="No such file or directory: /nowhere"):
            await cluster.create(ProcessSpec(W0, ("/nowhere",)))
        await cluster.close()

    play(story)


# ports


def test_a_port_stays_the_job_s_between_two_masters(supervised: Supervised) -> None:
    master = supervised.master()
    port = master.link.reserve("master", "127.0.0.1", 0)
    assert master.link.reserve("master", "127.0.0.1", 0) == port
    with (
        socket.create_server(("127.0.0.1", port), reuse_port=True) as listening,
        socket.create_connection(("127.0.0.1", port), LIMIT_S),
    ):
        listening.accept()[0].close()
    for reuse_address in (False, True):
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
            other.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), LIMIT_S)
    master.kill()
    second = supervised.master()
    assert second.link.reserve("master", "127.0.0.1", 0) == port
    with (
        socket.create_server(("127.0.0.1", port), reuse_port=True),
        socket.create_connection(("127.0.0.1", port), LIMIT_S),
    ):
        pass


def test_two_jobs_do_not_share_a_port_that_both_want(
    supervised: Supervised, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        server.accept()[0].close()  # Leaves a connection that lingers on the port.
        client.close()
    link = supervised.master().link
    assert link.reserve("page", "127.0.0.1", port) == port
    other = Supervised(tmp_path / "other")
    try:
        theirs = other.master().link
        with pytest.raises(OSError, match="in use"):
            theirs.reserve("page", "127.0.0.1", port)
        with (
            socket.create_server(("127.0.0.1", port), reuse_port=True),
            pytest.raises(OSError, match="in use"),
        ):
            theirs.reserve("page", "127.0.0.1", port)
    finally:
        other.close()


# who is started again


def test_masters_that_die_at_once_are_started_again_five_times(supervised: Supervised) -> None:
    for restart in range(6):
        master = supervised.master()
        assert master.restart == restart
        master.exit(0 if restart % 2 else 1)
    assert ended(supervised) == ExitCode.JOB_FAILED
    left = present(read_supervisor(supervised.directory))
    assert left.exit_code == ExitCode.JOB_FAILED and not left.runs(supervised.directory)
    outcome, _ = present(job_end(supervised.directory))
    assert "without recording an outcome, as 5 masters before it did" in outcome.message
    assert "master-0.log" in outcome.hint


def test_a_job_that_makes_progress_continues_however_often_its_master_dies(
    supervised: Supervised,
) -> None:
    for restart in range(8):
        master = supervised.master()
        master.link.tell({"progress": 10 * restart})
        master.link.reserve("any", "127.0.0.1", 0)  # The answer comes after the progress.
        master.kill()
    assert supervised.master().restart == 8


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.INTERRUPTED])
def test_a_master_that_was_refused_or_interrupted_is_the_last(
    supervised: Supervised, code: ExitCode
) -> None:
    supervised.master().exit(code)
    assert ended(supervised) == code
    assert (
        f"exit code {int(code)} without" in present(read_supervisor(supervised.directory)).message
    )


def test_a_master_that_a_person_ended_before_it_could_listen_is_the_last(
    supervised: Supervised,
) -> None:
    os.kill(supervised.master().pid, signal.SIGTERM)
    assert ended(supervised) == ExitCode.INTERRUPTED


def test_a_job_whose_outcome_was_reported_is_over_however_its_master_ends(
    supervised: Supervised,
) -> None:
    master = supervised.master()
    master.link.tell({"finished": 5})
    master.kill()
    assert ended(supervised) == 5
    assert not supervised.directory.supervisor.exists()


def test_a_job_whose_outcome_is_written_is_over_however_its_master_ends(
    supervised: Supervised,
) -> None:
    master = supervised.master()
    supervised.directory.master.write_text("{}")
    write_outcome(supervised.directory, Outcome(0, "done"), None)
    master.kill()
    assert ended(supervised) == 0
    assert not supervised.directory.supervisor.exists() and not supervised.directory.master.exists()


def test_a_stopped_master_is_no_dead_master(supervised: Supervised) -> None:
    async def story() -> None:
        master = supervised.master()
        os.kill(master.pid, signal.SIGSTOP)
        until("it is stopped", lambda: process_state(master.pid) == "T")
        cluster = SupervisedCluster(master.link)
        await cluster.create(ProcessSpec(W0, SLEEP))
        assert await first(cluster, 1)
        assert not supervised.has_next(), "it has started no other"
        os.kill(master.pid, signal.SIGCONT)
        await cluster.close()

    play(story)


def test_all_processes_end_with_the_job(supervised: Supervised) -> None:
    async def story() -> None:
        master = supervised.master()
        cluster = SupervisedCluster(master.link)
        await cluster.create(ProcessSpec(W0, SLEEP))
        (event,) = await first(cluster, 1)
        await cluster.leave()  # As after a crash that the master survived.
        master.link.tell({"finished": 1})
        master.exit(1)
        assert await asyncio.to_thread(ended, supervised) == 1
        assert gone(pid_of(event))

    play(story)


# stopping


def test_a_stop_reaches_the_master_when_it_can_handle_it(supervised: Supervised) -> None:
    master = supervised.master()
    os.kill(supervised.process.pid, signal.SIGTERM)

    async def story() -> None:
        heard: list[int] = []
        cluster = SupervisedCluster(master.link, heard.append)
        await until_async("the signal is passed on", lambda: heard)
        assert heard == [signal.SIGTERM] and not gone(master.pid)
        await cluster.close()

    play(story)
    master.link.tell({"finished": 130})
    master.exit(130)
    assert ended(supervised) == 130


def test_a_master_that_is_killed_while_it_stops_the_job_has_a_successor_that_stops_it(
    supervised: Supervised,
) -> None:
    master = supervised.master()
    os.kill(supervised.process.pid, signal.SIGINT)
    assert master.next_message() == {"signal": signal.SIGINT}
    master.kill()
    assert supervised.master().next_message() == {"signal": signal.SIGINT}


def test_a_stop_between_two_masters_waits_for_the_next_one(supervised: Supervised) -> None:
    for _ in range(4):
        supervised.master().kill()
    master = supervised.master()
    master.kill()
    until("it is gone", lambda: gone(master.pid))
    os.kill(supervised.process.pid, signal.SIGTERM)  # Within the pause of 2 s.
    last = supervised.master()
    assert last.restart == 5
    assert last.next_message() == {"signal": signal.SIGTERM}


def test_a_second_stop_ends_a_job_whose_master_is_away(supervised: Supervised) -> None:
    master = supervised.master()
    for _ in range(2):
        os.kill(supervised.process.pid, signal.SIGTERM)
        assert master.next_message() == {"signal": signal.SIGTERM}
    master.kill()
    assert ended(supervised) == ExitCode.INTERRUPTED
    outcome, _ = present(job_end(supervised.directory))
    assert (outcome.exit_code, outcome.message) == (130, "ended at once")


def test_a_master_that_obeys_no_second_stop_is_killed(supervised: Supervised) -> None:
    master = supervised.master()
    for _ in range(2):
        os.kill(supervised.process.pid, signal.SIGTERM)
        assert master.next_message() == {"signal": signal.SIGTERM}
    assert ended(supervised) == ExitCode.INTERRUPTED
    assert gone(master.pid)


# no orphans


def pids_in(log: Path) -> list[int]:
    text = log.read_text() if log.exists() else ""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("pids ")]
    return [int(pid) for line in lines for pid in line]


def children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
@pytest.mark.parametrize("restarts", [0, 1])
def test_no_process_outlives_the_supervisor(
    supervised: Supervised, number: signal.Signals, restarts: int
) -> None:
    async def story() -> list[int]:
        master = supervised.master()
        cluster = SupervisedCluster(master.link)
        await cluster.create(ProcessSpec(W0, (sys.executable, "-c", FAMILY)))
        log = supervised.directory.logs / "worker-0.log"
        await until_async("both run", lambda: len(pids_in(log)) == 2)
        await cluster.leave()
        for _ in range(restarts):
            master.kill()
            master = supervised.master()
        os.kill(supervised.process.pid, number)
        await asyncio.to_thread(ended, supervised)
        return [master.pid, *pids_in(log)]

    pids = asyncio.run(story())
    if number is signal.SIGQUIT:
        assert all(map(gone, pids)), "it waits for their ends"
    until("all are gone", lambda: all(map(gone, pids)))


def test_no_process_outlives_who_started_the_supervisor(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.supervised import Supervised
job = Supervised(Path(sys.argv[1]))
print(job.process.pid, job.master().pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "job")], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pids = [int(text) for text in starter.stdout.readline().split()]
        starter.kill()
    assert len(pids) == 2
    until("supervisor and master are gone", lambda: all(map(gone, pids)))


# costs


def resident_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def test_the_supervisor_is_small(supervised: Supervised) -> None:
    async def story() -> None:
        cluster = SupervisedCluster(supervised.master().link)
        for index in range(20):
            await cluster.create(ProcessSpec(ProcessName(Role.PS, index), ("sleep", "600")))
        resident = resident_kib(supervised.process.pid)
        print(f"the supervisor has {resident} KiB")
        assert resident < MOST_KIB
        await cluster.close()

    play(story)


def test_the_supervisor_imports_nothing_large() -> None:
    program = (
        "import sys; import elasticdl.cluster.local.supervisor.__main__;"
        " print({'grpc', 'pydantic', 'numpy', 'tensorflow', 'kubernetes', 'aiohttp',"
        " 'cryptography'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stdout == "set()\n", done
