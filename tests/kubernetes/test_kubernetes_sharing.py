"""Jobs share a full cluster by the priority ladder, with the scheduler that every cluster has."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.labels import ROLE_LABEL
from tests.kubernetes.sharing import (
    SLOTS,
    SharingJob,
    passed_over,
    placed,
    pod_without_class,
    running_job,
    spec_of,
    until,
)
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
LAST = "elasticdl-test-last"
SERVERS, MIN = 2, 2
OURS = "app.kubernetes.io/name=elasticdl"
GUARANTEED = "elasticdl-guaranteed"


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
    printed = elasticdl("cluster", "setup", "--dry-run", kubeconfig=nobody).stdout
    place.kubectl("-n", namespace, "apply", "--dry-run=server", "-f", "-", text=printed)
    _the_quota_counts_guaranteed_pods_only(place, namespace)


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
        place.insist("-n", namespace, "create", "-f", "-", text=json.dumps(made), limit_s=10)
    for number in range(3):
        made = pod_without_class(f"server-{number}", "1", GUARANTEED)
        place.kubectl("-n", namespace, "create", "-f", "-", text=json.dumps(made))
    with pytest.raises(RuntimeError, match=f"exceeded quota: {GUARANTEED}"):
        made = pod_without_class("server-3", "1", GUARANTEED)
        place.kubectl("-n", namespace, "create", "-f", "-", text=json.dumps(made))


@pytest.mark.usefixtures("fake_nodes")
def test_jobs_share_by_weight_give_way_to_services_and_keep_what_is_guaranteed(
    place: TargetCluster, namespace: str
) -> None:
    elasticdl("cluster", "setup", "--namespace", namespace, kubeconfig=place.kubeconfig)
    place.kubectl("create", "priorityclass", LAST, "--value=-1000000")
    try:
        asyncio.run(_story(place, namespace))
    finally:
        place.kubectl("delete", "priorityclass", LAST)


async def _story(place: TargetCluster, namespace: str) -> None:
    api = await place.connect()
    flags = {"num_workers": f"{MIN}:{SLOTS}", "num_ps_pods": SERVERS}
    first, second = spec_of("first", **flags), spec_of("second", **flags, weight=2)
    try:
        async with running_job(api, place, namespace, first) as a:
            await shares(api, namespace, {"first": SLOTS - SERVERS})
            async with running_job(api, place, namespace, second) as b:
                # 36 workers, by weight.
                await shares(api, namespace, {"first": 12, "second": 24})
                taken = 24 + SERVERS
                assert taken <= a.preempted + b.preempted <= taken + 2, "only what had to go"
                await at_rest(api, namespace, a, b)
                await services_come_and_go(api, namespace)
                await at_rest(api, namespace, a, b)
                assert set(a.causes + b.causes) == {"DisruptionTarget"}
    finally:
        await api.close()


async def shares(api: ApiServer, namespace: str, expected: dict[str, int]) -> None:
    """Wait for these workers of the jobs, each within one rung of its share."""

    async def workers() -> dict[str, int]:
        found = await placed(api, namespace, f"{OURS},{ROLE_LABEL}=worker")
        return dict(Counter(_label(pod, "app.kubernetes.io/instance") for pod in found.values()))

    async def as_expected() -> bool:
        found = await workers()
        near = all(abs(found.get(job, 0) - count) <= 2 for job, count in expected.items())
        return near and sum(found.values()) == sum(expected.values())

    await until(as_expected, workers)


async def services_come_and_go(api: ApiServer, namespace: str) -> None:
    """Half of the cluster: workers on rungs go, and nobody else."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    before = _guaranteed(await placed(api, namespace, OURS))
    assert len(before) == 2 * (SERVERS + MIN)
    names = [f"service-{number}" for number in range(SLOTS // 2)]
    await asyncio.gather(*(api.create(path, pod_without_class(one, "16")) for one in names))

    async def served() -> bool:
        return len(await placed(api, namespace, "test=service")) == len(names)

    async def text() -> Any:
        return sorted(one["metadata"]["name"] for one in (await api.get(path))["items"])

    await until(served, text)
    await shares(api, namespace, {"first": 5, "second": 11})
    assert _guaranteed(await placed(api, namespace, OURS)) == before
    await asyncio.gather(*(api.delete(f"{path}/{one}") for one in names))
    await shares(api, namespace, {"first": 12, "second": 24})
    assert _guaranteed(await placed(api, namespace, OURS)) == before


async def at_rest(api: ApiServer, namespace: str, *jobs: SharingJob) -> None:
    """Nothing moves any more: no two jobs preempt each other in turn."""
    before, counts = set(await placed(api, namespace, OURS)), [job.preempted for job in jobs]
    await passed_over(api, namespace, LAST)
    assert set(await placed(api, namespace, OURS)) == before
    assert [job.preempted for job in jobs] == counts


def _guaranteed(pods: dict[str, dict[str, Any]]) -> set[str]:
    return {uid for uid, pod in pods.items() if pod["spec"]["priorityClassName"] == GUARANTEED}


def _label(pod: dict[str, Any], key: str) -> str:
    return str(pod["metadata"]["labels"][key])
