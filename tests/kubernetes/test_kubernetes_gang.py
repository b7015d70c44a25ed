"""Gangs on a real API server and the stock scheduler: whole jobs, and pods on simulated nodes.

The pods and the PodGroups are the product's. On simulated nodes nothing runs in the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster import ClusterOptions, KubernetesCluster
from elasticdl.cluster.kubernetes.cluster_setup import set_up
from elasticdl.cluster.kubernetes.creating import Creator
from elasticdl.cluster.kubernetes.gang_discovery import find_gang
from elasticdl.cluster.kubernetes.planning import job_pod_group, pod_plan
from elasticdl.cluster.kubernetes.plans import Gang, GangApi
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects
from elasticdl.cluster.kubernetes.worker_places import WorkerPlaces
from elasticdl.job import JobSpec
from tests.kubernetes import image, many_pods
from tests.kubernetes.jobs import DATA, STEP_LIMIT_S, Job, jobs_in, until_seen
from tests.kubernetes.sharing import placed, pod_without_class, spec_of, submitted, until
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
NAMESPACE, WHOLE_JOB = "gangs", "whole-job"
SERVERS, WORKERS = 2, 6
WHOLE = SERVERS + WORKERS
SLOTS = 10
"""Of the nodes that are left: enough for one whole job, and not for two."""
STILL_S = 1.0
"""A scheduler that could place more pods would have done so."""
REAL_SLOT = "elasticdl.test/slot"
TAKEN, FREE = 2, 1
"""Slots of the real node: enough for a server and a worker, once those that are taken are free."""
FLAGS = {
    "model_def": "digits",
    "training_data": f"{DATA}/digits/train.npz",
    "num_workers": 1,
    "num_ps_pods": 1,
    "worker_resource_limit": f"{REAL_SLOT}=1",
    "ps_resource_limit": f"{REAL_SLOT}=1",
}


def spec(name: str, *, gang: bool) -> JobSpec:
    return spec_of(name, num_workers=f"{WORKERS}:{WORKERS + 1}", num_ps_pods=SERVERS, gang=gang)


@dataclass
class GangJob:
    """The pods of a job, made one by one."""

    name: str
    cluster: KubernetesCluster

    async def make(self, role: Role, index: int, *, in_gang: bool) -> None:
        name = ProcessName(role, index)
        await self.cluster.create(ProcessSpec(name, ("true",), in_gang=in_gang))


@contextlib.asynccontextmanager
async def job(api: ApiServer, made: JobSpec, gang: Gang | None) -> AsyncIterator[GangJob]:
    """A job without pods; those that it gets end with the context."""
    owner, places = await submitted(api, NAMESPACE, made), WorkerPlaces()
    cluster = KubernetesCluster(
        api,
        owner,
        lambda one: pod_plan(made, one.name.role, places.of(one.name), gang, in_gang=one.in_gang),
        ClusterOptions(places=places),
    )
    if gang is not None:
        await Creator(api, owner.uid, SystemClock()).provide(
            [job_pod_group(made, owner, gang)], owner.namespace
        )
    try:
        yield GangJob(made.cluster.job_name, cluster)
    finally:
        await cluster.close()


async def make_in_turn(jobs: list[GangJob], *, in_gang: bool) -> None:
    """A pod of each job after the other, as two masters that start together."""
    for role, count in ((Role.PS, SERVERS), (Role.WORKER, WORKERS)):
        for index in range(count):
            for one in jobs:
                await one.make(role, index, in_gang=in_gang)


async def have(api: ApiServer, jobs: list[GangJob]) -> list[int]:
    """The pods of each job that have a node."""
    return [
        len(await placed(api, NAMESPACE, f"app.kubernetes.io/instance={job.name}")) for job in jobs
    ]


async def until_they_have(api: ApiServer, jobs: list[GangJob], *wanted: list[int]) -> list[int]:
    """Wait until the jobs have one of these numbers of pods on nodes, and keep it."""

    async def now() -> list[int]:
        return await have(api, jobs)

    async def as_wanted() -> bool:
        return await now() in wanted

    await until(as_wanted, now)
    await asyncio.sleep(STILL_S)
    found = await now()
    assert found in wanted
    return found


def test_a_whole_job_holds_nothing_until_there_is_room_for_all_of_it_and_trains_then(
    gang_cluster: TargetCluster, tmp_path: Path
) -> None:
    place = gang_cluster
    place.make_namespace(WHOLE_JOB)
    take_slots(place)
    with jobs_in(place, WHOLE_JOB, image.ZOO, tmp_path / "volume") as jobs:
        jobs.make_data("digits")
        job = jobs.submit("whole", "--gang", **FLAGS)
        job.until("it waits for nodes", lambda events: any(map(waits_for_nodes, events)))
        holds_nothing_and_says_why(job)
        place.delete("pods", "other", namespace=WHOLE_JOB)
        job.done()
        assert groups(place), "it goes with the Job"
        place.kubectl("-n", WHOLE_JOB, "delete", "job", job.name)
        until_seen("no PodGroup is left", lambda: not groups(place), STEP_LIMIT_S)


def take_slots(place: TargetCluster) -> None:
    """Have the real node offer slots, and a pod take some of them."""
    room = {REAL_SLOT: str(TAKEN + FREE)}
    status = json.dumps({"status": {"capacity": room, "allocatable": room}})
    place.kubectl("patch", "node", "node0", "--subresource=status", "--type=merge", "-p", status)
    pod = pod_without_class("other", "1m")
    del pod["spec"]["nodeSelector"]
    container = pod["spec"]["containers"][0]
    container |= {"image": place.busybox, "command": ["sleep", "3600"]}
    container["resources"] = {"limits": {REAL_SLOT: str(TAKEN)}}
    pod["spec"]["securityContext"]["runAsUser"] = 1000
    place.create(pod, WHOLE_JOB)

    def phase() -> str:
        return str(place.read("pods", "other", namespace=WHOLE_JOB)["status"].get("phase"))

    until_seen("the other pod runs", lambda: phase() == "Running", STEP_LIMIT_S)


def waits_for_nodes(event: dict[str, Any]) -> bool:
    return str(event["text"]).startswith("0 of 1 ")


def holds_nothing_and_says_why(job: Job) -> None:
    """No process of it has ever had a node: only its master, and the check of its model."""
    status = until_seen(
        "its status says why", lambda: status_that_says_why(job), STEP_LIMIT_S, context=job.story
    )
    fields = "reason=Scheduled"
    events = job.jobs.place.read("events", namespace=job.jobs.namespace, fields=fields)["items"]
    had_nodes = {event["involvedObject"]["name"] for event in events}
    assert job.pod("check-1") in had_nodes
    assert had_nodes & {job.pod("ps-0"), job.pod("worker-0")} == set(), job.story()
    assert [(one["name"], one["state"], one["where"]) for one in status["processes"]] == [
        ("ps-0", "pending", None),
        ("worker-0", "pending", None),
    ]


def status_that_says_why(job: Job) -> dict[str, Any] | None:
    """The scheduler tells one process what is lacking, and the other that the gang does not fit."""
    status = job.status()
    reasons = " ".join(status["waiting"])
    whole = "pod group is unschedulable" in reasons and f"Insufficient {REAL_SLOT}" in reasons
    return status if whole else None


def groups(place: TargetCluster) -> Any:
    return place.read("podgroups", namespace=WHOLE_JOB)["items"]


def test_of_two_jobs_that_do_not_fit_one_runs_whole_and_the_other_holds_nothing(
    gang_cluster: TargetCluster,
) -> None:
    gang_cluster.make_namespace(NAMESPACE)
    with many_pods.fake_nodes(gang_cluster):
        full = [f"fake-{number}" for number in range(many_pods.NODES - SLOTS // 2)]
        gang_cluster.kubectl("cordon", *full)
        asyncio.run(_story(gang_cluster))


async def _story(gangs: TargetCluster) -> None:
    api = await gangs.connect()
    try:
        await set_up(api, cluster_objects(), NAMESPACE)
        await alone_they_wait_for_each_other(api)
        gang = await find_gang(api, spec("any", gang=True))
        assert gang == Gang(GangApi.KUBERNETES, "v1beta1")
        await together_one_runs_after_the_other(api, gang)
        await a_gang_preempts_workers_on_rungs(api, gang)
    finally:
        await api.close()


async def alone_they_wait_for_each_other(api: ApiServer) -> None:
    """The deadlock: all room is taken, and neither job has what it needs."""
    one, two = (spec(name, gang=False) for name in ("alone-1", "alone-2"))
    async with job(api, one, None) as first, job(api, two, None) as second:
        await make_in_turn([first, second], in_gang=False)
        found = await until_they_have(api, [first, second], [SLOTS // 2, SLOTS // 2])
        print(f"without --gang: {found} of {WHOLE} pods each on {SLOTS} slots")


async def together_one_runs_after_the_other(api: ApiServer, gang: Gang) -> None:
    one, two = (spec(name, gang=True) for name in ("gang-1", "gang-2"))
    async with contextlib.AsyncExitStack() as stack, job(api, two, gang) as second:
        first = await stack.enter_async_context(job(api, one, gang))
        began_s = time.monotonic()
        await make_in_turn([first, second], in_gang=True)
        found = await until_they_have(api, [first, second], [WHOLE, 0], [0, WHOLE])
        took_s = time.monotonic() - began_s - STILL_S
        print(f"with --gang: {found} of {WHOLE} pods each, after {took_s:.1f} s")
        assert found == [WHOLE, 0], "it was complete first"
        # A worker beyond the gang comes alone, and one of the gang that is lost comes back.
        await first.make(Role.WORKER, WORKERS, in_gang=False)
        await first.cluster.delete(ProcessName(Role.WORKER, 0), grace_s=1)
        await until_they_have(api, [first, second], [WHOLE, 0])
        await first.make(Role.WORKER, WORKERS + 1, in_gang=True)
        await until_they_have(api, [first, second], [WHOLE + 1, 0])
        await stack.aclose()
        began_s = time.monotonic()
        await until_they_have(api, [second], [WHOLE])
        took_s = time.monotonic() - began_s - STILL_S
        print(f"when the first has ended, the other has {WHOLE} after {took_s:.1f} s")


async def a_gang_preempts_workers_on_rungs(api: ApiServer, gang: Gang) -> None:
    elastic = spec_of("elastic", num_workers=f"1:{SLOTS}", num_ps_pods=1)
    async with (
        job(api, elastic, None) as before,
        job(api, spec("later", gang=True), gang) as later,
    ):
        for index in range(SLOTS):
            await before.make(Role.WORKER, index, in_gang=False)
        await until_they_have(api, [before], [SLOTS])
        began_s = time.monotonic()
        await make_in_turn([later], in_gang=True)
        await until_they_have(api, [before, later], [SLOTS - WHOLE, WHOLE])
        took_s = time.monotonic() - began_s - STILL_S
        print(f"a gang preempts {WHOLE} workers on rungs within {took_s:.1f} s")
