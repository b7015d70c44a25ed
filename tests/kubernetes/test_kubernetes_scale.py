"""Hundreds of pods from one event loop: on nodes that only pretend (KWOK), behind a real API server and scheduler."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from elasticdl.cluster.base import ProcessExited, ProcessName, ProcessObserved, ProcessSpec, Role
from elasticdl.cluster.plans import Owner, Placement
from tests.kubernetes.bench import KubernetesBench, bench, plan
from tests.kubernetes.place import Place

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
PODS, DELETED, NODES = 500, 100, 20
SELECTOR = "kwok.x-k8s.io/node"
TAINT = {"key": SELECTOR, "value": "fake", "effect": "NoSchedule"}
STAGES = ("node/fast/node-initialize", "node/heartbeat/node-heartbeat", "pod/fast/pod-ready", "pod/fast/pod-delete")


@pytest.fixture
def fake_nodes(place: Place) -> Iterator[None]:
    if place.own is None:
        pytest.skip("simulated nodes need the tests' own cluster")
    stages = [flag for stage in STAGES for flag in ("--config", place.own.programs / "stage" / f"{stage}.yaml")]
    command = [place.own.programs / "kwok", "--kubeconfig", place.kubeconfig, *stages, "--manage-all-nodes=false"]
    command += [f"--manage-nodes-with-annotation-selector={SELECTOR}=fake"]
    kwok = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = [f"fake-{index}" for index in range(NODES)]
    try:
        place.kubectl(
            "create", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in names]})
        )
        place.kubectl("wait", "--for=condition=Ready", *(f"node/{name}" for name in names), "--timeout=60s")
        yield
    finally:
        place.kubectl("delete", "node", *names, "--wait=false")
        kwok.kill()
        kwok.wait()


def _node(name: str) -> dict:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {SELECTOR: "fake"}, "labels": {"type": "kwok", "kubernetes.io/hostname": name}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }


async def _until(b: KubernetesBench, enough: Callable[[set[ProcessName], set[ProcessName]], bool]) -> None:
    """Until what runs and what has ended is `enough`."""
    running: set[ProcessName] = set()
    ended: set[ProcessName] = set()
    async with asyncio.timeout(300), aclosing(b.cluster.observe()) as events:
        async for event in events:
            if isinstance(event, ProcessExited):
                ended.add(event.name)
            elif isinstance(event, ProcessObserved) and event.running:
                running.add(event.name)
            if enough(running - ended, ended):
                return


def test_five_hundred_pods_come_and_a_hundred_of_them_are_replaced(place: Place, owner: Owner, fake_nodes: None, capsys) -> None:
    figures: dict[str, float] = {}

    async def scenario() -> None:
        async with bench(place, owner) as b:
            small = plan(place)
            where = Placement(node_selector={"type": "kwok"}, tolerations=({"key": SELECTOR, "operator": "Exists"},))
            b.default = replace(small, placement=where)
            names = [ProcessName(Role.WORKER, index) for index in range(PODS + DELETED)]
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            await asyncio.gather(*(b.cluster.create(ProcessSpec(name, ("train",))) for name in names[:PODS]))
            figures["created_s"] = time.monotonic() - began_s
            await _until(b, lambda running, _: len(running) == PODS)
            figures["running_s"] = time.monotonic() - began_s
            figures["cpu_s"] = time.process_time() - began_cpu_s
            began_s = time.monotonic()
            victims = [b.pod(name) for name in names[:DELETED]]
            await asyncio.to_thread(place.kubectl, "-n", owner.namespace, "delete", "pod", *victims, "--wait=false")
            await _until(b, lambda _, ended: len(ended) == DELETED)
            await asyncio.gather(*(b.cluster.create(ProcessSpec(name, ("train",))) for name in names[PODS:]))
            await _until(b, lambda running, _: len(running) == PODS)
            figures["replaced_s"] = time.monotonic() - began_s

    asyncio.run(scenario())
    figures["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with capsys.disabled():
        print("\n500 pods:", ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
    # What these cost is ours; how long they take is the API server's and the machine's.
    assert figures["cpu_s"] < 30
