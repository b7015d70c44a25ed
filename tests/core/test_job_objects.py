"""The objects of a job, against a file that people have read, and the promises that the file alone
does not show.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.job_objects import (
    job,
    network_policy,
    pod,
    pod_group,
    preflight_pod,
    process_secret,
    services,
    token_secret,
    viewer_secret,
)
from elasticdl.cluster.kubernetes.labels import (
    JOB_UID_LABEL,
    MASTER,
    labels,
    parse_labels,
    pod_name,
)
from elasticdl.cluster.kubernetes.plans import (
    Gang,
    GangApi,
    Identity,
    Image,
    JobPlan,
    Owner,
    Placement,
    PodPlan,
    Resources,
    Volume,
)

pytestmark = pytest.mark.core
GOLDEN = Path(__file__).parent / "golden/job_objects.yaml"
OWNER = Owner("team-a", "digits", "5c1c6d1e-7a3b-4f6e-9a53-0d8a8a1b2c3d")
DATA = {"persistentVolumeClaim": {"claimName": "data"}}
WORKERS = PodPlan(
    Image("registry.local/zoo:7", pull_secrets=("registry",)),
    Resources({"cpu": "500m", "memory": "1Gi"}, {"cpu": "1500m", "memory": "2Gi"}),
    Placement(
        "batch-low",
        {"pool": "spot"},
        ({"key": "spot", "operator": "Exists", "effect": "NoSchedule"},),
    ),
    Identity(group=1000),
    (Volume("data", DATA, "/data", read_only=True), Volume("data", DATA, "/jobs", sub_path="jobs")),
    {"TF_ENABLE_ONEDNN_OPTS": "0"},
    grace_s=45,
)
SERVERS = PodPlan(Image("registry.local/zoo:7"), Resources({"memory": "4Gi"}))
MASTERS = replace(
    SERVERS, identity=Identity(service_account="elasticdl"), resources=Resources({"cpu": "250m"})
)
WORKER, SERVER = ProcessName(Role.WORKER, 3), ProcessName(Role.PS, 0, 1)


def spec(name: ProcessName) -> ProcessSpec:
    env = {"ELASTICDL_PROCESS": str(name)}
    return ProcessSpec(
        name,
        ("python3", "-m", f"elasticdl.{name.role}.main"),
        env,
        {"ELASTICDL_TOKEN": "opensesame"},
        cores=2,
    )


def worker() -> dict[str, Any]:
    return pod(OWNER, WORKERS, spec(WORKER))


def the_job() -> dict[str, Any]:
    return job(JobPlan("team-a", "digits", MASTERS), replace(spec(MASTER), secrets={}))


def objects() -> list[dict[str, Any]]:
    everything = [
        the_job(),
        worker(),
        pod(OWNER, SERVERS, spec(SERVER)),
        *services(OWNER),
        network_policy(OWNER),
        *(pod_group(OWNER, Gang(api, "v1"), 6, "guaranteed") for api in GangApi),
    ]
    return [*everything, *secrets()]


def token_of(name: ProcessName) -> str:
    return f"opensesame, {name}"


def secrets() -> list[dict[str, Any]]:
    return [
        token_secret(OWNER, "opensesame"),
        viewer_secret(OWNER, "opensesame, viewer"),
        process_secret(OWNER, WORKER, token_of),
        process_secret(OWNER, SERVER, token_of),
    ]


def pods() -> list[dict[str, Any]]:
    check = preflight_pod(OWNER, WORKERS, replace(spec(WORKER), secrets={}), 1)
    return [the_job()["spec"]["template"], worker(), pod(OWNER, SERVERS, spec(SERVER)), check]


def test_the_objects_of_a_job_are_those_that_people_have_read() -> None:
    text = yaml.safe_dump_all(objects(), sort_keys=True)
    if os.environ.get("ELASTICDL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), (
        "if it is meant: ELASTICDL_WRITE_GOLDEN=1, and read the difference"
    )


def test_every_object_but_the_job_belongs_to_the_job_without_a_right_on_jobs() -> None:
    for made in objects()[1:]:
        (reference,) = made["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"]) == ("Job", OWNER.uid)
        assert not reference["blockOwnerDeletion"] and not reference["controller"]


def test_every_pod_keeps_the_restricted_standard() -> None:
    for made in pods():
        body = made["spec"]
        (container,) = body["containers"]
        assert body["securityContext"]["runAsNonRoot"] and body["securityContext"][
            "seccompProfile"
        ] == {"type": "RuntimeDefault"}
        security = container["securityContext"]
        assert (
            security["capabilities"] == {"drop": ["ALL"]}
            and security["allowPrivilegeEscalation"] is False
        )
        assert security["readOnlyRootFilesystem"]


def test_only_the_master_may_talk_to_the_api_server() -> None:
    assert [made["spec"]["automountServiceAccountToken"] for made in pods()] == [
        True,
        False,
        False,
        False,
    ]


def secrets_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """The Secrets and keys that a pod can see; '' for all keys."""
    (container,) = body["containers"]
    seen = [
        (reference["name"], reference["key"])
        for entry in container["env"]
        if (reference := entry.get("valueFrom", {}).get("secretKeyRef"))
    ]
    mounted = [
        (volume["secret"]["secretName"], "") for volume in body["volumes"] if "secret" in volume
    ]
    assert "envFrom" not in container
    return seen + mounted


def test_tokens_are_only_in_secrets() -> None:
    others = objects()[: -len(secrets())]
    assert "opensesame" not in yaml.safe_dump_all(others)
    root, viewer, *_ = secrets()
    assert root["stringData"] == {"ELASTICDL_TOKEN": "opensesame", "ELASTICDL_JOB_UID": OWNER.uid}
    assert viewer["stringData"] == {"ELASTICDL_TOKEN": "opensesame, viewer"}


def test_only_the_masters_pod_sees_the_jobs_token_and_a_process_sees_its_own_only() -> None:
    root, _, workers, servers = (made["metadata"]["name"] for made in secrets())
    master, worker_, server, check = (made["spec"] for made in pods())
    assert secrets_of(master) == [(root, "")]
    assert secrets_of(worker_) == [(workers, "worker-3")]
    assert secrets_of(server) == [(servers, "ps-0.1")]
    assert secrets_of(check) == []


def test_the_secret_of_a_process_has_its_token_and_no_other_kind() -> None:
    _, _, workers, servers = secrets()
    assert workers["stringData"] == {f"worker-{k}": f"opensesame, worker-{k}" for k in range(64)}
    assert servers["stringData"]["ps-0.1"] == "opensesame, ps-0.1"
    last = process_secret(OWNER, ProcessName(Role.WORKER, 63), token_of)
    assert last == workers
    names = {
        process_secret(owner, name, token_of)["metadata"]["name"]
        for owner in (OWNER, replace(OWNER, uid="another-job-of-that-name"))
        for name in (WORKER, ProcessName(Role.WORKER, 64), SERVER, replace(SERVER, incarnation=2))
    }
    assert len(names) == 8


def test_a_dollar_is_a_dollar_for_the_process() -> None:
    made = pod(OWNER, WORKERS, ProcessSpec(WORKER, ("echo", "$(HOME) $$"), {"PRICE": "5$"}))[
        "spec"
    ]["containers"][0]
    assert made["command"] == ["echo", "$$(HOME) $$$$"]
    assert {"name": "PRICE", "value": "5$$"} in made["env"]


def test_a_name_can_be_read_back_from_its_labels() -> None:
    for name in (WORKER, SERVER, MASTER):
        assert parse_labels(labels("digits", name)) == name


def test_the_pod_of_the_check_is_like_a_workers_and_no_process_of_the_job() -> None:
    made = pods()[-1]
    assert made["metadata"]["name"] == "digits-check-1"
    with pytest.raises(ValueError, match="check"):
        parse_labels(made["metadata"]["labels"])
    # The labels by which the job's NetworkPolicy and the next master find it.
    assert network_policy(OWNER)["spec"]["podSelector"]["matchLabels"].items() <= (
        made["metadata"]["labels"].items()
    )
    assert made["metadata"]["labels"][JOB_UID_LABEL] == OWNER.uid
    theirs, ours = worker()["spec"], made["spec"]
    for key in ("tolerations", "nodeSelector", "priorityClassName", "volumes", "securityContext"):
        assert ours[key] == theirs[key]
    assert ours["containers"][0]["resources"] == theirs["containers"][0]["resources"]


def test_names_of_incarnations_differ() -> None:
    first = replace(SERVER, incarnation=0)
    assert (pod_name("digits", first), pod_name("digits", SERVER)) == (
        "digits-ps-0",
        "digits-ps-0-1",
    )


def test_a_pod_has_the_name_of_its_process_in_the_jobs_domain() -> None:
    body = worker()["spec"]
    assert f"{body['hostname']}.{body['subdomain']}" == "worker-3.digits"


def test_the_longest_job_name_makes_legal_names_for_all() -> None:
    owner = replace(OWNER, job="j" * 52)
    made = [
        *services(owner),
        token_secret(owner, ""),
        process_secret(owner, ProcessName(Role.PS, 1_999, 999), lambda _: ""),
        pod(owner, WORKERS, spec(ProcessName(Role.WORKER, 99_999))),
    ]
    assert all(len(each["metadata"]["name"]) <= 253 for each in made)
    assert all(len(each["metadata"]["name"]) <= 63 for each in made[:2])
    assert all(len(value) <= 63 for each in made for value in each["metadata"]["labels"].values())


def test_threads_follow_the_cores_of_the_plan_and_else_of_the_spec() -> None:
    def threads(plan: PodPlan) -> str:
        env = pod(OWNER, plan, spec(WORKER))["spec"]["containers"][0]["env"]
        return next(entry["value"] for entry in env if entry["name"] == "OMP_NUM_THREADS")

    assert threads(WORKERS) == "2" and threads(SERVERS) == "2"
    assert threads(replace(SERVERS, resources=Resources({"cpu": "6"}))) == "6"


@pytest.mark.parametrize("quantity", ["2 cores", "0", "-1", "1Gi", "nan", ""])
def test_a_quantity_of_cores_that_is_none_is_refused(quantity: str) -> None:
    with pytest.raises(ValueError, match="invalid number of cores"):
        assert Resources(limits={"cpu": quantity or "x"}).cores


def test_a_process_that_ran_out_of_memory_can_be_given_more_than_its_role() -> None:
    def resources(memory_bytes: int | None) -> dict[str, Any]:
        return pod(OWNER, WORKERS, replace(spec(WORKER), memory_bytes=memory_bytes))["spec"][
            "containers"
        ][0]["resources"]

    assert resources(None) == {
        "requests": dict(WORKERS.resources.requests),
        "limits": dict(WORKERS.resources.limits),
    }
    grown = resources(5 << 30)
    assert (
        grown["requests"] == {"cpu": "500m", "memory": "5368709120"}
        and grown["limits"]["memory"] == "5368709120"
    )


def test_a_servers_memory_outlives_its_containers_within_its_limit() -> None:
    limited = replace(SERVERS, resources=Resources({"memory": "1Gi"}, {"memory": "2Gi"}))
    more = replace(spec(SERVER), memory_bytes=3 << 30)
    for plan, process, size in (
        (SERVERS, spec(SERVER), {}),
        (limited, spec(SERVER), {"sizeLimit": "2Gi"}),
        (limited, more, {"sizeLimit": str(3 << 30)}),
    ):
        body = pod(OWNER, plan, process)["spec"]
        assert {"name": "memory", "emptyDir": {"medium": "Memory", **size}} in body["volumes"]
        assert body["restartPolicy"] == "OnFailure"
    assert worker()["spec"]["restartPolicy"] == "Never"
    assert not [volume for volume in worker()["spec"]["volumes"] if volume["name"] == "memory"]


def test_an_affinity_of_the_users_own_replaces_ours() -> None:
    mine: dict[str, Any] = {"nodeAffinity": {}}
    plan = replace(WORKERS, placement=Placement(affinity=mine))
    assert pod(OWNER, plan, spec(WORKER))["spec"]["affinity"] == mine


def test_a_toleration_of_the_users_own_is_not_given_twice() -> None:
    mine = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 600}
    given = pod(OWNER, replace(WORKERS, placement=Placement(tolerations=(mine,))), spec(WORKER))[
        "spec"
    ]["tolerations"]
    assert [each["tolerationSeconds"] for each in given if each["key"] == mine["key"]] == [600]


def test_a_master_is_replaced_although_its_pod_may_never_be_seen_to_end() -> None:
    body = the_job()["spec"]
    # A policy for failures would have the Job wait for a pod on a lost node, for ever.
    assert "podFailurePolicy" not in body
    assert body["podReplacementPolicy"] == "TerminatingOrFailed"
    assert body.get("completions", 1) == body.get("parallelism", 1) == 1
    assert body["template"]["spec"]["restartPolicy"] == "Never"


def test_a_master_leaves_a_lost_node_before_its_processes() -> None:
    def seconds(made: Any) -> set[int]:
        found = [
            toleration for toleration in made["tolerations"] if "tolerationSeconds" in toleration
        ]
        return {one["tolerationSeconds"] for one in found}

    (master,) = seconds(the_job()["spec"]["template"]["spec"])
    (worker,) = seconds(pod(OWNER, WORKERS, spec(WORKER))["spec"])
    assert master < worker <= 30
