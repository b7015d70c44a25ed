"""Simulated time, and one seeded scheduler that decides who runs next.

Everything in a simulated job runs in one thread: simulated threads are greenlets, which give way
only where a real thread
could wait. Time jumps to the next timer when nobody is ready. The order in which those that are
ready run is drawn from the
seed, so a seed replays exactly.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

from greenlet import GreenletExit, getcurrent, greenlet

_MOST_TURNS_AT_ONE_TIME = 200_000


class Violation(AssertionError):
    """The simulated job did what no job may do."""


@final
class Process:
    """What simulated threads belong to: they end together, and stand still together while it is
    stopped (SIGSTOP).
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.dead = False
        self.stopped = False
        self.slowness = 1.0
        """How many times longer its own work takes."""
        self.at_go_on: list[Callable[[], None]] = []
        """What comes to it while it is stopped."""
        self.held: list[Task] = []
        """Those that would run if the process were not stopped."""
        self.tasks: list[Task] = []
        self.at_death: list[Callable[[], None]] = []

    def spawn(self, run: Callable[[], object], name: str) -> Task:
        """Begin another simulated thread."""
        task = Task(self, run, name)
        self.tasks.append(task)
        self.scheduler.ready.append(task)
        return task

    def stop(self) -> None:
        """As SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """As SIGCONT."""
        self.stopped = False
        self.scheduler.ready.extend(self.held)
        self.held.clear()
        waiting, self.at_go_on = self.at_go_on, []
        for call in waiting:
            call()

    def kill(self) -> None:
        """End all its threads where they are. They run no further, but for what unwinds them."""
        if self.dead:
            return
        self.dead = True
        self.scheduler.ready.append(self._reap)

    def _reap(self) -> None:
        for call in self.at_death:
            call()
        for task in self.tasks:
            task.throw()
        self.tasks.clear()


@final
class Task:
    """A simulated thread."""

    __slots__ = (
        "done",
        "greenlet",
        "joiners",
        "name",
        "parked",
        "process",
        "scheduler",
        "token",
        "woken",
    )

    def __init__(self, process: Process, run: Callable[[], object], name: str) -> None:
        self.process = process
        self.scheduler = process.scheduler
        self.name = name
        self.parked = False
        self.woken = False
        self.token = 0
        self.done = False
        self.joiners: list[Task] = []
        self.greenlet = greenlet(lambda: self._run(run), self.scheduler.hub)

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except GreenletExit:
            pass
        except Exception as error:  # noqa: BLE001 - the top of a simulated thread: the run ends with it
            if not self.process.dead:
                self.scheduler.fail(error, f"{self.process.name}, thread {self.name}")
        finally:
            self.done = True
            for joiner in self.joiners:
                self.scheduler.wake(joiner)

    def throw(self) -> None:
        """Unwind it; called by the hub."""
        if self.greenlet.dead:
            return
        before, self.scheduler.current = self.scheduler.current, self
        try:
            self.greenlet.throw()
        finally:
            self.scheduler.current = before

    def stack(self) -> str:
        """Where it is."""
        frame = self.greenlet.gr_frame
        steps = traceback.extract_stack(frame)[-8:] if frame is not None else []
        inner = " < ".join(
            f"{Path(step.filename).stem}:{step.lineno} {step.name}" for step in reversed(steps)
        )
        return f"  {self.process.name}, {self.name}: {inner or 'not running'}"


Item: TypeAlias = Task | Callable[[], Any]


@final
class Scheduler:
    """The clock and the one loop.

    `gives_way`: how often a thread lets others run where it takes or gives a lock.
    """

    def __init__(self, seed: object, *, gives_way: float = 0.1) -> None:
        self.random = random.Random(f"scheduler {seed}")
        self.gives_way = gives_way
        self.now_s = 0.0
        self.turns = 0
        self.ready: list[Item] = []
        self.over = False
        self.current: Task | None = None
        self.hub = getcurrent()
        self.failure: BaseException | None = None
        self._timers: list[tuple[float, int, Item, int]] = []
        self._numbers = itertools.count()

    # From the hub and from threads

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        """Call this, in the hub, after so long."""
        heapq.heappush(self._timers, (self.now_s + seconds, next(self._numbers), call, 0))

    def soon(self, call: Callable[[], Any]) -> None:
        """Call this, in the hub, now or a little later."""
        self.ready.append(call)

    def wake(self, task: Task) -> bool:
        """Let a thread go on that is parked; False if it is not."""
        if not task.parked:
            return False
        task.parked, task.woken = False, True
        self.ready.append(task)
        return True

    def fail(self, error: BaseException, where: str = "") -> None:
        """End the run with this error."""
        if self.failure is None:
            self.failure = error
            if where:
                error.add_note(where)
        self.over = True

    # From threads

    def park(self, seconds: float | None = None) -> bool:
        """Wait until woken, or for so long; True if woken."""
        task = self.current
        assert task is not None, "only a simulated thread can wait"
        if task.process.dead:
            raise GreenletExit
        task.parked, task.woken = True, False
        task.token += 1
        if seconds is not None:
            heapq.heappush(
                self._timers,
                (self.now_s + max(0.0, seconds), next(self._numbers), task, task.token),
            )
        self.hub.switch()
        if task.process.dead:
            raise GreenletExit
        return task.woken

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""
        self.park(seconds)

    def work(self, seconds: float) -> None:
        """Let a process work for so long, or longer if it is slow."""
        assert self.current is not None
        self.park(seconds * self.current.process.slowness)

    def give_way(self) -> None:
        """Now and then let others run."""
        task = self.current
        if task is not None and self.gives_way and self.random.random() < self.gives_way:
            if task.process.dead:
                raise GreenletExit
            self.ready.append(task)
            self.hub.switch()
            if task.process.dead:
                raise GreenletExit

    # The loop

    def run(self) -> None:
        """Until `over`. Raises what failed, and Violation if nobody can ever go on."""
        ready, timers, draw = self.ready, self._timers, self.random.random
        turns_then = 0
        while not self.over:
            if ready:
                count = len(ready)
                at = int(draw() * count) if count > 1 else 0
                item = ready[at]
                ready[at] = ready[-1]
                ready.pop()
                self.turns += 1
                if self.turns - turns_then > _MOST_TURNS_AT_ONE_TIME:
                    raise Violation(
                        f"{_MOST_TURNS_AT_ONE_TIME} turns, and no time passes; now it is {item!r}"
                    )
                if type(item) is Task:
                    self._resume(item)
                else:
                    item()
            elif timers:
                when_s, _, item, token = heapq.heappop(timers)
                if type(item) is Task and (not item.parked or item.token != token):
                    continue
                self.now_s = max(self.now_s, when_s)
                turns_then = self.turns
                if type(item) is Task:
                    item.parked = False
                    self._resume(item)
                else:
                    item()
            else:
                raise Violation("everybody waits, and nothing will ever happen")
        if self.failure is not None:
            raise self.failure

    def _resume(self, task: Task) -> None:
        process = task.process
        if process.stopped and not process.dead:
            process.held.append(task)
            return
        if task.greenlet.dead or (process.dead and not task.greenlet):
            return
        self.current = task
        task.greenlet.switch()
        self.current = None
