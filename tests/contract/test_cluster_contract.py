"""What every cluster promises, for each of them: real processes on this machine, with and without a
supervisor, and the fake in memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from elasticdl.cluster.base import (
    Cluster,
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.cluster import LocalCluster
from elasticdl.cluster.local.supervisor.supervised_cluster import SupervisedCluster
from tests.fake_cluster import FakeCluster
from tests.supervised import Supervised
from tests.waiting import until_async

pytestmark = pytest.mark.contract
LIMIT_S = 20.0
W0, W1 = ProcessName(Role.WORKER, 0), ProcessName(Role.WORKER, 1)


class Bench(Protocol):
    """A cluster and the means to have processes of it behave in some way."""

    cluster: Cluster
    at_hand: bool
    """Processes and logs are seen at once, not through an API server that is asked."""

    async def start(self, name: ProcessName) -> None:
        """A process that runs until it is told to end."""

    async def start_stubborn(self, name: ProcessName) -> None:
        """One that ignores SIGTERM, and does so from now on."""

    async def start_and_exit(self, name: ProcessName, code: int) -> None:
        """One that ends by itself."""

    def kill(self, name: ProcessName) -> None:
        """SIGKILL from outside."""

    def starts(self, name: ProcessName) -> int:
        """How often a process of this name was really started."""

    def close(self) -> None:
        """End what is not the cluster's."""


class ProcessBench:
    """Real processes."""

    at_hand = True

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self.cluster = cluster

    def close(self) -> None:
        pass

    async def _run(self, name: ProcessName, program: str) -> None:
        report = (
            f"import os, time; open({str(self.directory)!r} + '/{name}.started',"
            " 'a').write(f'{os.getpid()}\\n')\n"
        )
        await self.cluster.create(ProcessSpec(name, (sys.executable, "-c", report + program)))

    def _pids(self, name: ProcessName) -> list[int]:
        path = self.directory / f"{name}.started"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    async def _up(self, name: ProcessName, marker: str = "") -> None:
        path = self.directory / (marker or f"{name}.started")
        await until_async(
            f"{path.name} is written", lambda: path.exists() and path.read_text().endswith("\n")
        )

    async def start(self, name: ProcessName) -> None:
        await self._run(name, "time.sleep(600)")
        await self._up(name)

    async def start_stubborn(self, name: ProcessName) -> None:
        ready = f"{name}.ready"
        program = (
            "import signal; signal.signal(15, signal.SIG_IGN);"
            f" open({str(self.directory / ready)!r}, 'w').write('\\n'); time.sleep(600)"
        )
        await self._run(name, program)
        await self._up(name, ready)

    async def start_and_exit(self, name: ProcessName, code: int) -> None:
        await self._run(name, f"raise SystemExit({code})")

    def kill(self, name: ProcessName) -> None:
        os.kill(self._pids(name)[-1], signal.SIGKILL)

    def starts(self, name: ProcessName) -> int:
        return len(self._pids(name))


class LocalBench(ProcessBench):
    def __init__(self, directory: Path, worker_imports: tuple[str, ...] = ()) -> None:
        cluster = LocalCluster(directory / "logs", cores=2, worker_imports=worker_imports)
        super().__init__(directory, cluster)


