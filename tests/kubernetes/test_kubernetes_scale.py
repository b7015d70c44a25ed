"""Hundreds of pods from one master: on nodes that only pretend (KWOK), behind a real API server and
scheduler.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.creating import IN_FLIGHT
from elasticdl.cluster.kubernetes.manifests import pod
from elasticdl.cluster.kubernetes.plans import Owner, Placement
from model_zoo import make_data
from tests.kubernetes.bench import plan
from tests.kubernetes.jobs import DATA, ROOT, Job, Jobs
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
PODS, DELETED, NODES = 500, 100, 20
LIMIT_S = 300.0
SELECTOR = "kwok.x-k8s.io/node"
REAL, FAKE = "elasticdl.test/real", "elasticdl.test/fake"
"""Places on the real node, and on those that pretend."""
LIVE = ("Pending", "Running")
RESULTS = ROOT / "bench/results/kubernetes_pods.json"
PROGRAMS = (
    "kube-apiserver",
    "etcd",
    "kube-scheduler",
    "kube-controller",
    "kwok",
    "kubelet",
    "containerd",
)
"""As the kernel has their names."""
TAINT = {"key": SELECTOR, "value": "fake", "effect": "NoSchedule"}
STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat/node-heartbeat",
    "pod/fast/pod-ready",
    "pod/fast/pod-delete",
)


@pytest.fixture
def fake_nodes(place: TargetCluster) -> Iterator[None]:
    if place.own is None:
        pytest.skip("simulated nodes need the tests' own cluster")
    stages = [
        flag
        for stage in STAGES
        for flag in ("--config", place.own.programs / "stage" / f"{stage}.yaml")
    ]
    # It ends with us, however that is: it is not in the namespaces that end with the cluster.
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        place.own.programs / "kwok",
        "--kubeconfig",
        place.kubeconfig,
        *stages,
    ]
    command += [
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={SELECTOR}=fake",
    ]
    kwok = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    names = [f"fake-{index}" for index in range(NODES)]
    try:
        place.kubectl(
            "create",
            "-f",
            "-",
            text=json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in names]}
            ),
        )
        place.kubectl(
            "wait", "--for=condition=Ready", *(f"node/{name}" for name in names), "--timeout=60s"
        )
        yield
    finally:
        place.kubectl("delete", "node", *names, "--wait=false")
        kwok.kill()
        kwok.wait()


def _node(name: str) -> dict[str, Any]:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", FAKE: "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {SELECTOR: "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }


@pytest.fixture
def real_node(place: TargetCluster) -> None:
    """Only the node that is real has places for processes that really run, only fake ones have
    those for `FAKE`.
    """
    body = json.dumps({"status": {"capacity": {REAL: "10"}, "allocatable": {REAL: "10"}}})
    place.kubectl("patch", "node", "node0", "--subresource=status", "--type=merge", "-p", body)


def _bare_loop(place: TargetCluster, owner: Owner) -> float:
    """Seconds that it takes to create the same pods with nothing but requests, as many at once: the
    API server's own limit.
    """
    where = Placement(
        node_selector={"type": "kwok"}, tolerations=({"key": SELECTOR, "operator": "Exists"},)
    )
    specs = [ProcessSpec(ProcessName(Role.WORKER, index), ("train",)) for index in range(PODS)]
    pods = [pod(owner, replace(plan(place), placement=where), spec) for spec in specs]

    async def create() -> float:
        async def one(api: ApiServer, body: dict[str, Any]) -> None:
            await api.create(f"/api/v1/namespaces/{owner.namespace}/pods", body)

        began_s = time.monotonic()
        await _all(place, [partial(one, body=body) for body in pods])
        return time.monotonic() - began_s

    return asyncio.run(create())


def _workers(place: TargetCluster, job: Job) -> list[dict[str, Any]]:
    """Descriptions of the job's worker pods that are not on their way out."""
    chosen = f"app.kubernetes.io/instance={job.name},elasticdl.org/role=worker"
    found = place.read("pods", "-n", job.jobs.namespace, "-l", chosen)["items"]
    return [
        pod["metadata"]
        for pod in found
        if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in LIVE
    ]


