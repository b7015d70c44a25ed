"""A gang against API servers that have the PodGroups of one project, of several, or of none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.findings import Finding, Weight
from elasticdl.cluster.kubernetes.checking import look
from elasticdl.cluster.kubernetes.gang_discovery import find_gang
from elasticdl.cluster.kubernetes.master_lease import MasterLease
from elasticdl.cluster.kubernetes.planning import job_pod_group
from elasticdl.cluster.kubernetes.plans import Gang, GangApi, Owner
from elasticdl.cluster.kubernetes.submitting import submit
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.platform.kubernetes_resources import KubernetesResources
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
OWNER = Owner("ns", "j", "uid-1")
CORE = "/api/v1/namespaces/ns"
KUBERNETES = Gang(GangApi.KUBERNETES, "v1beta1")
CLASSES_ONLY, VOLCANO, PLUGINS = (
    {"scheduling.k8s.io/v1": ["priorityclasses"]},
    {"scheduling.volcano.sh/v1beta1": ["queues", "podgroups"]},
    {"scheduling.x-k8s.io/v1alpha1": ["podgroups", "elasticquotas"]},
)
NATIVE = {
    "scheduling.k8s.io/v1": ["priorityclasses"],
    "scheduling.k8s.io/v1beta1": ["workloads", "podgroups", "podgroups/status"],
}


def spec(**flags: Any) -> JobSpec:
    given = {"model_def": "m", "training_data": "t", "image_name": "i:1", "job_name": "j"}
    gang = {"num_workers": "3:5", "num_ps_pods": 2, "gang": True, "priority_ladder": "off"}
    return JobSpec.from_flags(Action.TRAIN, {**given, "job_dir": "/tmp/j", **gang, **flags})


def cluster_with(*apis: dict[str, list[str]]) -> SmallCluster:
    """Its discovery lists the resources of each version of each group."""
    cluster = SmallCluster()
    groups: dict[str, list[dict[str, str]]] = {}
    for served in apis:
        for path, names in served.items():
            group, version = path.split("/")
            groups.setdefault(group, []).append({"groupVersion": path, "version": version})
            cluster.objects[f"/apis/{path}"] = {"resources": [{"name": name} for name in names]}
    cluster.objects["/apis"] = {
        "groups": [{"name": name, "versions": found} for name, found in groups.items()]
    }
    return cluster


def found(cluster: SmallCluster, joined: str | None = None, **flags: Any) -> Gang | None:
    async def story() -> Gang | None:
        async with serving(cluster) as api:
            return await find_gang(api, spec(**flags), joined)

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("apis", "scheduler", "gang"),
    [
        ([NATIVE, VOLCANO, PLUGINS], "", KUBERNETES),
        ([CLASSES_ONLY, VOLCANO], "", Gang(GangApi.VOLCANO, "v1beta1")),
        ([NATIVE, VOLCANO], "volcano", Gang(GangApi.VOLCANO, "v1beta1")),
        ([NATIVE, PLUGINS], "packer", KUBERNETES),
        ([VOLCANO, PLUGINS], "packer", Gang(GangApi.SCHEDULER_PLUGINS, "v1alpha1")),
    ],
)
def test_the_pod_groups_are_those_that_the_jobs_scheduler_knows(
    apis: list[dict[str, list[str]]], scheduler: str, gang: Gang
) -> None:
    assert found(cluster_with(*apis), scheduler_name=scheduler) == gang
    assert found(cluster_with(*apis), scheduler_name=scheduler, gang=False) is None


@pytest.mark.parametrize(
    ("apis", "joined", "api"),
    [
        ([NATIVE, VOLCANO], GangApi.VOLCANO, GangApi.VOLCANO),
        ([NATIVE, VOLCANO], GangApi.KUBERNETES, GangApi.KUBERNETES),
        ([NATIVE, PLUGINS], GangApi.VOLCANO, GangApi.KUBERNETES),
    ],
)
def test_a_next_master_keeps_to_the_pod_groups_that_the_jobs_pods_name(
    apis: list[dict[str, list[str]]], joined: GangApi, api: GangApi
) -> None:
    """Unless the cluster has them no longer."""
    gang = found(cluster_with(*apis), joined)
    assert gang is not None and gang.api == api


@pytest.mark.parametrize(
    ("apis", "scheduler", "has"),
    [
        ([CLASSES_ONLY], "", "and the cluster has none"),
        ([PLUGINS], "", "it has scheduling.x-k8s.io for other schedulers"),
        ([NATIVE], "volcano", "that the scheduler volcano knows"),
    ],
)
def test_a_cluster_without_them_is_refused_before_anything_starts_and_told_what_to_install(
    apis: list[dict[str, list[str]]], scheduler: str, has: str
) -> None:
    cluster = cluster_with(*apis)

    async def story() -> list[Finding]:
        async with serving(cluster) as api:
            job = spec(scheduler_name=scheduler)
            with pytest.raises(ElasticDLError) as refused:
                await submit(api, job, "ns")
            assert refused.value.exit_code == ExitCode.CLUSTER_REFUSED
            assert has in refused.value.message and "GenericWorkload" in refused.value.hint
            return [one for one in await look(api, job, "ns") if one.about == "gang"]

    (finding,) = asyncio.run(story())
    assert finding.weight is Weight.PROBLEM and has in finding.text
    assert not any("/jobs/" in path for path in cluster.objects)


async def test_a_submission_asks_whether_the_master_may_make_the_group() -> None:
    cluster = cluster_with(NATIVE)
    cluster.lacking = {"create podgroups"}
    async with serving(cluster) as api:
        await submit(api, spec(gang=False), "ns")
        with pytest.raises(ElasticDLError, match="create podgroups"):
            await submit(api, spec(job_name="other"), "ns")


def test_check_tells_what_starts_together() -> None:
    async def story() -> list[Finding]:
        async with serving(cluster_with(NATIVE)) as api:
            return [one for one in await look(api, spec(), "ns") if one.about == "gang"]

    (finding,) = asyncio.run(story())
    assert (finding.weight, finding.text) == (
        Weight.FINE,
        "5 pods start together, by the PodGroups of scheduling.k8s.io/v1beta1",
    )


async def test_a_master_makes_the_group_that_belongs_to_its_job(tmp_path: Path) -> None:
    cluster = SmallCluster()
    cluster.put(f"{CORE}/pods", {"metadata": {"name": "j-abcde"}})
    group = job_pod_group(spec(), OWNER, KUBERNETES)

    async with serving(cluster) as api:
        resources = KubernetesResources(api, OWNER, "j-abcde", tmp_path, pod_group=group)
        await resources.take_over(MasterLease(api, OWNER, "j-abcde", SystemClock()))
        await resources.provide()
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups/j"
    assert cluster.objects[path]["spec"] == group["spec"]
    assert cluster.objects[path]["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid
