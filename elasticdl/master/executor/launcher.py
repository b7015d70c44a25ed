"""Starts and stops processes through the cluster.

Starts may be delayed, and a stop cancels a pending start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, final

from elasticdl.cluster.base import Cluster, ProcessName, ProcessSpec

Launch: TypeAlias = Callable[[ProcessName], ProcessSpec]


@final
class Launcher:
    """Starts and stops processes.

    Use it from one event loop; `start` and `stop` are driver tasks.
    """

    def __init__(self, cluster: Cluster, launch: Launch) -> None:
        self._cluster = cluster
        self._launch = launch
        self._delayed: dict[ProcessName, asyncio.Event] = {}
        self._creating: dict[ProcessName, asyncio.Event] = {}

    async def start(
        self,
        name: ProcessName,
        delay_s: float,
        memory_bytes: int | None = None,
        *,
        in_gang: bool = False,
    ) -> bool:
        """Start a process after `delay_s`; a second call for a pending process does nothing.

        Returns False if the process was stopped before that. `memory_bytes` overrides the memory
        limit of the role. Raises CreateRefused.
        """
        if name in self._delayed or name in self._creating:
            return True
        if delay_s > 0 and await self._stopped_within(name, delay_s):
            return False
        created = self._creating[name] = asyncio.Event()
        try:
            spec = self._launch(name)
            await self._cluster.create(replace(spec, memory_bytes=memory_bytes, in_gang=in_gang))
        finally:
            del self._creating[name]
            created.set()
        return True

    async def stop(self, name: ProcessName, grace_s: float, *, for_good: bool = False) -> None:
        """End a process, or cancel its pending start. `for_good`: see `Cluster.delete`."""
        delayed = self._delayed.get(name)
        if delayed is not None:
            delayed.set()
            return
        creating = self._creating.get(name)
        if creating is not None:
            # The cluster bounds the creation of a process, and may cut it short on request.
            await self._cluster.delete(name, grace_s=grace_s, for_good=for_good)
            await creating.wait()
        await self._cluster.delete(name, grace_s=grace_s, for_good=for_good)

    async def _stopped_within(self, name: ProcessName, delay_s: float) -> bool:
        stopped = self._delayed[name] = asyncio.Event()
        try:
            async with asyncio.timeout(delay_s):
                await stopped.wait()
        except TimeoutError:
            pass
        finally:
            del self._delayed[name]
        return stopped.is_set()
