"""The latest event of every process, for the listeners of the local cluster.

Everything runs on one event loop; there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Final, TypeAlias, final

from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessObserved

ProcessEvent: TypeAlias = ProcessObserved | ProcessExited
MOST_TAILS: Final = 200
"""Ends whose last lines are kept: a job may start tens of thousands of processes."""


@final
class EventBus:
    """Sends the latest event of each process to every listener.

    Ended processes remain, so that a late listener still learns how they ended.
    """

    def __init__(self) -> None:
        self._newest: dict[ProcessName, ProcessEvent] = {}
        self._listeners: dict[asyncio.Queue[ProcessEvent | None], None] = {}
        """In the order in which they began to listen."""
        self._with_tail: deque[ProcessExited] = deque()
        self._closed = False

    def __contains__(self, name: ProcessName) -> bool:
        return name in self._newest

    def newest(self, name: ProcessName) -> ProcessEvent | None:
        """The latest event of a process; None if it never existed."""
        return self._newest.get(name)

    def post(self, event: ProcessEvent) -> None:
        """Send an event to all present and future listeners."""
        self._newest[event.name] = event
        if isinstance(event, ProcessExited) and event.exit_status.log_tail:
            self._keep_tail(event)
        for queue in self._listeners:
            queue.put_nowait(event)

    def _keep_tail(self, event: ProcessExited) -> None:
        self._with_tail.append(event)
        if len(self._with_tail) > MOST_TAILS:
            old = self._with_tail.popleft()
            if self._newest[old.name] is old:
                status = replace(old.exit_status, log_tail="")
                self._newest[old.name] = replace(old, exit_status=status)

    def close(self) -> None:
        """End every listener's iteration after all posted events."""
        self._closed = True
        for queue in self._listeners:
            queue.put_nowait(None)

    async def listen(self) -> AsyncGenerator[ProcessEvent]:
        """Every live process, then every ended one, then all events, until closed."""
        queue: asyncio.Queue[ProcessEvent | None] = asyncio.Queue()
        for event in sorted(
            self._newest.values(), key=lambda known: isinstance(known, ProcessExited)
        ):
            # Without an await until the listener is registered: no event can get lost in between.
            queue.put_nowait(event)
        if self._closed:
            queue.put_nowait(None)
        self._listeners[queue] = None
        try:
            while (event_or_end := await queue.get()) is not None:
                yield event_or_end
        finally:
            del self._listeners[queue]
