"""Submission against an API server that refuses, is busy, or loses its answer: one Job or none."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.apiserver import ApiAway
from elasticdl.cluster.kubernetes.submitting import SubmitLimits, Submitted, submit
from elasticdl.errors import ElasticDLError, ExitCode, SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
SAID: list[str] = []
JOBS, PODS = "/apis/batch/v1/namespaces/ns/jobs", "/api/v1/namespaces/ns/pods"
QUOTA = 'pods "x" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=8, limited: cpu=8'


def send(cluster: SmallCluster, limits: SubmitLimits = SubmitLimits()) -> Submitted:
    flags = {
        "model_def": "m",
        "training_data": "t",
        "image_name": "i",
        "job_name": "iris",
        "job_dir": "/tmp/iris",
        "priority_ladder": "off",
    }

    async def story() -> Submitted:
        async with serving(cluster) as api:
            spec = JobSpec.from_flags(Action.TRAIN, flags)
            return await submit(api, spec, "ns", SAID.append, limits)

    return asyncio.run(story())


def on(wanted: str, answer: dict[str, Any], *, of: str = "") -> Any:
    def bend(method: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        return (
            answer
            if (method, path) == ("POST", wanted) and of in str(body["metadata"]["name"])
            else None
        )

    return bend


def test_one_object_is_made() -> None:
    cluster = SmallCluster()
    done = send(cluster)
    assert cluster.names() == ["iris"] and done.warnings == ()
    assert done.job["kind"] == "Job"


def test_a_name_that_is_taken_is_bad_usage_and_what_is_there_stays() -> None:
    cluster = SmallCluster()
    theirs = cluster.put(JOBS, {"metadata": {"name": "iris"}})
    with pytest.raises(SpecError, match="job iris already exists in namespace ns") as taken:
        send(cluster)
    assert taken.value.exit_code is ExitCode.USAGE and "delete job iris" in taken.value.hint
    assert cluster.objects == {f"{JOBS}/iris": theirs}


def test_a_job_whose_making_was_not_confirmed_is_recognised_as_ours() -> None:
    cluster = SmallCluster()
    lost = [status(500, "InternalError", "etcd: leader changed")]

    def lose(method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        return lost.pop() if lost and path == JOBS and cluster.objects else None

    cluster.lose = lose
    assert send(cluster).job["metadata"]["name"] == "iris"
    assert not lost and cluster.names() == ["iris"]


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"create jobs"}, "you may not create jobs in namespace ns"),
        ({"watch pods"}, "which may not watch pods (to learn at once how a process ended)"),
    ],
)
def test_a_right_that_is_missing_is_named_before_anything_is_made(
    lacking: set[str], words: str
) -> None:
    cluster = SmallCluster()
    cluster.lacking = lacking
    with pytest.raises(ElasticDLError) as refused:
        send(cluster, SubmitLimits(rights_limit_s=0.1))
    assert words in refused.value.message and refused.value.exit_code is ExitCode.CLUSTER_REFUSED
    assert cluster.names() == []


def test_rights_of_the_master_that_may_not_be_asked_about_hinder_nobody() -> None:
    cluster = SmallCluster()
    said = status(
        403,
        "Forbidden",
        'User "u" cannot create resource "localsubjectaccessreviews" in API group'
        ' "authorization.k8s.io"',
    )

    def bend(_method: str, path: str, _body: dict[str, Any]) -> dict[str, Any] | None:
        return said if path.endswith("localsubjectaccessreviews") else None

    cluster.bend = bend
    send(cluster)
    assert cluster.names() == ["iris"]


def test_a_pod_that_the_cluster_would_never_take_is_refused_with_its_role() -> None:
    cluster = SmallCluster()
    words = 'pods "w" is forbidden: no PriorityClass with name gold was found'
    cluster.bend = on(PODS, status(403, "Forbidden", words), of="worker")
    with pytest.raises(
        ElasticDLError, match="would refuse a worker's pod: there is no priority class gold"
    ) as refused:
        send(cluster)
    assert refused.value.exit_code is ExitCode.CLUSTER_REFUSED
    assert cluster.names() == []


def test_a_quota_that_is_full_is_a_warning() -> None:
    cluster = SmallCluster()
    cluster.bend = on(PODS, status(403, "Forbidden", QUOTA), of="worker")
    (warning,) = send(cluster).warnings
    assert (
        warning
        == "a worker would have to wait: quota team exhausted: cpu 8 of 8 used, 2 more asked for"
    )
    assert cluster.names() == ["iris"]


def test_who_may_not_create_pods_may_still_submit() -> None:
    cluster = SmallCluster()
    cluster.bend = on(
        PODS,
        status(
            403,
            "Forbidden",
            'pods is forbidden: User "u" cannot create resource "pods" in API group ""',
        ),
    )
    assert send(cluster).warnings == ()
    assert cluster.names() == ["iris"]


def test_a_server_that_stays_away_ends_the_wait_and_nothing_is_made() -> None:
    cluster = SmallCluster()
    cluster.bend = lambda _method, _path, _body: status(503, "ServiceUnavailable")
    SAID.clear()
    with pytest.raises(ApiAway):
        send(cluster, SubmitLimits(limit_s=3.5))
    assert cluster.names() == []
    (told,) = SAID
    assert re.search(r"the API server answered 503.*; retrying for [1-4] s$", told), told
