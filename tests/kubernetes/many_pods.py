"""One job of many pods on nodes that only pretend (KWOK), behind a real API server and
scheduler.

`test_kubernetes_scale.py` uses few of them; `bench/kubernetes.py` measures hundreds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.creating import IN_FLIGHT
from model_zoo import make_data
from tests.kubernetes.jobs import DATA, Job, Jobs
from tests.kubernetes.target_cluster import TargetCluster

LIMIT_S = 300.0
NODES, PODS_A_NODE = 20, 110
SELECTOR = "kwok.x-k8s.io/node"
REAL, FAKE = "elasticdl.test/real", "elasticdl.test/fake"
"""Places on the real node, and on those that pretend."""
LIVE = ("Pending", "Running")
TAINT = {"key": SELECTOR, "value": "fake", "effect": "NoSchedule"}
STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
)
LEASE_S = 24
"""KWOK renews a node's Lease after a quarter of this. The tests' own cluster takes a node for lost
after 15 s without: then the API server would only record that nodes go and come back.
"""
AT_ONCE = "stage/pod/fast/pod-delete.yaml"


@contextlib.contextmanager
def fake_nodes(
    place: TargetCluster, deletion: Path | None = None, count: int = NODES
) -> Iterator[None]:
    """Nodes of the tests' own cluster that start no processes.

    `deletion`: KWOK's stage that ends a deleted pod. Without it, pods end at once.
    """
    assert place.own is not None, "simulated nodes need the tests' own cluster"
    programs = place.own.programs
    stages = [flag for stage in STAGES for flag in ("--config", programs / f"stage/{stage}.yaml")]
    stages += ["--config", deletion or programs / AT_ONCE]
    chosen = f"--manage-nodes-with-annotation-selector={SELECTOR}=fake"
    kwok = [programs / "kwok", "--kubeconfig", place.kubeconfig, *stages]
    # It ends with us, however that is: it is not in the namespaces that end with the cluster.
    command = ["setpriv", "--pdeathsig", "KILL", *kwok, "--manage-all-nodes=false", chosen]
    command += [f"--node-lease-duration-seconds={LEASE_S}"]
    child = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    names = [f"fake-{index}" for index in range(count)]
    nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in names]}
    try:
        place.kubectl("create", "-f", "-", text=json.dumps(nodes))
        ready = [f"node/{name}" for name in names]
        place.kubectl("wait", "--for=condition=Ready", *ready, "--timeout=60s")
        yield
    finally:
        place.kubectl("delete", "node", *names, "--wait=false")
        child.kill()
        child.wait()


def _node(name: str) -> dict[str, Any]:
    places = str(PODS_A_NODE)
    room = {"cpu": "32", "memory": "256Gi", "pods": places, FAKE: places}
    labels = {"type": "kwok", "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {SELECTOR: "fake"}, "labels": labels},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }


def submit(place: TargetCluster, jobs: Jobs, workers: int) -> Job:
    """A job whose workers go to fake nodes; its check, its master and its server really run."""
    fakes = [f"fake-{index}" for index in range(NODES)]
    # The check's pod is like a worker's: while it has no node, only the real one takes workers.
    place.kubectl("cordon", *fakes)
    _room(place, fake=1)
    make_data.MAKERS["digits"](jobs.folder, 0)
    job = jobs.submit(
        "many",
        model_def="digits",
        training_data=f"{DATA}/train.npz",
        num_workers=f"1:{workers}",
        num_ps_pods=1,
        tolerations=json.dumps([{"key": SELECTOR, "operator": "Exists"}]),
        master_resource_request="cpu=1",
        master_resource_limit=f"{REAL}=1",
        ps_resource_limit=f"{REAL}=1",
        worker_resource_limit=f"{FAKE}=1",
    )
    check = ("-n", jobs.namespace, "pod/many-check-1", f"--timeout={LIMIT_S:.0f}s")
    place.kubectl("wait", "--for=create", *check)
    place.kubectl("wait", "--for=jsonpath={.status.phase}=Running", *check)
    _room(place, fake=0)
    place.kubectl("uncordon", *fakes)
    return job


def _room(place: TargetCluster, fake: int) -> None:
    """Offer places on the real node; `fake` of them are for workers."""
    room = {REAL: "10", FAKE: str(fake)}
    body = json.dumps({"status": {"capacity": room, "allocatable": room}})
    place.kubectl("patch", "node", "node0", "--subresource=status", "--type=merge", "-p", body)


def workers(place: TargetCluster, job: Job) -> list[dict[str, Any]]:
    """Metadata of the job's worker pods that are not on their way out."""
    chosen = f"app.kubernetes.io/instance={job.name},elasticdl.org/role=worker"
    pods = place.read("pods", namespace=job.jobs.namespace, selector=chosen)["items"]
    return [
        pod["metadata"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in LIVE
    ]


def until_placed(place: TargetCluster, job: Job, live: int, started: int) -> list[float]:
    """Wait for `live` worker pods on nodes after `started` starts; when each was created, sorted.

    The API server is hardly asked meanwhile: a list of so many pods would keep it from making them.
    """

    def placed(events: list[dict[str, Any]]) -> bool:
        starts = [
            event
            for event in events
            if event["process"].startswith("worker-") and event["details"].get("step") == "ordered"
        ]
        waits = [event["text"] for event in events if event["kind"] == "wait"]
        # Pods that find nodes at once are not waited for, so there may be no such event.
        return len(starts) >= started and waits[-1:] in ([], ["all processes are scheduled"])

    job.until(f"{started} pods are made", placed, LIMIT_S)
    deadline_s = time.monotonic() + LIMIT_S
    while len(pods := workers(place, job)) < live:
        assert time.monotonic() < deadline_s, (
            f"{len(pods)} of {live} in {LIMIT_S:g} s\n{job.story()}"
        )
        time.sleep(1)
    return sorted(datetime.fromisoformat(pod["creationTimestamp"]).timestamp() for pod in pods)


def delete(place: TargetCluster, namespace: str, pods: list[str]) -> None:
    """As fast as the API server goes."""

    async def one(api: ApiServer, name: str) -> None:
        await api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")

    asyncio.run(call_all(place, [partial(one, name=name) for name in pods]))


async def call_all(
    place: TargetCluster, calls: Sequence[Callable[[ApiServer], Coroutine[Any, Any, None]]]
) -> None:
    """As many calls at once as a master makes.

    One that fails ends the others, so that nothing is left over for the tests that follow.
    """
    api, turns = await place.connect(), asyncio.Semaphore(IN_FLIGHT)

    async def in_turn(call: Callable[[ApiServer], Coroutine[Any, Any, None]]) -> None:
        # The time that a call may take has its wait for a connection in it.
        async with turns:
            await call(api)

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(in_turn(call))
    finally:
        await api.close()
