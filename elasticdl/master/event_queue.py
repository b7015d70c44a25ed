"""The queue of events, the job's clock, and the driver's tasks, whose errors surface here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, final

from elasticdl.clock import Clock
from elasticdl.master.core.events import Event

_BATCH = 500


@dataclass(frozen=True, slots=True)
class QueuedEvent:
    """An event, and the future of its poster."""

    event: Event
    handled: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Crash:
    task: str
    error: BaseException


@final
class EventQueue:
    """Events in order of arrival. Use it from one event loop."""

    def __init__(self, clock: Clock, began_s: float = 0.0) -> None:
        """`began_s` is the newest `at_s` of the journal; the job's time continues from there."""
        self.clock = clock
        self._origin_s = clock.now_s() - began_s
        self._queue: asyncio.Queue[QueuedEvent | _Crash] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def at_s(self) -> float:
        """Return the job's time, for events."""
        return self.clock.now_s() - self._origin_s

    def post(self, event: Event) -> asyncio.Future[None]:
        """Post an event.

        The future completes when the event is on disk and handled, and its commands have started.
        It is cancelled if the job ends before.
        """
        entry = QueuedEvent(event, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(entry)
        return entry.handled

    def spawn(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the loop. An exception in it is a bug and ends the master visibly."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        # The loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def take(self) -> list[QueuedEvent]:
        """Return at least one event, and all others that wait: they share one disk write.

        Raises the error of a failed task.
        """
        entries: list[QueuedEvent] = []
        item = await self._queue.get()
        while True:
            if isinstance(item, _Crash):
                raise RuntimeError(f"{item.task} failed: {item.error!r}") from item.error
            entries.append(item)
            # Bounded, so that answers do not wait for a long batch.
            if self._queue.empty() or len(entries) >= _BATCH:
                return entries
            item = self._queue.get_nowait()

    async def close(self) -> None:
        """Cancel all tasks and waits."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, QueuedEvent):
                # Callers wait for these events; without an answer they would hang.
                item.handled.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Through the queue, so that the loop raises it in its own context.
            self._queue.put_nowait(_Crash(task.get_name(), error))
