"""The cluster of a local job's master: its processes are children of the supervisor."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import CreateRefused, ExitStatus, ProcessName, ProcessSpec
from elasticdl.cluster.event_bus import EventBus, ProcessEvent
from elasticdl.cluster.local.supervisor.link import SupervisorLink
from elasticdl.cluster.local.supervisor.messages import (
    Message,
    error_of,
    event_of,
    spec_plain,
    status_of,
)

_GONE = "the supervisor of the job has ended"


@final
@dataclass(slots=True)
class ProcessBeside:
    """A process that no observer sees. `status` is None until it has ended."""

    pid: int = 0
    status: ExitStatus | None = None


@final
class SupervisedCluster:
    """The `Cluster` whose processes the supervisor runs. Use it from one event loop."""

    def __init__(
        self, link: SupervisorLink, signalled: Callable[[int], object] = signal.raise_signal
    ) -> None:
        """`signalled` gets the signals that the supervisor passes on."""
        self._channel, early = link.channel()
        self._signalled = signalled
        self._bus = EventBus()
        self._asked = 0
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._beside: dict[int, ProcessBeside] = {}
        self._observing = self._closed = self._gone = False
        for message in early:
            self._take(message)
        self._receiving = asyncio.ensure_future(self._receive())

    async def end_predecessors_processes(self) -> None:
        """Kill all processes that an earlier master left, and forget their names."""
        await self._ask("clear")

    async def create(self, spec: ProcessSpec) -> None:
        if self._closed:
            raise CreateRefused("the local cluster is closed", retry=False)
        await self._ask("create", {"spec": spec_plain(spec)})

    async def delete(self, name: ProcessName, *, grace_s: float, for_good: bool = False) -> None:
        await self._ask("delete", {"name": str(name), "grace_s": grace_s, "for_good": for_good})

    @asynccontextmanager
    async def beside(
        self, spec: ProcessSpec, standard: Sequence[int]
    ) -> AsyncIterator[ProcessBeside]:
        """Run a process that no observer sees, with these stdin, stdout and stderr.

        It is killed with its group at the end of the block, or of this process. Its number is its
        own until then. Raises CreateRefused, OSError.
        """
        number = self._asked + 1
        process = self._beside[number] = ProcessBeside()
        try:
            answer = await self._ask("beside", {"spec": spec_plain(spec)}, standard)
            process.pid = answer["pid"]
            yield process
        finally:
            del self._beside[number]
            with suppress(CreateRefused):
                await self._ask("release", {"of": number})

    def progressed(self, records: int) -> None:
        """Tell the supervisor how many records the job has done."""
        self._channel.send({"progress": records})

    def observe(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process first, then every ended one, then all events, until closed.

        Those that ended while the job had no master are among them.
        """
        if not self._observing:
            self._observing = True
            self._channel.send({"observe": True})
        return self._bus.listen()

    @property
    def view_age_s(self) -> None:
        """The view is always current: the supervisor tells at once."""
        return None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(CreateRefused):
                await self._ask("close")
        await self.leave()

    async def leave(self) -> None:
        """End the connection; the processes stay for the next master."""
        self._closed = True
        self._channel.close()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def _ask(
        self, what: str, more: Message | None = None, descriptors: Sequence[int] = ()
    ) -> Message:
        """Send a request and return its answer; raise its error.

        Unbounded on purpose: to create a process may take minutes, and the supervisor's end is
        this process's, too.
        """
        if self._gone:
            raise CreateRefused(_GONE, retry=False)
        self._asked += 1
        answer = self._answers[self._asked] = asyncio.get_running_loop().create_future()
        request = {"id": self._asked, "do": what, **(more or {})}
        self._channel.send(request, descriptors)
        try:
            answered: Message = await answer
        finally:
            del self._answers[request["id"]]
        if (error := error_of(answered)) is not None:
            raise error
        return answered

    async def _receive(self) -> None:
        try:
            while (received := await self._channel.receive()) is not None:
                self._take(received.message)
        finally:
            self._gone = True
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(CreateRefused(_GONE, retry=False))
            self._bus.close()

    def _take(self, message: Message) -> None:
        match message:
            case {"event": event}:
                self._bus.post(event_of(event))
            case {"signal": int(number)}:
                self._signalled(number)
            case {"ended": int(number), "status": status}:
                if (process := self._beside.get(number)) is not None:
                    process.status = status_of(status)
            case {"id": int(number)} if (answer := self._answers.get(number)) is not None:
                if not answer.done():
                    answer.set_result(message)
            case _:
                pass  # The answer to a request that was cancelled.
