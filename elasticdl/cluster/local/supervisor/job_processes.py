"""The workers and servers of a job, which outlive its masters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from elasticdl.cluster.local.cluster import LocalCluster

_AT_ONCE_S: Final = 0.0


@final
class JobProcesses:
    """The cluster of a job, over all of its masters. Use it from one event loop."""

    def __init__(self, make: Callable[[], LocalCluster]) -> None:
        self._make = make
        self.cluster = make()
        self._one_by_one = asyncio.Lock()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that comes to its end even if the master that asked for it has gone."""
        task = asyncio.ensure_future(work)
        # The loop itself keeps only weak references to tasks.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all, for good: the master says that the job is over."""
        async with self._one_by_one:
            self._closed = True
            await self.cluster.close()

    async def kill(self) -> None:
        """End all without grace."""
        async with self._one_by_one:
            self._closed = True
            await self.cluster.close(_AT_ONCE_S)

    async def clear(self) -> None:
        """End all without grace, and forget their names."""
        async with self._one_by_one:
            ended, self.cluster = self.cluster, self._make()
            await ended.close(_AT_ONCE_S)

    async def reopen(self) -> None:
        """Start over if a master ended all for good and then died without an outcome."""
        async with self._one_by_one:
            if self._closed:
                self._closed = False
                self.cluster = self._make()
