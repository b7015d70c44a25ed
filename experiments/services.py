"""Pods of online services that come and go beside training jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, final

from elasticdl.clock import SystemClock
from elasticdl.cluster.kubernetes.apiserver import ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.plans import Json
from elasticdl.cluster.kubernetes.reflector import Reflector, Sink
from tests.kubernetes.sharing import pod_without_class

AT_ONCE = 16


@final
class Services:
    """As many pods as a plan says, each with one slot and without a priority class.

    Such pods stand above all of the ladder.
    """

    def __init__(
        self, api: ApiServer, namespace: str, cores: str, plan: Sequence[tuple[float, int]]
    ) -> None:
        """`plan`: from how many seconds on there are how many. The last is the end."""
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"
        self._cores, self._plan = cores, plan
        self._created_s: dict[str, float] = {}
        self._placed: set[str] = set()
        self._first = plan[0][1]
        self._waits_s: dict[str, float] = {}
        self._deleted_without_node = 0
        self._number = 0

    @property
    def wished(self) -> int:
        """Pods that were created and not deleted."""
        return len(self._created_s)

    @property
    def placed(self) -> int:
        """Those of them that have a node."""
        return len(self._placed)

    async def run(self, ready: Awaitable[None]) -> None:
        """Begin with the first number of pods; from `ready` on follow the plan to its end."""
        loop = asyncio.get_running_loop()
        sink = Sink(self._changed, lambda _: None, lambda: None)
        watching = asyncio.ensure_future(
            Reflector(self._api, self._path, "test=service", sink, SystemClock()).run()
        )
        try:
            await self._become(self._plan[0][1])
            await ready
            began_s = loop.time()
            for at_s, count in self._plan:
                await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
                await self._become(count)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def as_row(self) -> dict[str, Any]:
        """How long services waited for their nodes, by how many of them.

        Those that were there before the jobs count apart: nobody gave way to them. So do those that
        had no node when they were deleted, or at the end.
        """
        row: dict[str, Any] = {
            "services": len(self._waits_s),
            "services_without_node": self._deleted_without_node + self.wished - self.placed,
        }
        first = set(self._names_from(0, self._first))
        waits_s = sorted(wait_s for name, wait_s in self._waits_s.items() if name not in first)
        if waits_s:
            row["service_wait_median_s"] = waits_s[len(waits_s) // 2]
            row["service_wait_longest_s"] = waits_s[-1]
        return row

    async def _become(self, count: int) -> None:
        turns = asyncio.Semaphore(AT_ONCE)
        more = count - self.wished
        names = list(self._created_s)[more:] if more < 0 else self._names(more)
        one = self._delete if more < 0 else self._create
        await asyncio.gather(*(one(name, turns) for name in names))

    def _names(self, count: int) -> list[str]:
        first, self._number = self._number, self._number + count
        return self._names_from(first, count)

    @staticmethod
    def _names_from(first: int, count: int) -> list[str]:
        return [f"service-{number}" for number in range(first, first + count)]

    async def _create(self, name: str, turns: asyncio.Semaphore) -> None:
        async with turns:
            self._created_s[name] = asyncio.get_running_loop().time()
            await self._api.create(self._path, pod_without_class(name, self._cores))

    async def _delete(self, name: str, turns: asyncio.Semaphore) -> None:
        del self._created_s[name]
        if name in self._placed:
            self._placed.remove(name)
        else:
            self._deleted_without_node += 1
        async with turns:
            with suppress(ApiRefused):
                await self._api.delete(f"{self._path}/{name}")

    def _changed(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        created_s = self._created_s.get(name)
        if created_s is None or name in self._placed or not pod["spec"].get("nodeName"):
            return
        self._placed.add(name)
        self._waits_s[name] = asyncio.get_running_loop().time() - created_s
