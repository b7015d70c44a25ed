"""A cluster in memory, with faults to order.

A real implementation of the seam: it passes the same contract suite.

A process of it runs until somebody ends it: `delete`, or one of the scripted faults. What its
command would have done
is the test's to say.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncGenerator
from typing import final

from elasticdl.cluster.base import (
    CreateRefused,
    ExitFacts,
    LogFile,
    LogPart,
    NoSuchLog,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
)
from elasticdl.cluster.event_bus import EventBus, ProcessEvent

PREEMPTED = ExitFacts(
    exit_code=143, reason="Preempted", conditions=("DisruptionTarget:PreemptionByScheduler",)
)
EVICTED = ExitFacts(signal=15, conditions=("DisruptionTarget:EvictionByEvictionAPI",))
NODE_TAINTED = ExitFacts(signal=15, conditions=("DisruptionTarget:DeletionByTaintManager",))
NODE_LOST = ExitFacts(reason="NodeLost", conditions=("DisruptionTarget:DeletionByTaintManager",))
DELETED = ExitFacts(signal=15, reason="Deleted")
OUT_OF_MEMORY = ExitFacts(signal=9, reason="OOMKilled")
"""Ends as pods of a real cluster have them."""


def no_image(words: str) -> ExitFacts:
    """The end of a process whose image cannot be had, with the registry's words."""
    return ExitFacts(reason="ImagePullFailed", log_tail=words)


def no_program(words: str) -> ExitFacts:
    """The end of a process that could not be started, with the runtime's words."""
    return ExitFacts(exit_code=128, reason="StartError", log_tail=words)


@final
class FakeCluster:
    """Starts nothing, remembers everything. Use it from one event loop.

    `specs` holds what was created, in order, one entry a process that really started.
    """

    def __init__(self) -> None:
        self.specs: dict[ProcessName, ProcessSpec] = {}
        self._bus = EventBus()
        self._refusals: dict[ProcessName | None, deque[CreateRefused]] = {}
        self._pending: dict[ProcessName, str] = {}
        self._doomed: dict[ProcessName | None, deque[ExitFacts]] = {}
        self._fits: int | None = None
        self._no_room = ""
        self._stubborn: set[ProcessName] = set()
        self._lost: set[ProcessName] = set()
        self._said: dict[ProcessName, bytearray] = {}
        self._kill_timers: dict[ProcessName, asyncio.TimerHandle] = {}
        self._closed = False

    @property
    def live(self) -> tuple[ProcessName, ...]:
        """Processes that the cluster believes to be there, in the order of their creation; lost
        ones too.
        """
        return tuple(
            name for name in self.specs if isinstance(self._bus.newest(name), ProcessObserved)
        )

    async def create(self, spec: ProcessSpec) -> None:
        """Start a process; a name that was started before is left as it is.

        Raises CreateRefused as ordered.
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
                # It never runs.
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

    async def delete(self, name: ProcessName, *, grace_s: float) -> None:
        """End a process: at once, or after `grace_s` where it was told to ignore SIGTERM."""
        if name not in self.live or name in self._lost:
            return
        if name not in self._stubborn:
            self._end(name, ExitFacts(signal=int(signal.SIGTERM), asked=True))
            return
        loop = asyncio.get_running_loop()
        timer = self._kill_timers.get(name)
        if timer is None or timer.when() > loop.time() + grace_s:
            self._forget_timer(name)
            self._kill_timers[name] = loop.call_later(
                grace_s, self._end, name, ExitFacts(signal=int(signal.SIGKILL), asked=True)
            )

    def observe(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process, then every ended one, then whatever happens, until closed."""
        return self._bus.listen()

    @property
    def view_age_s(self) -> None:
        """Told at once."""
        return None

    async def logs(self) -> list[LogFile]:
        """What was printed by `say`."""
        return [
            LogFile(str(name), len(text), name in self.live) for name, text in self._said.items()
        ]

    async def read_log(self, process: str, start: int, limit_bytes: int) -> LogPart:
        """See Cluster."""
        said = {str(name): text for name, text in self._said.items()}
        if process not in said:
            raise NoSuchLog(
                f"there is no log of {process!r}; there are {', '.join(said) or 'none yet'}"
            )
        text = said[process]
        begin = min(len(text), start) if start >= 0 else max(0, len(text) + start)
        return LogPart(begin, bytes(text[begin : begin + limit_bytes]), len(text))

    async def close(self) -> None:
        """End everything at once."""
        self._closed = True
        for name in self.live:
            self._end(name, ExitFacts(signal=int(signal.SIGKILL), asked=True))
        self._bus.close()

    # Faults to order.

    def refuse(
        self, reason: str, *, retry: bool, name: ProcessName | None = None, times: int = 1
    ) -> None:
        """Refuse the next `times` creations of `name`, or of anything."""
        refusals = self._refusals.setdefault(name, deque())
        refusals.extend(CreateRefused(reason, retry=retry) for _ in range(times))

    def quota(self, processes: int | None, reason: str = "") -> None:
        """Refuse what would make more than so many live processes, for `reason`; None lifts it."""
        self._fits, self._no_room = processes, reason

    def doom(self, facts: ExitFacts, *, name: ProcessName | None = None, times: int = 1) -> None:
        """Have the next `times` processes of that name, or of any, end in this way before they
        run.
        """
        self._doomed.setdefault(name, deque()).extend([facts] * times)

    def hold(self, name: ProcessName, waiting_for: str) -> None:
        """When created, the process will be there but not run, until `place`."""
        self._pending[name] = waiting_for

    def place(self, name: ProcessName, where: str = "fake") -> None:
        """A held process runs now."""
        self._pending.pop(name, None)
        self._bus.post(ProcessObserved(name, running=True, where=where))

    def ignore_sigterm(self, name: ProcessName) -> None:
        """Let `delete` have to wait for its grace."""
        self._stubborn.add(name)

    def say(self, name: ProcessName, data: bytes) -> None:
        """The process prints something."""
        self._said.setdefault(name, bytearray()).extend(data)

    def exit(self, name: ProcessName, facts: ExitFacts) -> None:
        """The process ends now, in this way. Raises KeyError if it does not live."""
        if name not in self.live:
            raise KeyError(
                f"{name} is not live; live are {', '.join(map(str, self.live)) or 'none'}"
            )
        self._end(name, facts)

    def kill(self, name: ProcessName) -> None:
        """`kill -9`."""
        self.exit(name, ExitFacts(signal=int(signal.SIGKILL)))

    def preempt(self, name: ProcessName) -> None:
        """A scheduler gives its place to somebody else."""
        self.exit(name, PREEMPTED)

    def lose_node(self, name: ProcessName) -> None:
        """Its machine falls silent: nothing is told, and `delete` does nothing, until
        `notice_loss`.
        """
        self._lost.add(name)

    def notice_loss(self, name: ProcessName) -> None:
        """The platform gives the lost machine up."""
        self._lost.discard(name)
        self.exit(name, NODE_LOST)

    def repeat(self, name: ProcessName) -> None:
        """Tell the newest event of a process once more: events come at least once."""
        event = self._bus.newest(name)
        if event is not None:
            self._bus.post(event)

    def _end(self, name: ProcessName, facts: ExitFacts) -> None:
        self._forget_timer(name)
        self._bus.post(ProcessExited(name, facts))

    def _forget_timer(self, name: ProcessName) -> None:
        timer = self._kill_timers.pop(name, None)
        if timer is not None:
            timer.cancel()
