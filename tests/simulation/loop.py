"""An asyncio event loop on simulated time: the master's own coroutines run on it as they are."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.simulation.scheduler import Scheduler

_MOST_CANCELS = 5


class Loop(asyncio.AbstractEventLoop):
    """One thread of one process: its callbacks run in the order in which they were put in, other
    processes in between.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ready: deque[asyncio.Handle] = deque()
        self._under_way = False
        self.closed = False
        self.dead = False
        """Its process was killed: nothing runs any more."""
        self.tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self._scheduler.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._under_way:
            self._under_way = True
            self._scheduler.ready.append(self._turn)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._scheduler.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduler.after(when - self._scheduler.now_s, lambda: self._due(handle))
        return handle

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled() and not self.dead:
            self._ready.append(handle)
            if not self._under_way:
                self._under_way = True
                self._scheduler.ready.append(self._turn)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its turn finds it cancelled."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message"))
        if not self.closed and not self.dead:
            self._scheduler.fail(error, f"the master's loop: {context.get('message')}")

    def _turn(self) -> None:
        """What is ready now; what that makes ready comes in the next turn."""
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                if self.dead:
                    return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
        if self._ready:
            self._scheduler.ready.append(self._turn)
        else:
            self._under_way = False

    def kill(self) -> None:
        """End where it is: no callback runs any more until all is closed."""
        self.dead = True

    def close(self) -> None:
        """Cancel every task, and let what that does be done."""
        self.closed, self.dead = True, False
        # What waits in a `finally` needs another push.
        for _ in range(_MOST_CANCELS):
            for task in list(self.tasks):
                task.cancel()
            while self._ready:
                self._turn()
