"""Starts and stops processes through the cluster: back-off before a start, and a stop that
overtakes it.
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
    """Use it from one event loop. `start` and `stop` run as tasks of the driver."""

    def __init__(self, cluster: Cluster, launch: Launch) -> None:
        self._cluster = cluster
        self._launch = launch
        self._delayed: dict[ProcessName, asyncio.Event] = {}
        self._creating: dict[ProcessName, asyncio.Event] = {}

    async def start(
        self, name: ProcessName, delay_s: float, memory_bytes: int | None = None
    ) -> bool:
        """Start a process after `delay_s`.

        False if it was stopped before that. Raises CreateRefused.

        `memory_bytes`: what it is to have, where that is not what its role has. One that is on its
        way is not started twice.
        """
        if name in self._delayed or name in self._creating:
            return True
        if delay_s > 0 and await self._stopped_within(name, delay_s):
            return False
        created = self._creating[name] = asyncio.Event()
        try:
            spec = self._launch(name)
            await self._cluster.create(
                spec if memory_bytes is None else replace(spec, memory_bytes=memory_bytes)
            )
        finally:
            del self._creating[name]
            created.set()
        return True

    async def stop(self, name: ProcessName, grace_s: float) -> None:
        """End a process, or its start if that has not come yet."""
        delayed = self._delayed.get(name)
        if delayed is not None:
            delayed.set()
            return
        creating = self._creating.get(name)
        if creating is not None:
            # Bounded by the cluster's own deadline for creating.
            await creating.wait()
        await self._cluster.delete(name, grace_s=grace_s)

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
