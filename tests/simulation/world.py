"""One simulated job from its seed to its end."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from tests.simulation import servers, threads, workers
from tests.simulation.cluster import Cluster, Running
from tests.simulation.master import Journal, Master
from tests.simulation.network import Client, Network
from tests.simulation.rings import Disk, Hub
from tests.simulation.scheduler import Process, Scheduler, Violation
from tests.simulation.truth import Truth
from tests.simulation.workers import SimulatedWorker
from tests.simulation.workload import Fault, Plan, plan_of

CALM_LIMIT_S = 90.0
FAULTS_LIMIT_S = 120.0
"""Without progress. The master announces a stall before."""
STRAGGLERS_LIMIT_S = 1000.0
"""Code of the only worker may take ten minutes, and a slow one reports a shard at its end only."""
_LONGEST_S = 7200.0
_LOOK_S = 5.0
LATE_PHASES = ("evaluating", "checkpointing", "exporting", "ending")


class Killed(BaseException):
    """The master is killed here: nothing after this runs."""


@dataclass(slots=True)
class _Tear:
    """The master is killed when it comes to that stage of its work for the time after `left`."""

    stage: str
    left: int
    away_s: float
    phase: str = ""
    """Only in that phase of the job; '': in any."""


@final
class World:
    """Everything of one job."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan.number, gives_way=plan.gives_way)
        threads.use(self.scheduler)
        self.network = Network(self.scheduler, plan.weather)
        self.hub = Hub(self.scheduler, self.network.latency_s, self.stepped)
        self.disk = Disk()
        self.truth = Truth(self)
        self.servers: dict[str, servers.Server] = {}
        self.memories: dict[int, servers.Server] = {}
        """By index, the server that ended and whose memory its next process finds."""
        self.memory_numbers = itertools.count(1)
        self.draws_memories = random.Random(f"memories {plan.number}")
        self.workers: dict[ProcessName, SimulatedWorker] = {}
        self.told: list[tuple[float, str]] = []
        self.steps = 0
        self.push_tears: list[float | None] = []
        """The next push comes to one server at once, and to the others late; after so many seconds
        its worker is killed.
        """
        self.hangs = 0
        """So many calls of `feed` do not return."""
        self.finish: do.FinishJob | None = None
        self.numbers = itertools.count(1)
        """Of checkpoints, over all masters."""
        self.clients: list[Client] = []
        self.journal = Journal(self)
        self.draws_images = random.Random(f"images {plan.number}")
        self.server_tears: list[None] = []
        """The next servers that are told to apply a step are killed before they do."""
        self.master_tears: list[_Tear] = []
        """Moments at which the master is to be killed."""
        self._masters: list[Master] = []
        self.cluster = Cluster(self.scheduler, self._main)
        self.master = Master(self)

    def run(self) -> None:
        """Raises Violation, or whatever went wrong, with what is known of it."""
        self._run_master()
        self._after_steps(0)
        for fault in self.plan.faults:
            if fault.after_steps is None:
                self.scheduler.after(fault.at_s, partial(self._strike, fault))
        self.scheduler.after(_LOOK_S, self._look)
        try:
            self.scheduler.run()
            self.truth.check_end()
        except BaseException as error:
            error.add_note(self.story())
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Unwind everything: nothing is left of it."""
        self.master.over = True
        for master in self._masters:
            master.over = True
        self.scheduler.gives_way = 0.0
        for running in list(self.cluster.running.values()):
            running.process.dead = True
            for task in running.process.tasks:
                task.throw()
        for master in (*self._masters, self.master):
            master.loop.close()

    def story(self) -> str:
        """For people, of a run that went wrong."""
        told = "\n".join(f"{at_s:9.3f} {text}" for at_s, text in self.told[-25:])
        stacks = "\n".join(
            task.stack()
            for running in self.cluster.running.values()
            for task in running.process.tasks
            if not task.done and task.name not in ("exit", "watch", "reporter")
        )
        status = self.master.state.status()
        state = f"{status.phase}, waiting for {status.waiting}, {status.records}, {status.ring}"
        return f"{self.plan}\n{told}\nat {self.scheduler.now_s:.3f} s: {state}\n{stacks}"

    # What processes are made of

    def client(self, running: Running) -> Client:
        client = Client(running.process, running.name, self.network, lambda: self.master)
        self.clients.append(client)
        running.process.at_death.append(lambda: self.clients.remove(client))
        return client

    def parameters(self, running: Running) -> Any:
        if self.plan.on_ring:
            return SimpleNamespace(move=lambda servers: None)
        return servers.Parameters(self, running)

    def _main(self, running: Running) -> int:
        return (
            servers.main(self, running)
            if running.name.role is Role.PS
            else workers.main(self, running)
        )

    # Masters

    def _run_master(self) -> None:
        master = self.master
        running = master.loop.create_task(master.run())
        running.add_done_callback(lambda _: self._ended(running))

    def at_moment(self, stage: str) -> None:
        """The master is at such a point of its work. Raises Killed if it is to be killed there."""
        for tear in self.master_tears:
            if tear.stage == stage and tear.phase in ("", self.master.state.status().phase):
                tear.left -= 1
                if tear.left < 0:
                    self.master_tears.remove(tear)
                    self.kill_master(tear.away_s)
                    raise Killed

    def kill_master(self, away_s: float) -> None:
        """SIGKILL; the next one runs `away_s` later."""
        if self.master.dead or self.master.over:
            return
        # What its coroutines would do at their end must not be done: they are kept to the end.
        self._masters.append(self.master)
        self.master.kill()
        for client in list(self.clients):
            client.master_died()
        self.hub.withdraw_all()
        self.scheduler.after(away_s, self._next_master)

    def _next_master(self) -> None:
        self.master = Master(self, self.master.term + 1, self.journal.recovered())
        self.truth.progress_s = self.scheduler.now_s
        self._run_master()

    # Time

    def _ended(self, running: Any) -> None:
        if self.master.dead:
            return
        if not running.cancelled() and running.exception() is not None:
            self.scheduler.fail(running.exception())
        self.scheduler.over = True

    def _look(self) -> None:
        """Whether anything moves."""
        limit_s = FAULTS_LIMIT_S if self.plan.faults else CALM_LIMIT_S
        longest_s = _LONGEST_S
        if any(fault.kind in ("hang", "slow") for fault in self.plan.faults):
            # The only worker may be slow for the whole of a large job.
            limit_s, longest_s = STRAGGLERS_LIMIT_S, 10 * _LONGEST_S
        now_s = self.scheduler.now_s
        # The master waits longer if the job was quiet for long before.
        stalls = self.master.state._parts.stalls
        limit_s += stalls.bound_s - stalls._least_s
        if now_s - self.truth.progress_s > limit_s or now_s > longest_s:
            raise Violation(self.truth.stands_still())
        self.scheduler.after(_LOOK_S, self._look)

    # Faults

    def may_hang(self) -> None:
        """Called in user code: it hangs if that is due."""
        if self.hangs:
            self.hangs -= 1
            while True:
                self.scheduler.sleep(_LONGEST_S)

    def stepped(self) -> None:
        """A step was done, somewhere."""
        self.steps += 1
        self._after_steps(self.steps)

    def _after_steps(self, steps: int) -> None:
        for fault in self.plan.faults:
            if fault.after_steps == steps:
                self.scheduler.after(fault.at_s, partial(self._strike, fault))

    def kill(self, process: Process) -> None:
        for running in list(self.cluster.running.values()):
            if running.process is process and not process.dead:
                self.cluster.kill(running)

    def _strike_master(self, fault: Fault) -> None:
        stage = ("flush", "act", "command")[int(fault.draw * 3)]
        match fault.kind:
            case "kill master":
                self.kill_master(fault.away_s)
            case "kill master in its work":
                self.master_tears.append(_Tear(stage, int(fault.seconds * 3), fault.away_s))
            case "kill master in a step":
                self.master_tears.append(_Tear("step", int(fault.draw * 5), fault.away_s))
            case "kill master in a phase":
                phase = LATE_PHASES[int(fault.draw * 100) % len(LATE_PHASES)]
                tear = _Tear(stage, int(fault.seconds) % 4, fault.away_s, phase)
                self.master_tears.append(tear)
            case _:
                raise AssertionError(f"nobody knows {fault}")

    def _strike(self, fault: Fault) -> None:
        if fault.kind.startswith("kill master"):
            self._strike_master(fault)
            return
        if fault.kind == "kill server in a step":
            self.server_tears.append(None)
            return
        if fault.kind == "damage":
            listed = [checkpoint.path for checkpoint in self.master.state.status().checkpoints]
            self.disk.damage_newest(listed, int(fault.draw * self.plan.servers))
            return
        role = Role.PS if fault.kind.endswith("server") else Role.WORKER
        there = sorted(
            name
            for name, one in self.cluster.running.items()
            if name.role is role and not one.process.dead
        )
        at_s = self.scheduler.now_s
        match fault.kind:
            case "scale":
                low = 1 + int(fault.draw * 3)
                self.master.post(happened.ScaleRequested(at_s, low, low + int(fault.seconds) % 2))
                return
            case "resize":
                self.master.post(happened.ScaleServersRequested(at_s, 1 + int(fault.draw * 4)))
                return
            case "stop job":
                self.master.post(happened.StopRequested(at_s, "enough"))
                return
            case "kill in a push":
                self.push_tears.append(0.5 * fault.draw)
                return
            case "slow push":
                self.push_tears.append(None)
                return
            case "hang":
                self.hangs += 1
                return
            case "break ring":
                self.hub.break_newest()
                return
            case "checkpoint":
                self.master.post(happened.CheckpointRequested(at_s))
                return
            case "kill in a step" | "kill in a hand-over" | "kill in a meeting":
                kind = {"step": "step", "hand-over": "piece", "meeting": "gather"}[
                    fault.kind.removeprefix("kill in a ")
                ]
                self.hub.tears.append((kind, 0.1 * fault.draw**2, self.kill))
                return
        if not there:
            return
        name = there[int(fault.draw * len(there))]
        running = self.cluster.running[name]
        match fault.kind:
            case "kill" | "kill server":
                self.cluster.kill(running)
            case "drain":
                self.cluster.term(running)
            case "end early":
                self.master.post(
                    happened.WorkerStopRequested(at_s, name, "a callback requested it")
                )
            case "replace":
                self.master.post(happened.ReplaceRequested(at_s, name))
            case "stop" | "stop server":
                running.process.stop()
                self.scheduler.after(fault.seconds, running.process.go_on)
            case "slow" | "slow server":
                running.process.slowness = 2.0 * fault.seconds
            case _:
                raise AssertionError(f"nobody knows {fault}")


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that ended well."""

    simulated_s: float
    turns: int
    steps: int


@contextmanager
def simulation() -> Iterator[None]:
    """Jobs can be simulated in here; nothing is logged."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with threads.in_place_of_real_ones():
            yield
    finally:
        logging.disable(before)


def simulate(seed: int, strategy: str) -> Ran:
    """Run the job of this seed. Raises Violation with its story. Only within `simulation()`."""
    return simulate_plan(plan_of(seed, strategy))


def simulate_plan(plan: Plan) -> Ran:
    """The same for a job that is known already."""
    world = World(plan)
    disk, barriers = world.disk, workers_disk()
    before, barriers.ring_file = barriers.ring_file, disk
    # The master draws its pauses between tries from this one.
    drawn = random.getstate()
    random.seed(f"{plan.strategy} {plan.number}")
    try:
        world.run()
    finally:
        barriers.ring_file = before
        random.setstate(drawn)
        threads.use(None)
    return Ran(world.scheduler.now_s, world.scheduler.turns, world.hub.newest.version)


def workers_disk() -> Any:
    """The module of the workers that writes copies of weights."""
    from elasticdl.worker.ring import barriers

    return barriers
