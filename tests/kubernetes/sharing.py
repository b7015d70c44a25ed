"""Jobs that compete for the slots of simulated nodes: the product's pods, and a real scheduler.

A job here is what a master does about its pods and no more: it makes them, and makes each again
that ended. Nothing runs in them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessSpec, Role
from elasticdl.cluster.event_bus import ProcessEvent
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.job_objects import services
from elasticdl.cluster.kubernetes.planning import job_object, pod_plan
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.cluster.kubernetes.pods import NOT_PLACED
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.kubernetes import many_pods

SLOT = "cpu=16"
SLOTS = many_pods.NODES * 2
"""A node has 32 cores."""
LIMIT_S = 90.0
NOMINATED_S = 20.0
"""Preempted pods go at once here: a pod that waits longer for its node was forgotten."""
_COMMAND = ("true",)


def spec_of(name: str, **flags: Any) -> JobSpec:
    """A job on the ladder whose servers and workers take one slot each."""
    placement = {
        "node_selector": "type=kwok",
        "tolerations": json.dumps([{"key": many_pods.SELECTOR, "operator": "Exists"}]),
        "worker_resource_request": SLOT,
        "ps_resource_request": SLOT,
    }
    job = {"model_def": "m", "training_data": "t", "image_name": "none", "job_name": name}
    return JobSpec.from_flags(Action.TRAIN, {**job, **placement, "priority_ladder": "on", **flags})


def _nothing(_: ProcessEvent) -> None:
    pass


@dataclass
class SharingJob:
    """Pods of one job. `preempted` counts the ends of pods that nobody asked for and that were
    placed.
    """

    spec: JobSpec
    cluster: KubernetesCluster
    heard: Callable[[ProcessEvent], None] = _nothing
    preempted: int = 0
    causes: list[str] = field(default_factory=list)

    async def keep(self) -> None:
        """Make the pods, and again those that end; until cancelled."""
        counts = {Role.PS: self.spec.servers}
        counts[Role.WORKER] = self.spec.cluster.num_workers.high
        names = [ProcessName(role, index) for role in counts for index in range(counts[role])]
        await asyncio.gather(*(self.cluster.create(ProcessSpec(name, _COMMAND)) for name in names))
        async for event in self.cluster.observe():
            self.heard(event)
            if isinstance(event, ProcessExited) and not event.exit_status.asked:
                self.preempted += event.exit_status.reason != NOT_PLACED
                self.causes += event.exit_status.conditions
                name = replace(event.name, incarnation=event.name.incarnation + 1)
                await self.cluster.create(ProcessSpec(name, _COMMAND))


async def submitted(api: ApiServer, namespace: str, spec: JobSpec) -> Owner:
    """The Job as the product makes it, but suspended: no master runs."""
    made = job_object(spec, namespace)
    made["spec"]["suspend"] = True
    created = await api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", made)
    return Owner(namespace, spec.cluster.job_name, created["metadata"]["uid"])


@asynccontextmanager
async def running_job(
    api: ApiServer,
    namespace: str,
    spec: JobSpec,
    heard: Callable[[ProcessEvent], None] = _nothing,
) -> AsyncIterator[SharingJob]:
    """A job whose pods come back until the context ends. `heard` gets its events."""
    owner = await submitted(api, namespace, spec)
    places = WorkerPlaces()
    cluster = KubernetesCluster(
        api,
        owner,
        lambda one: pod_plan(spec, one.name.role, places.of(one.name)),
        ClusterOptions(places=places, nominated_s=NOMINATED_S),
    )
    # The scheduler spreads the pods of a Service, unless they say otherwise.
    await Creator(api, owner.uid, SystemClock()).provide(services(owner), owner.namespace)
    job = SharingJob(spec, cluster, heard)
    task = asyncio.ensure_future(job.keep())
    try:
        yield job
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cluster.close()


async def placed(api: ApiServer, namespace: str, selector: str) -> dict[str, dict[str, Any]]:
    """Pods that have a node and stay, by uid."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    items = (await api.get(path, {"labelSelector": selector}))["items"]
    return {
        pod["metadata"]["uid"]: pod
        for pod in items
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    }


async def until(what: Callable[[], Any], text: Callable[[], Any]) -> Any:
    """The first true answer of `what`, an asynchronous function."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + LIMIT_S
    while not (found := await what()):
        assert loop.time() < end_s, f"after {LIMIT_S:g} s: {await text()}"
        await asyncio.sleep(0.2)
    return found


def pod_without_class(name: str, cores: str, priority_class: str = "") -> dict[str, Any]:
    """A pod as services have it."""
    spec: dict[str, Any] = {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": many_pods.SELECTOR, "operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "process",
                "image": "none",
                "resources": {"requests": {"cpu": cores}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    if priority_class:
        spec["priorityClassName"] = priority_class
    labels = {"test": "service"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
