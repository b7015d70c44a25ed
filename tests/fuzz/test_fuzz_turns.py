"""Turns of synchronous steps: workers that take and end them in any order hold nobody else up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import TransientError
from elasticdl.master.core.events import GradientDropped
from elasticdl.master.core.ps.steps import Contribution, LeasePart, Outlook, Steps, TrainingLease
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.rpc.conversation import Settled
from elasticdl.shard import ShardId
from tests.fuzz.budget import fuzz_s, rounds

pytestmark = [pytest.mark.contract, pytest.mark.timeout(fuzz_s() + 120)]

GOOD, *ODD = (ProcessName(Role.WORKER, index) for index in range(4))
MOVES = 60
LIMIT_S = 5.0
MOST = 2**63 - 1


class Control:
    """A server that applies a step once, whatever its contributions, and sometimes is away."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self.applied: list[int] = []

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        await asyncio.sleep(0)
        assert contributions, "an empty step"
        if self._choose.random() < 0.05:
            raise TransientError("away")
        if step not in self.applied:
            assert step > max(self.applied, default=0), "steps come in order"
            self.applied.append(step)
        return len(self.applied)

    async def close(self) -> None: ...


class World:
    """A job's turns, with leases as the core would give them."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.queue = EventQueue(SystemClock())
        self.orders = OrderStreams(2)
        self.registry = PsRegistry(2, lambda name, address: Control(choose))  # type: ignore[arg-type, return-value]
        for index in range(2):
            self.registry.attach(ProcessName(Role.PS, index), "")
        self.leases = {
            name: TrainingLease(name, ShardId(name.index), 0, choose.randrange(2))
            for name in (GOOD, *ODD)
        }
        steps = Steps(choose.randint(1, 4), choose.randrange(3))
        self.turns = StepTurns(
            steps, self.outlook, self.queue, self.registry, self.orders, asyncio.Lock()
        )
        self.revocations = dict.fromkeys((GOOD, *ODD), 0)

    def outlook(self) -> Outlook:
        return Outlook(tuple(self.leases.values()), frozenset(self.leases))

    async def answer_events(self) -> None:
        """As the core does. Raises the error of a failed task."""
        while True:
            for queued in await self.queue.take():
                if isinstance(queued.event, GradientDropped):
                    self.revoke(queued.event.worker)

    def revoke(self, worker: ProcessName) -> None:
        self.revocations[worker] += 1
        self.turns.revoked(worker, self.revocations[worker])

    async def misbehave(self, worker: ProcessName) -> None:
        choose = self.choose
        for _ in range(MOVES):
            number = choose.choice([*range(1, 8), MOST])
            match choose.randrange(6):
                case 0 | 1:
                    revocation = choose.choice([-1, 0, self.revocations[worker], MOST])
                    epoch = choose.choice([-1, 0, 0, 1, 1, MOST])
                    wait_s = choose.choice([0.0, 0.001, 1.0])
                    with suppress(TimeoutError):
                        async with asyncio.timeout(choose.choice([0.0, 0.002])):
                            await self.turns.take(worker, number, epoch, revocation, wait_s)
                case 2 | 3 | 4:
                    made = Contribution(worker, choose.choice([1, 2, 3, MOST]), 1.0)
                    lease: LeasePart = worker, ShardId(choose.randrange(4)), choose.choice([0, -1])
                    await self.turns.end(
                        worker,
                        choose.choice([0, number]),
                        choose.choice([None, made]),
                        lease,
                        last=choose.random() < 0.3,
                    )
                case _:
                    self.turns.tick()
                    if choose.random() < 0.5:
                        self.revoke(worker)
            if choose.random() < 0.02:
                self.turns.server_changed()
            await asyncio.sleep(0)

    async def behave(self) -> None:
        """Alone in the job, a worker trains the minibatches of its lease in whole steps."""
        lease = self.leases[GOOD]
        stream = self.orders.stream(GOOD)
        for number in range(1, 6):
            step = 0
            while not step:
                revocation = self.revocations[GOOD]
                step, _ = await self.turns.take(GOOD, number, lease.epoch, revocation, 1.0)
            made = Contribution(GOOD, number, 1.0)
            assert await self.turns.end(GOOD, number, made, lease.part, last=number == 5)
        async for order in stream:
            if isinstance(order, Settled) and order.through == 5:
                assert not order.dropped
                return


async def story(choose: random.Random) -> None:
    world = World(choose)
    core = asyncio.ensure_future(world.answer_events())
    try:
        await asyncio.gather(*map(world.misbehave, ODD))
        for name in ODD:
            del world.leases[name]
            world.turns.leave(name)
        behaving = asyncio.ensure_future(world.behave())
        waits: list[asyncio.Future[Any]] = [core, behaving]
        await asyncio.wait(waits, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if core.done():
            core.result()
        assert behaving.done(), "a worker got no turn after others had left"
        behaving.result()
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(core, return_exceptions=True)
        await world.queue.close()


def test_odd_workers_hold_nobody_up_when_they_are_gone() -> None:
    for choose in rounds("turns"):
        asyncio.run(story(choose))
