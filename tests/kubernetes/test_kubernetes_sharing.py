"""Jobs share a full cluster by the priority ladder, with the scheduler that every cluster has."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.labels import ROLE_LABEL
from experiments import elasticdl1
from experiments.clusters import measured
from tests.kubernetes.sharing import (
    SLOTS,
    SharingJob,
    placed,
    pod_without_class,
    running_job,
    spec_of,
    until,
)
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
SERVERS, MIN = 2, 2
OURS = "app.kubernetes.io/name=elasticdl"
GUARANTEED = "elasticdl-guaranteed"
SERVICE = "test=service"
FAIR = {"first": 12, "second": 24}
"""Of 36 workers, by weight."""


def elasticdl(*arguments: str, kubeconfig: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_one_command_sets_a_cluster_up_and_again_it_changes_nothing(
    place: TargetCluster, namespace: str, tmp_path: Path
) -> None:
    command = ("cluster", "setup", "--namespace", namespace, "--guaranteed-pods", "3", "-o", "json")

    def results() -> Counter[str]:
        done = json.loads(elasticdl(*command, kubeconfig=place.kubeconfig).stdout)
        return Counter(one["result"] for one in done)

    first = results()
    assert set(first) <= {"created", "unchanged"} and first["created"] >= 4
    assert set(results()) == {"unchanged"}
    nobody = _kubeconfig_of(place, namespace, tmp_path)
    refused = elasticdl(*command, kubeconfig=nobody, code=3).stderr
    assert "you may not create PriorityClass elasticdl-master" in refused
    assert "elasticdl cluster setup --dry-run" in refused
    _kustomize_applies_the_same(place, namespace, nobody, tmp_path)
    assert set(results()) == {"unchanged"}
    _the_quota_counts_guaranteed_pods_only(place, namespace)


def _kustomize_applies_the_same(
    place: TargetCluster, namespace: str, nobody: Path, folder: Path
) -> None:
    """A team's overlay sets its namespace and its own number of pods."""
    bases = ("cluster", "setup", "--kustomize", str(folder / "bases"), "--guaranteed-pods", "20")
    elasticdl(*bases, kubeconfig=nobody)
    patch = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": GUARANTEED}}
    overlay = {
        "namespace": namespace,
        "resources": ["../bases/namespace"],
        "components": ["../bases/quota"],
        "patches": [{"patch": json.dumps({**patch, "spec": {"hard": {"pods": "3"}}})}],
    }
    (folder / "team").mkdir()
    (folder / "team/kustomization.yaml").write_text(json.dumps(overlay))
    place.kubectl("apply", "-k", str(folder / "team"))
    place.kubectl("apply", "--dry-run=server", "-k", str(folder / "bases/cluster"))


