"""The master of a simulated job: the real core, driver, hands, gateway and lease polls, on a loop
of simulated time.

What is replaced: the cluster, the network, the disk; nothing is written for people.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from elasticdl.cluster.base import ProcessName, ProcessSpec
from elasticdl.errors import TransientError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.ps.steps import Steps
from elasticdl.master.core.state import JobState
from elasticdl.master.driver import Driver
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import SavedCheckpoint, Saver
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
from tests.simulation.loop import Loop
from tests.simulation.servers import Control
from tests.simulation.threads import Clock

if TYPE_CHECKING:
    from tests.simulation.world import World

_RETURNS_S = 10.0
"""How long a server is expected back with its memory."""
_IMAGES = 0.02
"""The probability of an image of the state, after each write of the journal."""


@final
class Journal:
    """In memory; it outlives the masters."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[happened.Event] = []
        self.events: list[happened.Event] = []
        self._image: tuple[int, str] | None = None
        """The number of events before it, and the image."""

    def append(self, event: happened.Event) -> None:
        self._waiting.append(event)

    async def flush(self) -> None:
        self._world.at_moment("flush")
        self.events += self._waiting
        self._waiting.clear()
        if self._world.draws_images.random() < _IMAGES:
            state = self._world.master.state
            if (image := state.image(self._world.plan.spec)) is not None:
                self._image = len(self.events), json.dumps(image)
        self._world.at_moment("act")

    def recovered(self) -> JobState:
        """The state of a master that was killed, as `master.journal.recovery` makes it."""
        self._waiting.clear()
        spec = self._world.plan.spec
        after, state = 0, JobState(spec)
        if self._image is not None:
            after, image = self._image
            started = next(event for event in self.events if isinstance(event, happened.JobStarted))
            state = JobState.from_image(spec, Limits(), started, json.loads(image))
        for event in self.events[after:]:
            state.handle(event)
        return state


@final
class _InterruptedExecutor:
    """The executor; a master may be killed between two commands."""

    def __init__(self, world: World, executor: Executor) -> None:
        self._world = world
        self._executor = executor

    @property
    def finish(self) -> do.FinishJob | None:
        return self._executor.finish

    def carry_out(self, command: do.Command) -> None:
        self._executor.carry_out(command)
        self._world.at_moment("command")


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
        self.restore_from = ""

    async def save(self, command: do.SaveSnapshot, snapshots: Saver) -> SavedCheckpoint:
        path = f"version-{command.version}.{next(self._world.numbers)}"
        await asyncio.sleep(self._world.plan.save_s * self._world.scheduler.random.random())
        if self._world.disk.fails():
            raise TransientError("No space left on device")
        parts = await snapshots.save(command.snapshot, path, pause_s=command.pause_s)
        self._world.truth.saved(command, path)
        self.restore_from = path
        if not (command.hurried or command.keeps):
            await self.prune(command.version, command.held)
        if self._world.plan.copies_s:
            # As a copy to --checkpoint-dir: servers may be lost meanwhile.
            await asyncio.sleep(self._world.plan.copies_s)
        paused_s = min((part.paused_s for part in parts), default=0.0)
        return SavedCheckpoint(path, 1, paused_s=paused_s)

    async def prune(self, version: int, held: Collection[str]) -> None:
        # Removals while the number of servers changes are not simulated.
        if self._world.plan.spec.trains_in_steps:
            keep = self._world.plan.spec.checkpoint.keep_checkpoint_max
            self._world.disk.prune(version, keep, held)

    def keep_scale(self, low: int, high: int) -> None:
        """Nobody resumes."""

    def keep_servers(self, number: int) -> None:
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
    """One master of the job; `recovered` is the state of the one before, which was killed."""

    def __init__(self, world: World, term: int = 1, recovered: JobState | None = None) -> None:
        plan = world.plan
        self.spec = plan.spec
        self.term = term
        self.loop = Loop(world.scheduler)  # type: ignore[abstract]  # what no master uses
        self._world = world
        self.over = self.dead = False
        self._recovered = recovered is not None
        self.state = recovered or JobState(plan.spec)
        self.inbox = EventQueue(Clock(world.scheduler), world.scheduler.now_s)
        servers = self.state.server_map
        roster = PsRegistry(
            servers.number,
            lambda name, address: Control(world, address, term),
            _RETURNS_S if plan.keeps_memory else 0.0,
            first=servers.first,
        )
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
            self.state,
            (lambda orders: RingCoordinator(orders, "", world.hub)) if plan.on_ring else None,
        )
        if plan.spec.trains_in_steps:
            self.gateway.train_in_steps(turns)
        self.archive = Archive(world)
        told = _EventRecorder(world)
        launcher = Launcher(world.cluster, _spec_of)  # type: ignore[arg-type]  # no logs here
        snapshots = Snapshots(
            roster,
            between_steps=between_steps,
            lives=lambda worker: ProcessName.parse(worker) in self.gateway.sessions,
        )
        deps = ExecutorDeps(launcher, fences, snapshots, self.archive, told, told, None)  # type: ignore[arg-type]
        executor = Executor(self.inbox, self.gateway, deps)
        self._driver = Driver(
            _Core(world, self.state),
            world.journal,
            self.inbox,
            self.gateway,
            _InterruptedExecutor(world, executor),  # type: ignore[arg-type]
        )
        self._roster = roster

    async def run(self) -> do.FinishJob:
        plan = self._world.plan
        if self._recovered:
            # As `Master._continue` and `Master._take_over`.
            presence = self.state.presence()
            self.archive.restore_from = presence.restore_from or ""
            self.gateway.restore(presence)
            away_s = self.inbox.at_s() - self.state.now_s
            self.inbox.post(happened.MasterTookOver(self.inbox.at_s(), self.term, away_s))
        else:
            if self.gateway.ring is not None:
                await self.gateway.ring.start("master")
            self.inbox.post(happened.JobStarted(0.0, plan.training, plan.validation))
        finish = await self._driver.run(self._world.cluster.observe())
        self.over = True
        return finish

    def kill(self) -> None:
        """End it where it is."""
        self.dead = True
        self.loop.kill()

    def post(self, event: happened.Event) -> None:
        """Something that a person asks for, or the cluster tells."""
        if not self.over and not self.dead:
            self.loop.call_soon(lambda: None if self.over else self.inbox.post(event))

    def reported(self, name: ProcessName, report: Report) -> None:
        """A report was handled."""
        self._world.truth.reported(name, report)


def _spec_of(name: ProcessName) -> ProcessSpec:
    return ProcessSpec(name, ())