class TemplateBench(LocalBench):
    """Workers are forks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, ("decimal",))


class SupervisedBench(ProcessBench):
    """The test is the master of a real supervisor."""

    def __init__(self, directory: Path) -> None:
        self._supervised = Supervised(directory)
        super().__init__(directory, SupervisedCluster(self._supervised.master().link))

    def close(self) -> None:
        self._supervised.close()


class FakeBench:
    at_hand = True

    def __init__(self, _directory: Path) -> None:
        self.cluster = FakeCluster()

    async def start(self, name: ProcessName) -> None:
        await self.cluster.create(ProcessSpec(name, ("train",)))

    async def start_stubborn(self, name: ProcessName) -> None:
        self.cluster.ignore_sigterm(name)
        await self.start(name)

    async def start_and_exit(self, name: ProcessName, code: int) -> None:
        await self.start(name)
        self.cluster.exit(name, ExitStatus(exit_code=code))

    def kill(self, name: ProcessName) -> None:
        self.cluster.kill(name)

    def starts(self, name: ProcessName) -> int:
        return list(self.cluster.specs).count(name)

    def close(self) -> None:
        pass


@pytest.fixture(
    params=[LocalBench, TemplateBench, SupervisedBench, FakeBench],
    ids=["local", "template", "supervised", "fake"],
)
@asynccontextmanager
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    made = request.param(tmp_path)
    try:
        async with asyncio.timeout(LIMIT_S * 2):
            yield made
    finally:
        await made.cluster.close()
        made.close()


async def the_exit(
    events: AsyncIterator[ProcessObserved | ProcessExited], name: ProcessName
) -> ExitStatus:
    async with asyncio.timeout(LIMIT_S):
        async for event in events:
            if isinstance(event, ProcessExited) and event.name == name:
                return event.exit_status
    raise AssertionError("the cluster's events ended")


async def test_observing_starts_with_every_live_process(bench: Bench) -> None:
    await bench.start(W0)
    await bench.start(W1)
    async with aclosing(bench.cluster.observe()) as events:
        first = [await anext(events), await anext(events)]
    assert {event.name for event in first} == {W0, W1}
    assert all(isinstance(event, ProcessObserved) and event.running for event in first)


async def test_a_process_created_while_observing_is_reported(bench: Bench) -> None:
    async with aclosing(bench.cluster.observe()) as events:
        waiting = asyncio.ensure_future(anext(events))
        await bench.start(W0)
        event = await asyncio.wait_for(waiting, LIMIT_S)
        assert isinstance(event, ProcessObserved) and event.name == W0


@pytest.mark.parametrize("code", [0, 1, 64, 66])
async def test_an_exit_is_reported_with_its_code(bench: Bench, code: int) -> None:
    await bench.start_and_exit(W0, code)
    async with aclosing(bench.cluster.observe()) as events:
        status = await the_exit(events, W0)
    assert (status.exit_code, status.signal, status.asked) == (code, None, False)


async def test_a_kill_from_outside_is_reported_with_its_signal_and_was_not_asked_for(
    bench: Bench,
) -> None:
    await bench.start(W0)
    bench.kill(W0)
    async with aclosing(bench.cluster.observe()) as events:
        status = await the_exit(events, W0)
    assert (status.exit_code, status.signal, status.asked) == (None, signal.SIGKILL, False)


async def test_an_exit_before_anybody_observed_is_not_lost(bench: Bench) -> None:
    await bench.start(W0)
    async with aclosing(bench.cluster.observe()) as early:
        bench.kill(W0)
        await the_exit(early, W0)
    async with aclosing(bench.cluster.observe()) as late:
        assert (await the_exit(late, W0)).signal == signal.SIGKILL


async def test_every_observer_hears_everything(bench: Bench) -> None:
    await bench.start(W0)
    async with aclosing(bench.cluster.observe()) as one, aclosing(bench.cluster.observe()) as two:
        await anext(one)
        await anext(two)
        bench.kill(W0)
        assert await the_exit(one, W0) == await the_exit(two, W0)


async def test_delete_is_an_exit_that_was_asked_for(bench: Bench) -> None:
    await bench.start(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(W0, grace_s=LIMIT_S)
        status = await the_exit(events, W0)
    assert (status.signal, status.asked) == (signal.SIGTERM, True)


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    await bench.start_stubborn(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(W0, grace_s=0.2)
        status = await the_exit(events, W0)
    assert (status.signal, status.asked) == (signal.SIGKILL, True)


async def test_a_shorter_grace_asked_for_later_counts(bench: Bench) -> None:
    await bench.start_stubborn(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(W0, grace_s=600)
        await bench.cluster.delete(W0, grace_s=0)
        assert (await the_exit(events, W0)).signal == signal.SIGKILL


async def test_a_longer_grace_asked_for_later_does_not_count(bench: Bench) -> None:
    await bench.start_stubborn(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await bench.cluster.delete(W0, grace_s=0.2)
        await bench.cluster.delete(W0, grace_s=600)
        assert (await the_exit(events, W0)).signal == signal.SIGKILL


async def test_delete_of_what_is_not_there_is_success(bench: Bench) -> None:
    await bench.cluster.delete(W1, grace_s=1)
    await bench.start(W0)
    bench.kill(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await the_exit(events, W0)
    await bench.cluster.delete(W0, grace_s=1)


async def test_a_duplicate_create_does_not_start_twice(bench: Bench) -> None:
    await bench.start(W0)
    await bench.start(W0)
    assert bench.starts(W0) == 1


async def test_a_name_that_has_ended_is_not_started_again(bench: Bench) -> None:
    await bench.start(W0)
    bench.kill(W0)
    async with aclosing(bench.cluster.observe()) as events:
        await the_exit(events, W0)
    await bench.start(W0)
    assert bench.starts(W0) == 1


async def test_the_next_incarnation_of_a_name_is_a_process_of_its_own(bench: Bench) -> None:
    first, second = ProcessName(Role.PS, 0), ProcessName(Role.PS, 0, incarnation=1)
    await bench.start(first)
    await bench.start(second)
    bench.kill(first)
    async with aclosing(bench.cluster.observe()) as events:
        await the_exit(events, first)
    async with aclosing(bench.cluster.observe()) as again:
        event = await anext(again)
    assert isinstance(event, ProcessObserved) and event.name == second


async def test_close_ends_everything_tells_it_and_ends_the_observers(bench: Bench) -> None:
    await bench.start(W0)
    await bench.start_stubborn(W1)
    async with aclosing(bench.cluster.observe()) as events:
        heard = [await anext(events)]
        closing = asyncio.ensure_future(bench.cluster.close())
        async with asyncio.timeout(LIMIT_S):
            heard += [event async for event in events]
        await closing
    ended = {event.name: event.exit_status for event in heard if isinstance(event, ProcessExited)}
    assert set(ended) == {W0, W1}
    assert all(status.asked for status in ended.values())
    with pytest.raises(CreateRefused) as refused:
        await bench.cluster.create(ProcessSpec(ProcessName(Role.WORKER, 2), ("train",)))
    assert not refused.value.retry


async def test_the_view_of_processes_is_of_now(bench: Bench) -> None:
    await bench.start(W0)
    age_s = bench.cluster.view_age_s
    if bench.at_hand:
        assert age_s is None, "processes are told at once: the view is never old"
    else:
        assert age_s is not None and 0 <= age_s < LIMIT_S
