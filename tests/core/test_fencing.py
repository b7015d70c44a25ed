"""Which servers refuse a lost worker, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import TransientError
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.gateway import ps_registry
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.rpc.ps_control import Fenced
from elasticdl.shard import Applied, ShardId

pytestmark = pytest.mark.core


def ps(index: int, incarnation: int = 0) -> ProcessName:
    return ProcessName(Role.PS, index, incarnation)


def has(sequence: int) -> Fenced:
    return Fenced(Applied(ShardId(1), 0, 8 * sequence), sequence)


class Control:
    """A server that fails `failures` times, and then does `then` with each call."""

    def __init__(self, answer: Fenced, failures: int = 0) -> None:
        self.answer, self.failures = answer, failures
        self.asked: list[str] = []
        self.then: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def fence(self, worker: str, timeout_s: float) -> Fenced:
        self.asked.append(worker)
        if self.then is not None:
            await self.then()
        if self.failures:
            self.failures -= 1
            raise TransientError("no answer")
        return self.answer

    async def close(self) -> None:
        pass


class Scene:
    """Two servers share the parameters, and a third one stands by."""

    def __init__(self, returns_s: float = 0.0) -> None:
        self.controls = [Control(has(4)), Control(has(3)), Control(has(9))]
        self.next: list[Control] = []
        self.registry = PsRegistry(2, self._connect, returns_s)
        self.lock = asyncio.Lock()
        self.fences = Fences(self.registry, self.lock)

    def _connect(self, name: ProcessName, address: str) -> Any:
        return self.next[0] if name.incarnation else self.controls[name.index]

    def attach(self, *indices: int) -> None:
        for index in indices:
            self.registry.attach(ps(index), "at")

    async def fence(self, worker: str = "worker-7") -> tuple[Fenced | None, ...]:
        async with asyncio.timeout(60):
            return await self.fences.fence(worker)


async def test_servers_that_share_the_parameters_answer_and_those_that_stand_by_know_it() -> None:
    scene = Scene()
    scene.attach(0, 1, 2)
    assert await scene.fence() == (has(4), has(3))
    assert [control.asked for control in scene.controls] == [["worker-7"]] * 3


async def test_a_server_that_never_saw_the_worker_or_is_away_has_nothing_of_it() -> None:
    scene = Scene()
    scene.controls[0] = Control(Fenced(None, 0))
    scene.attach(0)
    assert await scene.fence() == (None, None)


def test_a_server_is_asked_until_it_answers_and_each_pause_is_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []

    def soon(attempt: int) -> float:
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr(ps_registry, "delay_s", soon)

    async def scene() -> None:
        scene = Scene()
        scene.controls[0].failures = 3
        scene.attach(0, 1)
        assert await scene.fence() == (has(4), has(3))
        assert scene.controls[0].asked == ["worker-7"] * 4

    asyncio.run(scene())
    assert waits == [1, 2, 3]


async def test_the_next_process_is_asked_only_where_memory_outlives_the_first() -> None:
    for returns_s, answer in ((0.0, None), (60.0, has(6))):
        scene = Scene(returns_s)
        scene.attach(0, 1)
        first = scene.controls[0]
        first.failures, scene.next = 1, [Control(has(6))]

        async def ends(scene: Scene = scene) -> None:
            await scene.registry.leave(ps(0))
            scene.registry.attach(ps(0, 1), "at")

        first.then = ends
        assert await scene.fence() == (answer, has(3))
        assert scene.next[0].asked == ([] if answer is None else ["worker-7"])


async def test_servers_that_get_the_parameters_meanwhile_are_asked_for_their_answers() -> None:
    scene = Scene()
    scene.attach(0, 1, 2)

    async def move() -> None:
        scene.registry.indices = range(1, 3)

    scene.controls[0].then = move
    assert await scene.fence() == (has(3), has(9))


async def test_no_server_is_asked_in_the_middle_of_a_step() -> None:
    scene = Scene()
    scene.attach(0, 1)
    await scene.lock.acquire()
    fence = asyncio.create_task(scene.fence())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not scene.controls[0].asked
    scene.lock.release()
    assert await fence == (has(4), has(3))


async def test_a_server_that_attaches_learns_of_all_that_were_ever_fenced() -> None:
    scene = Scene()
    scene.fences.restore(["worker-1", "worker-2"])
    scene.attach(1)
    await scene.fence("worker-3")
    server = scene.registry.attach(ps(0), "at")
    await scene.fences.catch_up(server)
    assert sorted(scene.controls[0].asked) == ["worker-1", "worker-2", "worker-3"]