def _until_placed(place: TargetCluster, job: Job, started: int) -> list[float]:
    """When each of the live workers' pods was made, once `started` were started by now and all have
    their target_cluster.

    The API server is hardly asked meanwhile: a list of so many pods would keep it from making them.
    """

    def placed(events: list[dict[str, Any]]) -> bool:
        starts = [
            event
            for event in events
            if event["process"].startswith("worker-") and " is started" in event["text"]
        ]
        told = [event["text"] for event in events if event["kind"] == "wait"]
        return len(starts) >= started and told[-1:] == ["every process has its place"]

    job.until(f"{started} pods are made", placed, LIMIT_S)
    deadline_s = time.monotonic() + LIMIT_S
    while len(pods := _workers(place, job)) < PODS:
        assert time.monotonic() < deadline_s, (
            f"{len(pods)} of {PODS} in {LIMIT_S:g} s\n{job.story()}"
        )
        time.sleep(3)
    return sorted(datetime.fromisoformat(pod["creationTimestamp"]).timestamp() for pod in pods)


def _delete(place: TargetCluster, namespace: str, pods: list[str]) -> None:
    """As fast as the API server goes."""

    async def one(api: ApiServer, name: str) -> None:
        await api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")

    asyncio.run(_all(place, [partial(one, name=name) for name in pods]))


async def _all(
    place: TargetCluster, calls: Sequence[Callable[[ApiServer], Coroutine[Any, Any, None]]]
) -> None:
    """As many at once as a master's.

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


def _cpu_of_programs() -> dict[str, float]:
    """CPU seconds of each of the cluster's programs by now, of all clusters of this machine."""
    found = dict.fromkeys(PROGRAMS, 0.0)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            head, _, fields = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if (name := head.partition("(")[2]) in found:
            found[name] += sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return found


def _since(before: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {seconds - before[name]:.1f}" for name, seconds in _cpu_of_programs().items()
    )


def _used(place: TargetCluster, job: Job) -> dict[str, float]:
    """The master process's CPU seconds, and the most memory it had."""
    (master,) = place.read(
        "pods",
        "-n",
        job.jobs.namespace,
        "-l",
        f"app.kubernetes.io/instance={job.name},elasticdl.org/role=master",
    )["items"]
    uid = master["metadata"]["uid"]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                uid in (entry / "cgroup").read_text()
                and b"elasticdl.master.main" in (entry / "cmdline").read_bytes()
            ):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                peak_kib = next(
                    line
                    for line in (entry / "status").read_text().splitlines()
                    if line.startswith("VmHWM")
                ).split()[1]
                return {
                    "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
                    "memory_mib": int(peak_kib) / 1024,
                }
        except OSError:
            continue
    raise AssertionError("the master does not run")


def test_one_master_makes_five_hundred_pods_and_replaces_a_hundred(
    place: TargetCluster, jobs: Jobs, owner: Owner, fake_nodes: None, real_node: None
) -> None:
    before = _cpu_of_programs()
    figures = {"bare_s": _bare_loop(place, owner)}
    print(f"\nCPU seconds while a bare loop made {PODS} pods: {_since(before)}")
    # They stay where they are: there is room for both, and to clear them away takes the API server
    # as long as to make them.
    make_data.MAKERS["digits"](jobs.folder, 0)
    began_s, before = time.time(), _cpu_of_programs()
    job = jobs.submit(
        "many",
        model_def="digits",
        training_data=f"{DATA}/train.npz",
        num_workers=f"1:{PODS}",
        num_ps_pods=1,
        tolerations=json.dumps([{"key": SELECTOR, "operator": "Exists"}]),
        master_resource_request="cpu=1",
        master_resource_limit=f"{REAL}=1",
        ps_resource_limit=f"{REAL}=1",
        worker_resource_limit=f"{FAKE}=1",
    )
    made_s = _until_placed(place, job, PODS)
    print(
        f"CPU seconds from the submission until all {PODS} of a job had their places:"
        f" {_since(before)}"
    )
    figures["submitted_to_created_s"] = made_s[-1] - began_s
    figures["first_to_last_s"] = made_s[-1] - made_s[0]
    figures |= _used(place, job)
    began_s = time.time()
    _delete(place, jobs.namespace, [pod["name"] for pod in _workers(place, job)[:DELETED]])
    figures["replaced_s"] = _until_placed(place, job, PODS + DELETED)[-1] - began_s
    figures["cpu_later_s"] = _used(place, job)["cpu_s"]
    figures["replaced_per_s"] = DELETED / figures["replaced_s"]
    print(f"{PODS} pods:", ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2))
    # How long it takes is the API server's and the machine's; a master that held it up would have
    # been busy itself.
    assert figures["first_to_last_s"] < 3 * figures["bare_s"] + 10, figures
    assert figures["cpu_s"] < 15 and figures["memory_mib"] < 400, figures
