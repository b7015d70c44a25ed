"""The servers that a master knows, and for how long it waits for one that is away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import TransientError
from elasticdl.master.gateway.ps_registry import PsRegistry

pytestmark = pytest.mark.contract
RETURNS_S = 0.3


class Control:
    """Nothing is asked."""

    async def close(self) -> None:
        return


def registry() -> PsRegistry:
    control: Any = Control()
    return PsRegistry(2, lambda name, address: control, RETURNS_S)


def ps(index: int, incarnation: int = 0) -> ProcessName:
    return ProcessName(Role.PS, index, incarnation)


def test_calls_one_after_another_wait_for_one_absence_together() -> None:
    async def story() -> float:
        servers, loop = registry(), asyncio.get_running_loop()
        servers.attach(ps(0), "here")
        begin_s = loop.time()
        await servers.leave(ps(0))
        for _ in range(10):
            assert await servers.present(0) is None
        return loop.time() - begin_s

    assert RETURNS_S <= asyncio.run(story()) < 5 * RETURNS_S


async def test_nobody_waits_for_a_server_that_never_came() -> None:
    async with asyncio.timeout(RETURNS_S / 2):
        assert await registry().present(1) is None


async def test_servers_of_an_earlier_master_are_expected() -> None:
    servers = registry()
    servers.expect_all()
    waiting = asyncio.ensure_future(servers.present(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert servers.attach(ps(1), "there") is await waiting


async def test_calls_to_a_server_end_with_it_even_if_its_next_process_came_before() -> None:
    class Noted(Control):
        def __init__(self, name: ProcessName) -> None:
            self.name = name

        async def close(self) -> None:
            closed.append(self.name)

    def connect(name: ProcessName, address: str) -> Any:
        return Noted(name)

    closed: list[ProcessName] = []
    servers = PsRegistry(1, connect, RETURNS_S)
    servers.attach(ps(0), "here")
    newer = servers.attach(ps(0, 1), "there")
    await servers.leave(ps(0))
    assert closed == [ps(0)] and servers.attached() == (newer,)
    await servers.close()
    assert closed == [ps(0), ps(0, 1)] and not servers.attached()


@pytest.mark.parametrize("is_gone", [False, True])
async def test_only_a_server_that_stays_and_never_answers_is_an_error_in_the_log(
    is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    with caplog.at_level(logging.DEBUG, logger="elasticdl"):
        server = registry().attach(ps(0), "here")

        async def fails(_control: object) -> int:
            tries.append(0)
            if is_gone and len(tries) == 2:
                asyncio.get_running_loop().call_soon(server.gone.set)
            raise TransientError("away")

        pauses = {1: 0.0, 2: 60.0 if is_gone else 0.0}
        answer = server.answer(
            fails, "drop of view 6", tries=2, pause_s=pauses.__getitem__, level=logging.DEBUG
        )
        assert await answer is None
    told = [
        (record.levelname, record.message) for record in caplog.records if record.name != "asyncio"
    ]
    first = ("DEBUG", "drop of view 6 at ps-0, attempt 1: away")
    last = ("ERROR", "drop of view 6 at ps-0, attempt 2: away")
    assert len(tries) == 2 and told == ([first] if is_gone else [first, last])
