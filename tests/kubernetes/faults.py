"""What a cluster does to the pods of a job, done on purpose."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from elasticdl.cluster.kubernetes.labels import master_selector
from tests.kubernetes.jobs import Job, make, until_seen
from tests.kubernetes.target_cluster import TargetCluster

REPLACED_WITHIN_S = 60.0
"""From the taint of a node that fell silent until the Job has another master's pod."""
STAYS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_KILL = """
import os, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    arguments = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    if sys.argv[1].encode() in arguments:
        os.kill(int(pid), 9)
"""


def kubectl(job: Job, *arguments: str, text: str | None = None) -> str:
    return job.jobs.place.kubectl("-n", job.jobs.namespace, *arguments, text=text)


def delete(job: Job, process: str) -> None:
    """As a person would; returns when the job knows of it."""
    job.jobs.place.delete("pods", job.pod(process), namespace=job.jobs.namespace)
    job.ended(process)


def evict(job: Job, process: str, pod: str = "") -> None:
    """By the Eviction API, as `kubectl drain` does; returns when the job knows of it.

    `pod` is that of the process if it is not of its name.
    """
    evict_pod(job, pod or job.pod(process))
    job.ended(process)


def evict_pod(job: Job, pod: str) -> None:
    """By the Eviction API."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": job.jobs.namespace},
    }
    path = f"/api/v1/namespaces/{job.jobs.namespace}/pods/{pod}/eviction"
    job.jobs.place.call("POST", path, json.dumps(body))


def kill(job: Job, pod: str, role: str) -> None:
    """SIGKILL the process of a role (`master`, `ps`, `worker`) inside its container."""
    try:
        kubectl(job, "exec", pod, "--", "python3", "-c", _KILL, f"elasticdl.{role}.main")
    except RuntimeError as error:
        # The container ends, and this command with it.
        if "137" not in str(error):
            raise


def delete_by_force(job: Job, master: str) -> None:
    kubectl(job, "delete", "pod", master, "--force", "--grace-period=0")


def kill_master(job: Job, master: str) -> None:
    kill(job, master, "master")


def lose_node(job: Job, first: str) -> None:
    """Its node falls silent. The Job does not wait for the end of a pod that nobody sees."""
    own = job.jobs.place.own
    assert own is not None
    for pod in processes(job):
        stay(job, pod)
    own.kill("kubelet")
    try:
        until_seen(
            "the Job has another master",
            lambda: any(name_of(pod) != first for pod in masters(job)[-1:]),
            300.0,
            context=lambda: f"{_nodes(job)}\n{job.story()}",
        )
        tainted = [
            taint["timeAdded"]
            for node in job.jobs.place.read("nodes")["items"]
            for taint in node["spec"].get("taints", [])
            if taint["key"] in STAYS and taint["effect"] == "NoExecute"
        ]
        made = master(job)["metadata"]["creationTimestamp"]
        took_s = (_at(made) - _at(min(tainted))).total_seconds()
        assert took_s < REPLACED_WITHIN_S
        # The first one still acts: only its node is silent.
        job.continues()
    finally:
        own.start("kubelet")
        job.jobs.place.wait_until_node_is_back()
    print(f"the Job replaced the master {took_s:.0f} s after the taint")


def _nodes(job: Job) -> str:
    """The conditions and taints of all nodes: no pod is evicted while too few nodes are ready."""
    return kubectl(
        job,
        "get",
        "nodes",
        "-o",
        "custom-columns=NAME:.metadata.name,"
        "READY:.status.conditions[?(@.type=='Ready')].status,"
        "SINCE:.status.conditions[?(@.type=='Ready')].lastTransitionTime,"
        "TAINTS:.spec.taints[*].key",
    )


def stay(job: Job, pod: str) -> None:
    """On a silent node. There is no other one that could start the pod's successor."""
    spec = job.jobs.place.read("pods", pod, namespace=job.jobs.namespace)["spec"]
    for toleration in spec["tolerations"]:
        if toleration.get("key") in STAYS:
            toleration["tolerationSeconds"] = 600
    change = {"spec": {"tolerations": spec["tolerations"]}}
    kubectl(job, "patch", "pod", pod, "--type=merge", "-p", json.dumps(change))


