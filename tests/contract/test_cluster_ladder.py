"""The priority ladder at submission, in `check` and in `cluster setup`, against an API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from elasticdl.cluster.findings import Finding, Weight
from elasticdl.cluster.kubernetes.checking import look
from elasticdl.cluster.kubernetes.cluster_setup import SetUp, set_up
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects, namespace_objects
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.cluster.kubernetes.submitting import Submitted, submit
from elasticdl.errors import ElasticDLError, ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.contract.api_server import status
from tests.contract.small_cluster import SmallCluster, serving

pytestmark = pytest.mark.contract
CLASSES, PODS = "/apis/scheduling.k8s.io/v1/priorityclasses", "/api/v1/namespaces/ns/pods"
OBJECTS = (*cluster_objects(), *namespace_objects("ns", 3))
NO_CREATION = 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'
NO_CLASS = 'pods "j" is forbidden: no PriorityClass with name elasticdl-rung-3 was found'
NO_SCOPE = "insufficient quota to match these scopes: [{PriorityClass In [elasticdl-rung-3]}]"


def spec(**flags: Any) -> JobSpec:
    given = {"model_def": "m", "training_data": "t", "image_name": "i:1", "job_name": "j"}
    return JobSpec.from_flags(
        Action.TRAIN, {**given, "job_dir": "/tmp/j", "num_workers": "3", **flags}
    )


def submitted(cluster: SmallCluster, **flags: Any) -> tuple[str, tuple[str, ...]]:
    """The class of the master's pod, and the warnings. Commands to repeat it ask anew."""

    async def story() -> Submitted:
        async with serving(cluster) as api:
            return await submit(api, spec(**flags), "ns")

    done = asyncio.run(story())
    pod = done.job["spec"]["template"]["spec"]
    told = spec_of(done.job)
    assert told.on_ladder == bool(pod.get("priorityClassName"))
    assert ("--priority-ladder" in told.restart_command) == ("priority_ladder" in flags)
    return pod.get("priorityClassName", ""), done.warnings


def checked(cluster: SmallCluster, **flags: Any) -> list[Finding]:
    async def story() -> list[Finding]:
        async with serving(cluster) as api:
            found = await look(api, spec(**flags), "ns")
            return [one for one in found if one.about == "priority"]

    return asyncio.run(story())


def set_up_in(cluster: SmallCluster) -> tuple[SetUp, ...]:
    async def story() -> tuple[SetUp, ...]:
        async with serving(cluster) as api:
            return await set_up(api, OBJECTS, "ns")

    return asyncio.run(story())


def ready() -> SmallCluster:
    cluster = SmallCluster()
    set_up_in(cluster)
    return cluster


def refusing(path: str, code: int, message: str, method: str = "POST") -> Any:
    answer = status(code, "Forbidden", message)
    return lambda asked, where, _: answer if (asked, where) == (method, path) else None


def test_a_job_stands_on_the_ladder_where_there_is_one() -> None:
    assert submitted(ready()) == ("elasticdl-master", ())
    (finding,) = checked(ready())
    assert finding.weight is Weight.FINE
    assert finding.text == "priority classes: elasticdl-master to elasticdl-rung-3"
    assert submitted(ready(), priority_ladder="off") == ("", ())


def test_a_job_without_a_ladder_is_told_the_command_that_installs_it() -> None:
    class_name, (warning,) = submitted(SmallCluster())
    assert class_name == "" and "elasticdl cluster setup" in warning
    assert "the cluster has no priority ladder" in warning
    (finding,) = checked(SmallCluster())
    assert (finding.weight, finding.text) == (Weight.WARNING, warning)


def test_a_ladder_that_is_too_short_is_not_stood_on() -> None:
    cluster = ready()
    del cluster.objects[f"{CLASSES}/elasticdl-rung-3"]
    class_name, (warning,) = submitted(cluster)
    assert class_name == "" and "the cluster's priority ladder lacks elasticdl-rung-3" in warning
    (finding,) = checked(cluster, priority_ladder="on")
    assert finding.weight is Weight.PROBLEM
    assert "there is no priority class elasticdl-rung-3" in finding.text


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("", ""),
        (NO_CLASS, "there is no priority class elasticdl-rung-3"),
        (NO_CREATION, "you may neither read priority classes nor create pods"),
        (NO_SCOPE, "namespace ns has no quota for the classes of the priority ladder"),
    ],
)
def test_who_may_not_read_the_classes_learns_of_them_by_a_pod_that_is_not_made(
    message: str, words: str
) -> None:
    cluster = ready()
    hidden = refusing(CLASSES, 403, "forbidden", "GET")
    refused = refusing(PODS, 403, message) if message else lambda *_: None

    def bend(method: str, path: str, body: dict[str, Any]) -> Any:
        on_rung = "elasticdl-rung" in str(body.get("spec", {}).get("priorityClassName"))
        return hidden(method, path, body) or (refused(method, path, body) if on_rung else None)

    cluster.bend = bend
    class_name, warnings = submitted(cluster)
    assert class_name == ("" if words else "elasticdl-master")
    assert words in "".join(warnings) and len(warnings) == bool(words)


def test_a_setup_repeats_itself_changes_what_differs_and_creates_what_lacks() -> None:
    cluster = ready()
    assert {str(one.result) for one in set_up_in(cluster)} == {"unchanged"}
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles"
    cluster.objects[f"{roles}/elasticdl"]["rules"] = []
    del cluster.objects[f"{CLASSES}/elasticdl-rung-9"]
    done = {(one.kind, one.name): str(one.result) for one in set_up_in(cluster)}
    assert done.pop(("Role", "elasticdl")) == "changed"
    assert done.pop(("PriorityClass", "elasticdl-rung-9")) == "created"
    assert Counter(done.values()) == {"unchanged": len(OBJECTS) - 2}
    assert cluster.objects[f"{roles}/elasticdl"]["rules"]


def test_a_class_of_another_value_is_an_error_that_says_how_to_replace_it() -> None:
    cluster = ready()
    cluster.objects[f"{CLASSES}/elasticdl-guaranteed"]["value"] = 7
    with pytest.raises(ElasticDLError, match="exists with value 7, expected -100") as refused:
        set_up_in(cluster)
    assert "kubectl delete priorityclasses elasticdl-guaranteed" in refused.value.hint


def test_who_may_not_create_classes_is_told_whom_to_ask_and_makes_nothing() -> None:
    cluster = SmallCluster()
    words = 'User "u" cannot create resource "priorityclasses"'
    cluster.bend = refusing(CLASSES, 403, words)
    with pytest.raises(ElasticDLError, match="you may not create PriorityClass") as refused:
        set_up_in(cluster)
    assert refused.value.exit_code is ExitCode.CLUSTER_REFUSED
    assert "elasticdl cluster setup --dry-run" in refused.value.hint
    assert cluster.names() == []
