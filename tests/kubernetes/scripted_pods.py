"""Pods that behave as a test wants them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from elasticdl.cluster.base import (
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
)
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.labels import pod_name
from elasticdl.cluster.kubernetes.plans import Identity, Image, Owner, PodPlan, Resources
from tests.kubernetes.target_cluster import TargetCluster

LIMIT_S = 30.0
SLEEP = "echo $$ >/tmp/pid; exec sleep 600"
STUBBORN = "trap '' TERM; echo $$ >/tmp/pid; exec sleep 600"


def plan(place: TargetCluster, **resources: dict[str, str]) -> PodPlan:
    given = {"requests": {"cpu": "10m", "memory": "16Mi"}} | resources
    return PodPlan(
        Image(place.busybox), Resources(**given), identity=Identity(user=1000), grace_s=5
    )


class ScriptedPods:
    """A `KubernetesCluster` and the means to have its pods behave in some way.

    Also the contract suite's bench.
    """

    at_hand = False
    cluster: KubernetesCluster

    def __init__(
        self, place: TargetCluster, owner: Owner, plans: dict[ProcessName, PodPlan]
    ) -> None:
        """`plans` are those of some processes; all others get `default`."""
        self.place, self.owner, self.plans, self.default = place, owner, plans, plan(place)
        self._uids: dict[ProcessName, set[str]] = {}

    def pod(self, name: ProcessName) -> str:
        return pod_name(self.owner.job, name)

    def change_plan(self, name: ProcessName, **changes: Any) -> None:
        self.plans[name] = replace(plan(self.place), **changes)

    async def create(self, name: ProcessName, program: str) -> None:
        await self.cluster.create(ProcessSpec(name, ("/bin/sh", "-c", program)))

    async def start(self, name: ProcessName) -> None:
        await self._start(name, SLEEP)

    async def start_stubborn(self, name: ProcessName) -> None:
        await self._start(name, STUBBORN)

    async def start_and_exit(self, name: ProcessName, code: int) -> None:
        await self.create(name, f"exit {code}")

    def kill(self, name: ProcessName) -> None:
        # The process takes this command with it, as it shares its container: what it says is of no
        # interest.
        with suppress(RuntimeError):
            self.exec(name, "kill -9 $(cat /tmp/pid)")

    def starts(self, name: ProcessName) -> int:
        self._uids.setdefault(name, set()).update(self._now(name))
        return len(self._uids[name])

    def exec(self, name: ProcessName, program: str) -> str:
        return self.place.kubectl(
            "-n", self.owner.namespace, "exec", self.pod(name), "--", "/bin/sh", "-c", program
        )

    async def seen(
        self, name: ProcessName, *, running: bool = True, limit_s: float = LIMIT_S
    ) -> ProcessObserved | ProcessExited:
        """The process runs (or waits for something that is said), or has ended."""
        async with asyncio.timeout(limit_s), aclosing(self.cluster.observe()) as events:
            async for event in events:
                if event.name == name and (
                    isinstance(event, ProcessExited) or event.running == running
                ):
                    return event
        raise AssertionError("the cluster's events ended")

    async def seen_deleted(self, name: ProcessName) -> None:
        """The node has begun to end the pod."""
        chosen = f"reason=Killing,involvedObject.name={self.pod(name)}"
        look = partial(self.place.read, "events", namespace=self.owner.namespace, fields=chosen)
        async with asyncio.timeout(LIMIT_S):
            while not (await asyncio.to_thread(look))["items"]:
                await asyncio.sleep(0.1)

    async def ended(self, name: ProcessName, limit_s: float = LIMIT_S) -> ExitStatus:
        async with asyncio.timeout(limit_s), aclosing(self.cluster.observe()) as events:
            async for event in events:
                if event.name == name and isinstance(event, ProcessExited):
                    return event.exit_status
        raise AssertionError("the cluster's events ended")

    async def waits(self, name: ProcessName, words: str, limit_s: float = LIMIT_S) -> str:
        """What the process waits for, once that has `words` in it."""
        async with asyncio.timeout(limit_s), aclosing(self.cluster.observe()) as events:
            async for event in events:
                if (
                    event.name == name
                    and isinstance(event, ProcessObserved)
                    and words in event.waiting_for
                ):
                    return event.waiting_for
        raise AssertionError("the cluster's events ended")

    async def _start(self, name: ProcessName, program: str) -> None:
        await self.create(name, program)
        if isinstance(await self.seen(name), ProcessObserved):
            self._uids.setdefault(name, set()).update(self._now(name))
            await asyncio.to_thread(self.exec, name, "until test -s /tmp/pid; do sleep 0.05; done")

    def _now(self, name: ProcessName) -> set[str]:
        chosen = f"metadata.name={self.pod(name)}"
        found = self.place.read("pods", namespace=self.owner.namespace, fields=chosen)["items"]
        return {str(pod["metadata"]["uid"]) for pod in found}


@asynccontextmanager
async def scripted_pods(
    place: TargetCluster, owner: Owner, habits: ClusterOptions | None = None
) -> AsyncIterator[ScriptedPods]:
    """A cluster under test for `owner`; what is left of it ends with the context."""
    api = await place.connect()
    plans: dict[ProcessName, PodPlan] = {}
    ready = ScriptedPods(place, owner, plans)
    ready.cluster = KubernetesCluster(
        api, owner, lambda one: plans.get(one.name, ready.default), habits
    )
    try:
        yield ready
    finally:
        await ready.cluster.close()
        await api.close()