def master(job: Job) -> dict[str, Any]:
    """The newest pod of the Job's."""
    return masters(job)[-1]


def masters(job: Job) -> list[dict[str, Any]]:
    """The Job's pods, the newest last."""
    chosen = f"job-name={job.name},{master_selector(job.name)}"
    found = job.jobs.place.read("pods", namespace=job.jobs.namespace, selector=chosen)["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def processes(job: Job) -> dict[str, tuple[str, str]]:
    """Uid and start of each worker and server that runs."""
    pods = job.jobs.place.read("pods", namespace=job.jobs.namespace)["items"]
    return {
        name_of(pod): (pod["metadata"]["uid"], state["running"]["startedAt"])
        for pod in pods
        if name_of(pod).startswith((f"{job.name}-worker-", f"{job.name}-ps-"))
        for one in pod["status"].get("containerStatuses", ())
        if "running" in (state := one["state"])
    }


def name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def cut_off(job: Job, process: str) -> None:
    """Take a pod's network away, as a switch or a node that is gone does: its process runs on,
    nobody is told, no connection is closed.
    """
    own = job.jobs.place.own
    assert own is not None
    link = int(kubectl(job, "exec", job.pod(process), "--", "cat", "/sys/class/net/eth0/iflink"))
    links = json.loads(
        subprocess.run(
            own.inside(["ip", "-j", "link"]), capture_output=True, text=True, check=True
        ).stdout
    )
    name = next(one["ifname"] for one in links if one["ifindex"] == link)
    subprocess.run(own.inside(["ip", "link", "set", name, "down"]), check=True)


@contextlib.contextmanager
def filled(job: Job, cpu_m: int) -> Iterator[None]:
    """A pod that asks for so much of the node, of a class above all workers' and below that of
    masters and servers, is made; and goes again.
    """
    above = f"above-{job.jobs.namespace}"
    between = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": above},
        "value": -105,
    }
    job.jobs.place.create(between)
    container = {
        "name": "filler",
        "image": job.jobs.place.busybox,
        "command": ["sleep", "600"],
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": f"{cpu_m}m"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec = {
        "containers": [container],
        "priorityClassName": above,
        "terminationGracePeriodSeconds": 1,
        "securityContext": security,
    }
    make(job.jobs.place, "Pod", {"name": "filler", "namespace": job.jobs.namespace}, spec)
    try:
        yield
    finally:
        job.jobs.place.delete("pods", "filler", namespace=job.jobs.namespace)
        job.jobs.place.delete("priorityclasses", above)


def until_all_have_gone(place: TargetCluster, limit_s: float = 120) -> None:
    """Until no pod is on its way out: those of namespaces that tests before left have their grace,
    and their room, until then.
    """
    until_seen(
        "no pod is on its way out",
        lambda: not _leaving(place),
        limit_s,
        context=lambda: _leaving(place),
    )


def _leaving(place: TargetCluster) -> list[str]:
    gone = {
        item["metadata"]["name"]
        for item in place.read("namespaces")["items"]
        if "deletionTimestamp" in item["metadata"]
    }
    pods = [pod["metadata"] for pod in place.read("pods")["items"]]
    return [pod["name"] for pod in pods if "deletionTimestamp" in pod or pod["namespace"] in gone]


def room_m(place: TargetCluster) -> int:
    """Thousandths of cores that the node has for pods."""
    return _m(place.read("nodes")["items"][0]["status"]["allocatable"]["cpu"])


def free_m(place: TargetCluster) -> int:
    """Those of them that no pod has asked for."""
    pods = [
        pod
        for pod in place.read("pods")["items"]
        if pod["status"]["phase"] in ("Pending", "Running")
    ]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    return room_m(place) - sum(
        _m(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
        for container in containers
    )


def _m(cpu: Any) -> int:
    return int(cpu.removesuffix("m")) if str(cpu).endswith("m") else int(float(cpu) * 1000)