def _kubeconfig_of(place: TargetCluster, namespace: str, folder: Path) -> Path:
    token = place.kubectl("-n", namespace, "create", "token", "default").strip()
    config = json.loads(place.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    path = folder / "nobody"
    path.write_text(json.dumps(config))
    return path


def _the_quota_counts_guaranteed_pods_only(place: TargetCluster, namespace: str) -> None:
    quota = f"resourcequota/{GUARANTEED}"
    counted = ("--for=jsonpath={.status.used.pods}=0", quota, "--timeout=30s")
    place.kubectl("-n", namespace, "wait", *counted)
    for number in range(4):
        made = pod_without_class(f"worker-{number}", "1", "elasticdl-rung-7")
        place.insist(made, namespace)
    for number in range(3):
        made = pod_without_class(f"server-{number}", "1", GUARANTEED)
        place.create(made, namespace)
    with pytest.raises(RuntimeError, match=f"exceeded quota: {GUARANTEED}"):
        made = pod_without_class("server-3", "1", GUARANTEED)
        place.create(made, namespace)
    place.kubectl("-n", namespace, "delete", "pods", "--all")


@pytest.mark.usefixtures("fake_nodes")
def test_jobs_share_by_weight_give_way_to_services_and_keep_what_is_guaranteed(
    place: TargetCluster, namespace: str
) -> None:
    elasticdl("cluster", "setup", "--namespace", namespace, kubeconfig=place.kubeconfig)
    asyncio.run(_story(place, namespace))


async def _story(place: TargetCluster, namespace: str) -> None:
    api = await place.connect()
    flags = {"num_workers": f"{MIN}:{SLOTS}", "num_ps_pods": SERVERS}
    first, second = spec_of("first", **flags), spec_of("second", **flags, weight=2)
    try:
        async with running_job(api, namespace, first) as a:
            await shares(api, namespace, {"first": SLOTS - SERVERS})
            async with running_job(api, namespace, second) as b:
                await shares(api, namespace, FAIR)
                await preemptions(FAIR["second"] + SERVERS, a, b)
                await asyncio.to_thread(top_tells_it, place, namespace)
                await at_rest(api, namespace, a, b)
                await services_come_and_go(api, namespace)
                await at_rest(api, namespace, a, b)
                assert set(a.causes + b.causes) == {"DisruptionTarget:PreemptionByScheduler"}
    finally:
        await api.close()


def top_tells_it(place: TargetCluster, namespace: str) -> None:
    with place.entered():
        said = elasticdl("top", "--namespace", namespace, "-o", "json", kubeconfig=place.kubeconfig)
    found = json.loads(said.stdout)
    jobs = {job["name"]: (job["weight"], job["workers"], job["servers"]) for job in found["jobs"]}
    assert jobs == {"first": (1, 12, SERVERS), "second": (2, 24, SERVERS)}, said.stdout
    # The real node has a few cores more.
    assert found["utilisation"]["cpu"] >= found["of_jobs"]["cpu"] > 0.8, said.stdout


async def shares(api: ApiServer, namespace: str, expected: dict[str, int], within: int = 0) -> None:
    """Wait for these workers of the jobs."""

    async def workers() -> dict[str, int]:
        found = await placed(api, namespace, f"{OURS},{ROLE_LABEL}=worker")
        return dict(Counter(_label(pod, "app.kubernetes.io/instance") for pod in found.values()))

    async def as_expected() -> bool:
        found = await workers()
        near = all(abs(found.get(job, 0) - count) <= within for job, count in expected.items())
        return near and sum(found.values()) == sum(expected.values())

    await until(as_expected, workers)


async def services_come_and_go(api: ApiServer, namespace: str) -> None:
    """Half of the cluster: workers on rungs go, and nobody else."""
    before = _guaranteed(await placed(api, namespace, OURS))
    assert len(before) == 2 * (SERVERS + MIN)
    await services(api, namespace, SLOTS // 2)
    # One of these 16 workers is on rung 6, of either job.
    await shares(api, namespace, {"first": 5, "second": 11}, within=1)
    assert _guaranteed(await placed(api, namespace, OURS)) == before
    await no_services(api, namespace)
    await shares(api, namespace, FAIR)
    assert _guaranteed(await placed(api, namespace, OURS)) == before


async def at_rest(api: ApiServer, namespace: str, *jobs: SharingJob) -> None:
    """Two jobs do not preempt each other in turn: a pod that comes and goes costs one worker."""
    before = sum(job.preempted for job in jobs)
    await services(api, namespace, 1)
    await no_services(api, namespace)
    await shares(api, namespace, FAIR)
    await preemptions(before + 1, *jobs)


async def preemptions(least: int, *jobs: SharingJob) -> None:
    """As many as had to be, or hardly more: a pod may come back just before one of more right."""

    async def count() -> int:
        return sum(job.preempted for job in jobs)

    async def enough() -> bool:
        return await count() >= least

    await until(enough, count)
    assert await count() <= least + 3


async def services(api: ApiServer, namespace: str, count: int) -> None:
    """So many pods of a service, each of which takes a slot."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    names = [f"service-{number}" for number in range(count)]
    await asyncio.gather(*(api.create(path, pod_without_class(name, "16")) for name in names))

    async def served() -> bool:
        return len(await placed(api, namespace, SERVICE)) == count

    async def text() -> Any:
        return sorted(item["metadata"]["name"] for item in (await api.get(path))["items"])

    await until(served, text)


async def no_services(api: ApiServer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"

    async def left() -> list[str]:
        found = (await api.get(path, {"labelSelector": SERVICE}))["items"]
        return [one["metadata"]["name"] for one in found]

    async def gone() -> bool:
        return not await left()

    await asyncio.gather(*(api.delete(f"{path}/{one}") for one in await left()))
    await until(gone, left)


def _guaranteed(pods: dict[str, dict[str, Any]]) -> set[str]:
    return {uid for uid, pod in pods.items() if pod["spec"]["priorityClassName"] == GUARANTEED}


def _label(pod: dict[str, Any], key: str) -> str:
    return str(pod["metadata"]["labels"][key])


@pytest.mark.usefixtures("fake_nodes")
def test_two_jobs_of_13_cpus_share_24_as_elasticdls_first_experiment_has_it(
    place: TargetCluster, namespace: str
) -> None:
    """Masters are real. Both jobs have workers at once, more than one job may have, and train all
    of their records. No slot has two processes.

    No worker computes before there are so many. The masters may start seconds apart on a busy
    machine, and no job is over before the other one has come. Jobs that ran one after the other
    would wait until the time limit.
    """
    size = elasticdl1.CPUS
    run = partial(elasticdl1.run, least_workers=size.workers + 1)
    found = measured(place, namespace, run, small=True)
    print(found)
    assert found.ended == 2 and found.first_worker_s.keys() == {"first", "second"}
    counts = [span.workers for span in found.spans if sum(span.workers.values()) > size.workers]
    assert any(len(count) == 2 and all(count.values()) for count in counts)
    assert max(sum(count.values()) for count in counts) <= size.slots
