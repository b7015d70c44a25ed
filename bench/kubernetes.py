"""Create 500 pods from one master and replace 100 of them: `python -m bench kubernetes`.

Nodes are simulated by KWOK. API server, etcd, scheduler and controllers are real and share the
machine with the master. Needs what `make test-kubernetes` needs: Linux, root and Go.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.job_objects import pod
from elasticdl.cluster.kubernetes.plans import Owner, Placement
from tests.kubernetes import image, many_pods, target_cluster
from tests.kubernetes.jobs import Job, jobs_in
from tests.kubernetes.scripted_pods import plan
from tests.kubernetes.target_cluster import TargetCluster

PODS, DELETED = 500, 100
NAMESPACE = "elasticdl-bench"
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


def measure() -> dict[str, float]:
    if os.environ.get("KUBECONFIG"):
        sys.exit("unset KUBECONFIG: simulated nodes need a cluster of the bench's own")
    if reason := target_cluster.why_not():
        sys.exit(reason)
    with target_cluster.found() as place, place.entered(), tempfile.TemporaryDirectory() as folder:
        assert place.own is not None
        place.own.import_image(image.project_zoo())
        place.make_namespace(NAMESPACE)
        where = Path(folder, "volume")
        with many_pods.fake_nodes(place), jobs_in(place, NAMESPACE, image.ZOO, where) as jobs:
            before = _cpu_of_programs()
            bare_s = _bare_loop(place, place.owner(NAMESPACE))
            print(f"CPU seconds while a bare loop made {PODS} pods: {_since(before)}")
            # Its pods stay: deleting them takes as long as creating them, and the nodes have room.
            began_s, before = time.time(), _cpu_of_programs()
            job = many_pods.submit(place, jobs, PODS)
            made_s = many_pods.until_placed(place, job, PODS, started=PODS)
            print(f"CPU seconds until all {PODS} pods of a job were placed: {_since(before)}")
            figures = {
                "bare_s": bare_s,
                "submitted_to_created_s": made_s[-1] - began_s,
                "first_to_last_s": made_s[-1] - made_s[0],
                **_used(place, job),
                **_replace(place, job),
            }
    print(f"{PODS} pods:", ", ".join(f"{name} {value:.1f}" for name, value in figures.items()))
    return figures


def _replace(place: TargetCluster, job: Job) -> dict[str, float]:
    """Delete some pods and wait for their replacements."""
    began_s = time.time()
    names = [pod["name"] for pod in many_pods.workers(place, job)[:DELETED]]
    many_pods.delete(place, job.jobs.namespace, names)
    replaced_s = many_pods.until_placed(place, job, PODS, started=PODS + DELETED)[-1] - began_s
    return {
        "replaced_s": replaced_s,
        "replaced_per_s": DELETED / replaced_s,
        "cpu_later_s": _used(place, job)["cpu_s"],
    }


def _bare_loop(place: TargetCluster, owner: Owner) -> float:
    """Return the seconds to create the same pods by bare requests: the API server's limit."""
    where = Placement(
        node_selector={"type": "kwok"},
        tolerations=({"key": many_pods.SELECTOR, "operator": "Exists"},),
    )
    specs = [ProcessSpec(ProcessName(Role.WORKER, index), ("train",)) for index in range(PODS)]
    pods = [pod(owner, replace(plan(place), placement=where), spec) for spec in specs]

    async def create() -> float:
        async def one(api: ApiServer, body: dict[str, Any]) -> None:
            await api.create(f"/api/v1/namespaces/{owner.namespace}/pods", body)

        began_s = time.monotonic()
        await many_pods.call_all(place, [partial(one, body=body) for body in pods])
        return time.monotonic() - began_s

    return asyncio.run(create())


def _cpu_of_programs() -> dict[str, float]:
    """Return the CPU seconds so far by program, summed over all clusters of this machine."""
    used_s = dict.fromkeys(PROGRAMS, 0.0)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            head, _, fields = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if (name := head.partition("(")[2]) in used_s:
            used_s[name] += sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return used_s


def _since(before: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {seconds - before[name]:.1f}" for name, seconds in _cpu_of_programs().items()
    )


def _used(place: TargetCluster, job: Job) -> dict[str, float]:
    """Return the master process's CPU seconds and peak memory."""
    chosen = f"app.kubernetes.io/instance={job.name},elasticdl.org/role=master"
    (master,) = place.read("pods", namespace=job.jobs.namespace, selector=chosen)["items"]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = master["metadata"]["uid"] in (entry / "cgroup").read_text()
            if ours and b"elasticdl.master.main" in (entry / "cmdline").read_bytes():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                peak_kib = int((entry / "status").read_text().split("VmHWM:")[1].split()[0])
                cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                return {"cpu_s": cpu_s, "memory_mib": peak_kib / 1024}
        except OSError:
            continue
    raise RuntimeError("the master does not run")
