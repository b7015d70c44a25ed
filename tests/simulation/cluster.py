"""A simulated cluster: processes that take a while to come up, are asked to go, are killed,
stopped, and end by themselves.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import (
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
)
from elasticdl.cluster.event_bus import EventBus, ProcessEvent
from tests.simulation.scheduler import Process, Scheduler

KILLED = ExitStatus(signal=int(signal.SIGKILL))


@dataclass(eq=False)
class Running:
    """One process of the job. `drain` is called once, in a thread of it, when it gets SIGTERM."""

    name: ProcessName
    process: Process
    drain: Callable[[], None] | None = None
    asked: bool = False
    exit_code: int | None = None
    terms: list[Callable[[], None]] = field(default_factory=list)


@final
class Cluster:
    """The seam `cluster.base.Cluster`. `main` is what a process does: it returns its exit code."""

    def __init__(self, scheduler: Scheduler, main: Callable[[Running], int]) -> None:
        self._scheduler = scheduler
        self._main = main
        self._board = EventBus()
        self.running: dict[ProcessName, Running] = {}
        self.started: set[ProcessName] = set()
        self.deaths = 0
        """Processes that ended otherwise than of their own will."""

    # What the master asks for

    async def create(self, spec: ProcessSpec) -> None:
        name = spec.name
        if name in self.started:
            return
        self.started.add(name)
        running = Running(name, Process(self._scheduler, str(name)))
        self.running[name] = running
        self._board.post(ProcessObserved(name, running=True, where="here"))
        running.process.at_death.append(lambda: self._ended(running))
        running.process.spawn(lambda: self._run(running), "main")

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        running = self.running.get(name)
        if running is None:
            return
        running.asked = True
        if grace_s <= 0:
            running.process.kill()
            return
        self.term(running)
        self._scheduler.after(grace_s, running.process.kill)

    def observe(self) -> AsyncGenerator[ProcessEvent]:
        return self._board.listen()

    # What happens to processes

    def term(self, running: Running) -> None:
        """SIGTERM."""
        if running.drain is None:
            running.process.kill()
        elif not running.process.dead:
            running.process.spawn(running.drain, "signals")

    def kill(self, running: Running) -> None:
        """SIGKILL that nobody asked for."""
        self.deaths += 1
        running.process.kill()

    def _run(self, running: Running) -> None:
        running.exit_code = self._main(running)
        running.process.kill()

    def _ended(self, running: Running) -> None:
        """Its connections break at once; its exit is seen a little later, and sometimes much
        later.
        """
        del self.running[running.name]
        draw = self._scheduler.random.random()
        delay_s = 0.01 * draw if draw < 0.8 else 3.0 * draw
        self._scheduler.after(delay_s, lambda: self._seen_ended(running))

    def _seen_ended(self, running: Running) -> None:
        code = running.exit_code
        status = (
            ExitStatus(exit_code=code, asked=running.asked)
            if code is not None
            else ExitStatus(signal=9, asked=running.asked)
        )
        self._board.post(ProcessExited(running.name, status))
