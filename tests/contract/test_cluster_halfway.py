"""Whoever submits a job, or its master, is killed between any two objects that it makes: what is
there goes with the Job, or the next
master goes on with it. Nothing outlives the Job.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.job_objects import TOKEN_KEY, UID_KEY
from elasticdl.cluster.kubernetes.labels import PLACE_LABEL, process_secret_name
from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.cluster.kubernetes.planning import pod_plan
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.cluster.kubernetes.process_secrets import ProcessSecrets
from elasticdl.cluster.kubernetes.submitting import submit
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.platform.kubernetes_resources import KubernetesResources
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
CORE, JOBS = "/api/v1/namespaces/ns", "/apis/batch/v1/namespaces/ns/jobs"
SPEC = JobSpec.from_flags(
    Action.TRAIN,
    {
        "model_def": "m",
        "training_data": "t",
        "image_name": "i",
        "job_name": "iris",
        "job_dir": "/tmp/iris",
    },
)
PROCESSES = (ProcessName(Role.PS, 0), ProcessName(Role.WORKER, 0), ProcessName(Role.WORKER, 1))
FURNITURE = [
    "Lease iris-master",
    "NetworkPolicy iris",
    "Secret iris-token",
    "Secret iris-viewer",
    "Service iris",
    "Service iris-master",
]


def everything(uid: str) -> list[str]:
    """What a master makes for the Job with this uid."""
    secrets = {f"Secret {process_secret_name('iris', uid, name)}" for name in PROCESSES}
    return sorted([*FURNITURE, *secrets, *(f"Pod iris-{name}" for name in PROCESSES)])


ALL = everything("uid")


class Cluster(SmallCluster):
    """Kills whoever works with it when so many objects have been made."""

    def __init__(self, kill_after: int) -> None:
        super().__init__()
        self.made: list[str] = []
        self.kill_after = kill_after
        self.work: asyncio.Task[None] | None = None

    def put(self, path: str, made: dict[str, Any]) -> dict[str, Any]:
        made = super().put(path, made)
        if self.work is not None:
            self.made.append(f"{made['kind']} {made['metadata']['name']}")
            if len(self.made) == self.kill_after:
                self.work.cancel()
        return made

    def kinds(self) -> list[str]:
        return sorted(
            f"{one['kind']} {one['metadata']['name']}"
            for one in self.objects.values()
            if "kind" in one
        )

    async def run(self, work: Any) -> bool:
        """Whether it came to its end."""
        self.work = asyncio.ensure_future(work)
        if self.kill_after == 0:
            self.work.cancel()
        with suppress(asyncio.CancelledError):
            await self.work
        killed = self.work.cancelled()
        self.work = None
        return not killed


async def master(cluster: Cluster, api: Any, owner: Owner, folder: Path) -> None:
    """What a master makes, in its order, from the start of its pod."""
    secret = cluster.objects.get(f"{CORE}/secrets/iris-token")
    if secret is not None:
        for key in (TOKEN_KEY, UID_KEY):
            (folder / key).write_text(secret["stringData"][key])
    resources = KubernetesResources(api, owner, "iris-abcde", folder)
    await resources.take_over(MasterLease(api, owner, "iris-abcde", SystemClock()))
    await resources.provide()
    processes = KubernetesCluster(
        api,
        owner,
        lambda one: pod_plan(SPEC, one.name.role),
        secrets=ProcessSecrets(api, owner, str),
    )
    try:
        for name in PROCESSES:
            await processes.create(ProcessSpec(name, ("train",)))
    finally:
        await processes.leave()


def with_job(cluster: Cluster) -> Owner:
    job = cluster.put(JOBS, {"kind": "Job", "metadata": {"name": "iris"}})
    uid = job["metadata"]["uid"]
    cluster.put(
        f"{CORE}/pods", {"metadata": {"name": "iris-abcde", "ownerReferences": [{"uid": uid}]}}
    )
    return Owner("ns", "iris", uid)


@pytest.mark.parametrize("count", range(len(ALL) + 1))
async def test_a_master_killed_after_any_object_leaves_only_what_goes_with_the_job(
    count: int, tmp_path: Path
) -> None:
    cluster = Cluster(count)
    owner = with_job(cluster)

    async with serving(cluster) as api:
        await cluster.run(master(cluster, api, owner, tmp_path))
        assert len(cluster.made) == count
        await api.delete(f"{JOBS}/iris", {"propagationPolicy": "Background"})
    assert cluster.objects == {}


@pytest.mark.parametrize("count", range(len(ALL)))
async def test_the_next_master_has_all_that_it_needs_whenever_the_one_before_was_killed(
    count: int, tmp_path: Path
) -> None:
    cluster = Cluster(count)
    owner = with_job(cluster)

    async with serving(cluster) as api:
        assert not await cluster.run(master(cluster, api, owner, tmp_path))
        before = {
            one["metadata"]["uid"] for one in cluster.objects.values() if one.get("kind") == "Pod"
        }
        cluster.kill_after = -1
        assert await cluster.run(master(cluster, api, owner, tmp_path))
        pods = {
            one["metadata"]["uid"] for one in cluster.objects.values() if one.get("kind") == "Pod"
        }
        assert before <= pods, "processes of the master before run on"
    assert cluster.kinds() == sorted(["Job iris", *everything(owner.uid)])


async def test_the_next_master_gives_a_new_worker_a_place_that_no_pod_has() -> None:
    cluster = Cluster(-1)
    owner = with_job(cluster)

    async def start(api: ApiServer, *indices: int) -> None:
        places = WorkerPlaces()
        processes = KubernetesCluster(
            api,
            owner,
            lambda one: pod_plan(SPEC, one.name.role, places.of(one.name)),
            ClusterOptions(places=places),
        )
        try:
            for index in indices:
                await processes.create(ProcessSpec(ProcessName(Role.WORKER, index), ("train",)))
        finally:
            await processes.leave()

    async with serving(cluster) as api:
        await start(api, 0, 1)
        await start(api, 5)
    place = cluster.objects[f"{CORE}/pods/iris-worker-5"]["metadata"]["labels"][PLACE_LABEL]
    assert place == "3"


async def test_the_pods_of_workers_come_after_those_of_servers_that_were_ordered_before() -> None:
    """The scheduler puts a worker near the servers that exist."""
    cluster = Cluster(-1)
    owner = with_job(cluster)
    busy = iter([status(500, "InternalError", "busy")])
    cluster.bend = lambda method, path, body: (
        next(busy, None) if method == "POST" and body["metadata"]["name"] == "iris-ps-0" else None
    )

    async with serving(cluster) as api:
        processes = KubernetesCluster(api, owner, lambda one: pod_plan(SPEC, one.name.role))
        names = [ProcessName(Role.PS, 0), ProcessName(Role.WORKER, 0)]
        try:
            await asyncio.gather(
                *(processes.create(ProcessSpec(name, ("train",))) for name in names)
            )
        finally:
            await processes.leave()
    made = [path.rpartition("/")[2] for path in cluster.objects if "/pods/" in path]
    assert made == ["iris-abcde", "iris-ps-0", "iris-worker-0"]


@pytest.mark.parametrize("count", [0, 1])
async def test_who_is_killed_while_submitting_leaves_the_whole_job_or_nothing(count: int) -> None:
    """There is one object to make. The next one with its name says that it is there."""
    cluster = Cluster(count)
    async with serving(cluster) as api:
        await cluster.run(submit(api, SPEC, "ns"))
        assert cluster.made == ["Job iris"] * count and cluster.names() == ["iris"] * count
        cluster.kill_after = -1
        if count == 0:
            assert await cluster.run(submit(api, SPEC, "ns"))
        else:
            with pytest.raises(SpecError, match="job iris already exists") as taken:
                await submit(api, SPEC, "ns")
            assert "delete job iris" in taken.value.hint
        assert cluster.names() == ["iris"]
