"""Every flag of a cluster arrives in the objects, and the job itself arrives whole."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.job_objects import pod
from elasticdl.cluster.kubernetes.planning import job_object, pod_objects, pod_plan
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.cluster.kubernetes.submit_command import with_commands
from elasticdl.cluster.kubernetes.submitted_job import spec_of
from elasticdl.cluster.kubernetes.termination_message import LIMIT_BYTES, outcome_text, read_outcome
from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.outcome import Outcome
from elasticdl.kubernetes_flags import KubernetesSection, quantity, quantity_bytes

pytestmark = pytest.mark.core
GOLDEN = Path(__file__).parent / "golden/submitted_job.yaml"
NEEDED = {
    "model_zoo": "/zoo",
    "model_def": "iris",
    "training_data": "/data/iris.csv",
    "job_name": "iris",
    "job_dir": "/data/iris",
}
EVERYTHING: dict[str, Any] = {
    "image_name": "registry.local/zoo:7",
    "image_pull_policy": "Always",
    "image_pull_secrets": "registry,other",
    "kube_context": "west",
    "namespace": "team-a",
    "service_account": "trainer",
    "volume": (
        "claim_name=data,mount_path=/data;claim_name=data,mount_path=/zoo,sub_path=zoo,read_only=true;"
        "host_path=/scratch,type=Directory,mount_path=/scratch"
    ),
    "fs_group": 2000,
    "run_as_user": 3000,
    "master_resource_request": "cpu=250m,memory=512Mi",
    "master_resource_limit": "memory=1Gi",
    "worker_resource_request": "cpu=2,memory=4Gi",
    "worker_resource_limit": "memory=6Gi,nvidia.com/gpu=1",
    "ps_resource_request": "cpu=1",
    "ps_resource_limit": "memory=8Gi",
    "master_pod_priority": "high",
    "worker_pod_priority": "spot-{rung}",
    "ps_pod_priority": "middle",
    "priority_ladder": "on",
    "weight": 3,
    "gang": True,
    "labels": "team=a,kueue.x-k8s.io/queue-name=q",
    "scheduler_name": "packer",
    "node_selector": "pool=training",
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "ttl_seconds": 600,
    "oom_memory_limit": "16Gi",
}
TOLD_TO_OTHERS = {
    "kube_context": "the submitter",
    "oom_memory_limit": "the master's core",
    "priority_ladder": "pods without a class of their own: tests/core/test_priority_ladder.py",
    "weight": "pods on rungs: the same tests",
    "gang": "pods of the cluster's gangs: tests/core/test_gang.py",
}


def job(**flags: Any) -> JobSpec:
    return JobSpec.from_flags(
        Action.TRAIN, {**NEEDED, "image_name": "zoo", "envs": "A=1;PRICE=5$", **flags}
    )


def whole() -> JobSpec:
    return job(**EVERYTHING, checkpoint_steps=100, output="/data/iris/export")


def role_pod(spec: JobSpec, role: Role) -> dict[str, Any]:
    made = pod(
        Owner("team-a", "iris", "uid"),
        pod_plan(spec, role),
        ProcessSpec(ProcessName(role, 0), ("x",)),
    )
    return made["spec"]


def test_the_job_that_is_submitted_is_the_one_that_people_have_read() -> None:
    text = yaml.safe_dump(job_object(whole(), "team-a"), sort_keys=True)
    if os.environ.get("ELASTICDL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), (
        "if it is meant: ELASTICDL_WRITE_GOLDEN=1, and read the difference"
    )


def test_the_list_of_this_test_is_complete() -> None:
    assert set(EVERYTHING) == set(KubernetesSection.model_fields)


@pytest.mark.parametrize("name", sorted(set(EVERYTHING) - set(TOLD_TO_OTHERS)))
def test_every_flag_of_a_cluster_changes_the_objects(name: str) -> None:
    """Beside the spec itself, which is in them anyway."""

    def objects(spec: JobSpec) -> str:
        made = job_object(spec, spec.kubernetes.namespace)
        container = made["spec"]["template"]["spec"]["containers"][0]
        container["env"] = container["args"] = []
        return yaml.safe_dump([made, *(role_pod(spec, role) for role in (Role.WORKER, Role.PS))])

    default = KubernetesSection.model_fields[name].get_default(call_default_factory=True)
    without = {**whole().flags(), name: "other" if name == "image_name" else default}
    if name == "volume":
        without |= {"output": "", "checkpoint_steps": 0}
    assert objects(JobSpec.from_flags(Action.TRAIN, without)) != objects(whole())


@pytest.mark.parametrize(
    ("role", "priority", "requests", "limits"),
    [
        (Role.MASTER, "high", {"cpu": "250m", "memory": "512Mi"}, {"memory": "1Gi"}),
        (
            Role.WORKER,
            "spot-1",
            {"cpu": "2", "memory": "4Gi"},
            {"memory": "6Gi", "nvidia.com/gpu": "1"},
        ),
        (Role.PS, "middle", {"cpu": "1"}, {"memory": "8Gi"}),
    ],
)
def test_each_role_gets_what_is_its_own_and_what_is_everybodys(
    role: Role, priority: str, requests: Any, limits: Any
) -> None:
    body = role_pod(whole(), role)
    (container,) = body["containers"]
    assert container["resources"] == {"requests": requests, "limits": limits}
    assert (body["priorityClassName"], body["nodeSelector"]) == (priority, {"pool": "training"})
    assert (container["image"], container["imagePullPolicy"]) == ("registry.local/zoo:7", "Always")
    assert body["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert (
        EVERYTHING["tolerations"][0] in body["tolerations"]
        and body["affinity"] == EVERYTHING["affinity"]
    )
    assert body.get("serviceAccountName", "") == ("trainer" if role is Role.MASTER else "")
    assert body["securityContext"] == {
        "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 3000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch",
    }  # fmt: skip
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["A"], env["PRICE"]) == ("1", "5$$")
    assert env["OMP_NUM_THREADS"] == ("2" if role is Role.WORKER else "1")


def test_a_claim_that_is_mounted_twice_is_one_volume() -> None:
    body = role_pod(whole(), Role.WORKER)
    assert body["volumes"][1:] == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "volume-1", "hostPath": {"path": "/scratch", "type": "Directory"}},
    ]
    assert body["containers"][0]["volumeMounts"][1:] == [
        {"name": "volume-0", "mountPath": "/data"},
        {"name": "volume-0", "mountPath": "/zoo", "readOnly": True, "subPath": "zoo"},
        {"name": "volume-1", "mountPath": "/scratch"},
    ]


def test_files_have_no_group_of_ours_where_there_is_no_volume() -> None:
    assert "fsGroup" not in role_pod(job(), Role.WORKER)["securityContext"]
    with_one = job(volume="claim_name=c,mount_path=/data")
    assert role_pod(with_one, Role.WORKER)["securityContext"]["fsGroup"] == 1000
    assert (
        "fsGroup"
        not in role_pod(job(volume="claim_name=c,mount_path=/data", fs_group=0), Role.PS)[
            "securityContext"
        ]
    )


def test_the_job_comes_back_from_its_object_whole() -> None:
    for spec in (whole(), job(model_params="name='$(HOME) $$ ü'")):
        spec = spec.replace(namespace="n")
        assert spec_of(job_object(spec, "n")) == with_commands(spec)


def test_a_job_that_no_pod_can_be_told_is_refused() -> None:
    with pytest.raises(SpecError, match="bytes of JSON, at most"):
        job_object(job(model_params={f"p{number}": "x" * 1000 for number in range(120)}), "n")


def test_a_job_without_a_namespace_leaves_it_to_whoever_creates_it() -> None:
    assert "namespace" not in job_object(whole(), "")["metadata"]
    assert job_object(whole(), "n")["metadata"]["namespace"] == "n"


def test_a_pod_of_each_role_can_be_asked_for() -> None:
    pods = pod_objects(whole(), "n")
    assert [pod["metadata"]["name"] for pod in pods] == [
        "iris-master-0",
        "iris-worker-0",
        "iris-ps-0",
    ]
    assert all(
        pod["metadata"]["namespace"] == "n" and not pod["metadata"].get("ownerReferences")
        for pod in pods
    )
    assert pods[0]["spec"] == job_object(whole(), "n")["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", "2"),
        ("0.5", "0.5"),
        ("500m", "0.5"),
        ("2Gi", str(2 << 30)),
        ("1.5Ki", "1536"),
        ("1e3", "1000"),
        ("4G", "4e9"),
        (".5", ".5"),
    ],
)
def test_quantities_are_what_kubernetes_says_they_are(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "2gi", "1,5", "-1", "2 Gi", "0x10", "inf"])
def test_a_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid quantity"):
        quantity(text)


def test_a_process_may_grow_to_what_the_user_said_and_else_to_twice_its_first_limit() -> None:
    assert whole().kubernetes.oom_limit_bytes("worker") == quantity_bytes("16Gi")
    twice = job(worker_resource_limit="memory=3Gi").kubernetes
    assert (twice.memory_limit_bytes("worker"), twice.oom_limit_bytes("worker")) == (
        3 << 30,
        6 << 30,
    )
    assert twice.oom_limit_bytes("ps") is None
    assert (
        job(ps_resource_limit="memory=3Gi", oom_memory_limit="1Gi").kubernetes.oom_limit_bytes("ps")
        == 3 << 30
    )


def test_labels_and_scheduler_reach_every_pod_and_the_job_but_never_replace_ours() -> None:
    spec = whole()
    made = [job_object(spec, "n"), *pod_objects(spec, "n")]
    for one in made:
        labels = one["metadata"]["labels"]
        assert (labels["team"], labels["kueue.x-k8s.io/queue-name"]) == ("a", "q")
        assert labels["app.kubernetes.io/name"] == "elasticdl"
    assert [one["spec"]["schedulerName"] for one in made[1:]] == ["packer"] * 3
    assert "schedulerName" not in role_pod(job(), Role.WORKER)


def test_only_what_differs_is_told_of_a_job() -> None:
    told = whole().flags(defaults=False)
    assert told["ttl_seconds"] == 600 and "seed" not in told and "num_workers" not in told
    assert JobSpec.from_flags(Action.TRAIN, told) == whole()


def of(message: str) -> dict[str, Any]:
    return {
        "status": {
            "containerStatuses": [
                {"name": "process", "state": {"terminated": {"message": message}}}
            ]
        }
    }


def test_an_outcome_comes_back_from_the_pod_it_was_left_in() -> None:
    outcome = Outcome(
        1,
        "ü failed",
        "/data/j",
        "mend it",
        {"epochs": [{"epoch": 0, "trained": 9}], "total": {"expected": 9, "lost": 0}},
        {"accuracy": 0.5},
        float("inf"),
        "/data/o",
        "evaluate",
    )
    assert read_outcome(of(outcome_text(outcome))) == outcome


@pytest.mark.parametrize(
    "message",
    ["", "Traceback (most recent call last)", "[]", "{}", '{"exit_code": "x", "message": 1}'],
)
def test_what_is_no_outcome_is_none(message: str) -> None:
    assert read_outcome(of(message)) is None
    assert read_outcome({"status": {}}) is None


@pytest.mark.parametrize("letter", ["x", "ü", "\n", '"', "\N{GRINNING FACE}"])
def test_an_outcome_of_any_length_fits_and_keeps_its_verdict(letter: str) -> None:
    outcome = Outcome(
        3,
        letter * 9000,
        "/j",
        letter * 9000,
        {"epochs": [{"epoch": number} for number in range(999)], "total": {"expected": 9}},
        {letter * n: 1.0 for n in range(100)},
        0.5,
        letter * 999,
    )
    text = outcome_text(outcome)
    assert len(text.encode()) <= LIMIT_BYTES
    found = read_outcome(of(text))
    assert found is not None and (found.exit_code, found.receipt) == (3, {"total": {"expected": 9}})
    assert found.message.startswith(letter * 100)


def test_the_master_of_a_job_is_told_what_it_cannot_know() -> None:
    made = job_object(whole(), "n")["spec"]["template"]["spec"]["containers"][0]
    assert made["command"] == ["python3", "-m", "elasticdl.master.main"]
    names = {entry["name"] for entry in made["env"]}
    assert {
        f"ELASTICDL_{name}"
        for name in ("NAMESPACE", "JOB_NAME", "JOB_UID", "POD_NAME", "POD_ADDRESS")
    } <= names


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        (
            "namespace",
            [
                "../secrets",
                "a/b",
                "team_a",
                "Team",
                "-a",
                "a" * 64,
                "näme",
                "a?watch=1",
                "a b",
                "a\n",
            ],
        ),
        ("labels", ["a", "-a=b", "a/b/c=d", "a=-", "a=" + "b" * 64, "elasticdl.org/role=x"]),
        ("labels", ["app.kubernetes.io/name=x", "job-name=x", "A_/b=c", "batch.kubernetes.io/x=y"]),
        ("scheduler_name", ["a/b", "A"]),
        ("service_account", ["../x", "a/b", "A", "a_b", "a" * 254]),
        ("image_pull_secrets", ["a,b/c", "x,../y"]),
        ("worker_pod_priority", ["../{rung}", "rung {rung}", "{other}"]),
        ("master_pod_priority", ["a/b"]),
        ("volume", ["claim_name=../x,mount_path=/x", "claim_name=c,mount_path=//"]),
        (
            "image_name",
            ["Zoo:1", "zoo :1", "zoo\n", "zoo:1:2", "zoo@sha256:12", "https://registry/zoo"],
        ),
        ("worker_resource_limit", ["cpu=1,cpu=2", "cpu=\u0663", "memory=1e400", "memory=\u0661Gi"]),
    ],
)
def test_what_no_object_can_be_called_is_refused_before_it_gets_into_an_address(
    flag: str, values: list[str]
) -> None:
    for value in values:
        with pytest.raises(SpecError, match=f"--{flag.replace('_', '-')}"):
            job(**{flag: value})


def test_names_that_clusters_take_are_taken() -> None:
    job(
        namespace="a" * 63,
        service_account="team.a-1",
        worker_pod_priority="elasticdl-rung-{rung}",
        image_pull_secrets="a,b.c",
    )
    job(image_name="registry.local:5000/team/zoo:7", job_name="a" * 52)
    job(image_name=f"[::1]:5000/zoo@sha256:{'0' * 64}")


def test_a_secret_for_the_page_is_mounted_into_the_masters_pod_only() -> None:
    asked = JobSpec.from_flags(Action.TRAIN, {**NEEDED, **EVERYTHING, "tls": "ads-page"})
    assert asked.uses_tls and asked.page_secret == "ads-page"
    master, *others = (json.dumps(one["spec"]) for one in pod_objects(asked, "team-a"))
    assert '"secretName": "ads-page"' in master and "/var/run/elasticdl-page" in master
    assert not any("ads-page" in other or "elasticdl-page" in other for other in others)


@pytest.mark.parametrize(
    "tls,on_cluster,here", [("auto", True, False), ("on", True, True), ("off", False, False)]
)
def test_tls_is_on_for_a_cluster_and_off_for_this_machine_unless_it_is_said(
    tls: str, on_cluster: bool, here: bool
) -> None:
    local = JobSpec.from_flags(Action.TRAIN, {**NEEDED, "tls": tls})
    remote = JobSpec.from_flags(Action.TRAIN, {**NEEDED, **EVERYTHING, "tls": tls})
    assert (remote.uses_tls, local.uses_tls) == (on_cluster, here)
    assert remote.page_secret is None and local.page_secret is None


@pytest.mark.parametrize("tls,words", [("page", "--tls page without --image-name"), ("A_b", "tls")])
def test_a_secret_of_a_local_job_and_a_name_that_is_none_are_refused(tls: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        JobSpec.from_flags(Action.TRAIN, {**NEEDED, "tls": tls})
