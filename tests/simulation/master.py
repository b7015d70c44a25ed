"""The master of a simulated job: the real core, driver, hands, gateway and lease polls, on a loop
of simulated time.

What is replaced: the cluster, the network, the disk; nothing is written for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from elasticdl.cluster.base import ProcessName, ProcessSpec
from elasticdl.errors import TransientError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.ps.steps import Steps
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import Saver
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.fencing import Fences
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.ring_coordinator import RingCoordinator
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.process_gateway import ProcessGateway
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.rpc.conversation import Report
from elasticdl.shard import Task
from tests.simulation.servers import Control
from tests.simulation.threads import Clock

if TYPE_CHECKING:
    from tests.simulation.world import World


@final
class Journal:
    """In memory."""

    def __init__(self) -> None:
        self.events: list[happened.Event] = []

    def append(self, event: happened.Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        """It is as safe as it gets."""


@final
class _Core:
    """The core, with the truth looking on."""

    def __init__(self, world: World, state: JobState) -> None:
        self._world = world
        self.state = state

    def handle(self, event: happened.Event) -> Sequence[do.Command]:
        self._world.truth.before(event)
        commands = self.state.handle(event)
        self._world.truth.after(event, commands)
        return commands


@final
class Archive:
    """Checkpoints on the simulated disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        self.restore_from = ""

    async def save(self, command: do.SaveSnapshot, snapshots: Saver) -> tuple[str, int]:
        self._number += 1
        path = f"version-{command.version}.{self._number}"
        await asyncio.sleep(self._world.plan.save_s * self._world.scheduler.random.random())
        if self._world.disk.fails():
            raise TransientError("No space left on device")
        await snapshots.save(command.snapshot, path)
        self._world.truth.saved(command, path)
        self.restore_from = path
        return path, 1

    def keep_scale(self, low: int, high: int) -> None:
        """Nobody resumes."""


@final
class _EventRecorder:
    """What is announced, for whoever looks at a failed run."""

    def __init__(self, world: World) -> None:
        self._world = world

    def append(self, stamp: Mapping[str, float], told: Mapping[str, Any] | None = None) -> object:
        if told is not None:
            self._world.told.append((stamp["at_s"], str(told["text"])))
        return None


@final
class Master:
    """One master for the whole job."""

    def __init__(self, world: World) -> None:
        plan = world.plan
        self.spec = plan.spec
        self.loop = world.loop
        self._world = world
        self.over = False
        self.inbox = EventQueue(Clock(world.scheduler))
        self.state = JobState(plan.spec)
        self.journal = Journal()
        roster = PsRegistry(plan.servers, lambda name, address: Control(world, address))
        between_steps = asyncio.Lock()
        fences = Fences(roster, between_steps)

        def turns(orders: OrderStreams) -> StepTurns:
            steps = Steps(plan.spec.gradients_per_step, plan.spec.training.backup_workers)
            return StepTurns(
                steps, self.state.step_outlook, self.inbox, roster, orders, between_steps
            )

        self.gateway = ProcessGateway(
            self.inbox,
            roster,
            fences,
            Task.TRAINING,
            self.state.may_attach,
            (lambda orders: RingCoordinator(orders, "", world.hub)) if plan.on_ring else None,
        )
        if plan.spec.trains_in_steps:
            self.gateway.train_in_steps(turns)
        self.archive = Archive(world)
        told = _EventRecorder(world)
        launcher = Launcher(world.cluster, _spec_of)  # type: ignore[arg-type]  # no logs here
        snapshots = Snapshots(roster, between_steps=between_steps)
        deps = ExecutorDeps(launcher, fences, snapshots, self.archive, told, told, None)  # type: ignore[arg-type]
        self._hands = Executor(self.inbox, self.gateway, deps)
        self._driver = Driver(
            _Core(world, self.state), self.journal, self.inbox, self.gateway, self._hands
        )
        self._roster = roster

    async def run(self) -> do.FinishJob:
        plan = self._world.plan
        if self.gateway.ring is not None:
            await self.gateway.ring.start("master")
        self.inbox.post(happened.JobStarted(0.0, plan.training, plan.validation))
        finish = await self._driver.run(self._world.cluster.observe())
        self.over = True
        return finish

    def post(self, event: happened.Event) -> None:
        """Something that a person asks for, or the cluster tells."""
        if not self.over:
            self.loop.call_soon(lambda: None if self.over else self.inbox.post(event))

    def reported(self, name: ProcessName, report: Report) -> None:
        """A report was handled."""
        self._world.truth.reported(name, report)


def _spec_of(name: ProcessName) -> ProcessSpec:
    return ProcessSpec(name, ())
