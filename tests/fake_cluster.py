"""A cluster in memory, with faults on demand.

It is a real implementation of the protocol and passes the same contract suite. Its processes run
until `delete` or a scripted fault ends them. The test decides what their commands would do.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncGenerator
from typing import final

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
)
from elasticdl.cluster.event_bus import EventBus, ProcessEvent

PREEMPTED = ExitStatus(
    exit_code=143, reason="Preempted", conditions=("DisruptionTarget:PreemptionByScheduler",)
)
EVICTED = ExitStatus(signal=15, conditions=("DisruptionTarget:EvictionByEvictionAPI",))
NODE_TAINTED = ExitStatus(signal=15, conditions=("DisruptionTarget:DeletionByTaintManager",))
NODE_LOST = ExitStatus(reason="NodeLost", conditions=("DisruptionTarget:DeletionByTaintManager",))
DELETED = ExitStatus(signal=15, reason="Deleted")
OUT_OF_MEMORY = ExitStatus(signal=9, reason="OOMKilled")
"""Exits as pods of a real cluster have them."""


def no_image(message: str) -> ExitStatus:
    """The end of a process whose image cannot be pulled, with the registry's message."""
    return ExitStatus(reason="ImagePullFailed", log_tail=message)


def no_program(message: str) -> ExitStatus:
    """The end of a process that cannot be started, with the runtime's message."""
    return ExitStatus(exit_code=128, reason="StartError", log_tail=message)


@final
class FakeCluster:
    """Starts nothing and records everything. Use it from one event loop.

    `specs` has one entry for each process that really started, in order of creation.
    """

    def __init__(self) -> None:
        self.specs: dict[ProcessName, ProcessSpec] = {}
        self._bus = EventBus()
        self._refusals: dict[ProcessName | None, deque[CreateRefused]] = {}
        self._pending: dict[ProcessName, str] = {}
        self._doomed: dict[ProcessName | None, deque[ExitStatus]] = {}
        self._fits: int | None = None
        self._no_room = ""
        self._stubborn: set[ProcessName] = set()
        self._lost: set[ProcessName] = set()
        self._kill_timers: dict[ProcessName, asyncio.TimerHandle] = {}
        self._closed = False

    @property
    def live(self) -> tuple[ProcessName, ...]:
        """Processes that the cluster believes to exist, in order of creation; lost ones, too."""
        return tuple(
            name for name in self.specs if isinstance(self._bus.newest(name), ProcessObserved)
        )

    async def create(self, spec: ProcessSpec) -> None:
        """Start a process, unless the name was started before.

        Raises CreateRefused as scripted.
        """
        if self._closed:
            raise CreateRefused("the fake cluster is closed", retry=False)
        if spec.name in self.specs:
            return
        for key in (spec.name, None):
            if self._refusals.get(key):
                raise self._refusals[key].popleft()
        if self._fits is not None and len(self.live) >= self._fits:
            raise CreateRefused(self._no_room, retry=True)
        self.specs[spec.name] = spec
        for key in (spec.name, None):
            if self._doomed.get(key):
                # The process never runs.
                self._end(spec.name, self._doomed[key].popleft())
                return
        waiting_for = self._pending.get(spec.name, "")
        self._bus.post(
            ProcessObserved(
                spec.name,
                running=not waiting_for,
                where="" if waiting_for else "fake",
                waiting_for=waiting_for,
            )
        )

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        """End a process at once, or after `grace_s` if it ignores SIGTERM."""
        if name not in self.live or name in self._lost:
            return
        if name not in self._stubborn:
            self._end(name, ExitStatus(signal=int(signal.SIGTERM), asked=True))
            return
        loop = asyncio.get_running_loop()
        timer = self._kill_timers.get(name)
        if timer is None or timer.when() > loop.time() + grace_s:
            self._forget_timer(name)
            self._kill_timers[name] = loop.call_later(
                grace_s, self._end, name, ExitStatus(signal=int(signal.SIGKILL), asked=True)
            )

    def observe(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process, then every ended one, then all events, until closed."""
        return self._bus.listen()

    @property
    def view_age_s(self) -> None:
        """The view is always current."""
        return None

    async def close(self) -> None:
        """End everything at once."""
        self._closed = True
        for name in self.live:
            self._end(name, ExitStatus(signal=int(signal.SIGKILL), asked=True))
        self._bus.close()

    # Faults on demand.

    def refuse(
        self, reason: str, *, retry: bool, name: ProcessName | None = None, times: int = 1
    ) -> None:
        """Refuse the next `times` creations of `name`, or of any process."""
        refusals = self._refusals.setdefault(name, deque())
        refusals.extend(CreateRefused(reason, retry=retry) for _ in range(times))

    def quota(self, processes: int | None, reason: str = "") -> None:
        """Refuse, for `reason`, more than this many live processes; None lifts the limit."""
        self._fits, self._no_room = processes, reason

    def doom(self, status: ExitStatus, *, name: ProcessName | None = None, times: int = 1) -> None:
        """Make the next `times` processes of that name, or of any, end so before they run."""
        self._doomed.setdefault(name, deque()).extend([status] * times)

    def hold(self, name: ProcessName, waiting_for: str) -> None:
        """When created, the process exists but does not run until `place`."""
        self._pending[name] = waiting_for

    def place(self, name: ProcessName, where: str = "fake") -> None:
        """Let a held process run."""
        self._pending.pop(name, None)
        self._bus.post(ProcessObserved(name, running=True, where=where))

    def ignore_sigterm(self, name: ProcessName) -> None:
        """Make the process ignore SIGTERM, so that `delete` takes its whole grace."""
        self._stubborn.add(name)

    def exit(self, name: ProcessName, status: ExitStatus) -> None:
        """End the process in this way. Raises KeyError if it is not live."""
        if name not in self.live:
            raise KeyError(f"{name} is not live; live: {', '.join(map(str, self.live)) or 'none'}")
        self._end(name, status)

    def kill(self, name: ProcessName) -> None:
        """End the process as `kill -9` does."""
        self.exit(name, ExitStatus(signal=int(signal.SIGKILL)))

    def preempt(self, name: ProcessName) -> None:
        """End the process as a scheduler's preemption does."""
        self.exit(name, PREEMPTED)

    def lose_node(self, name: ProcessName) -> None:
        """Silence its machine: no event comes, and `delete` has no effect, until `notice_loss`."""
        self._lost.add(name)

    def notice_loss(self, name: ProcessName) -> None:
        """Let the platform give up the lost machine."""
        self._lost.discard(name)
        self.exit(name, NODE_LOST)

    def repeat(self, name: ProcessName) -> None:
        """Send the latest event of a process again: events arrive at least once."""
        event = self._bus.newest(name)
        if event is not None:
            self._bus.post(event)

    def _end(self, name: ProcessName, status: ExitStatus) -> None:
        self._forget_timer(name)
        self._bus.post(ProcessExited(name, status))

    def _forget_timer(self, name: ProcessName) -> None:
        timer = self._kill_timers.pop(name, None)
        if timer is not None:
            timer.cancel()
