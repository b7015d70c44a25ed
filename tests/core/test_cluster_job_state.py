"""What a Job and its pods say of a job on a cluster."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from elasticdl.cli.jobs.job import JobLocation, Kind, Report
from elasticdl.cli.jobs.pod_status import rows
from elasticdl.cli.jobs.start_diagnosis import CannotStart, StartTimer
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.findings import Weight
from elasticdl.cluster.kubernetes.checking import image, judged, needs
from elasticdl.cluster.kubernetes.job_state import JobStage, job_state
from elasticdl.cluster.kubernetes.labels import JOB_UID_LABEL, labels, pod_name
from elasticdl.cluster.kubernetes.pod_logs import chosen, entries
from elasticdl.cluster.kubernetes.termination_message import outcome_text
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import unknown_status
from elasticdl.jobdir.outcome import Outcome

pytestmark = pytest.mark.core
UID = "uid-of-the-job"


def job(*conditions: tuple[str, str], **spec: Any) -> dict[str, Any]:
    found = [{"type": kind, "status": "True", "message": message} for kind, message in conditions]
    metadata = {
        "name": "digits",
        "namespace": "ns",
        "uid": UID,
        "creationTimestamp": "2026-11-21T10:00:00Z",
    }
    return {"metadata": metadata, "spec": spec, "status": {"conditions": found}}


def pod(
    role: Role, index: int = 0, incarnation: int = 0, *, at_s: int = 1, uid: str = UID, **state: Any
) -> dict[str, Any]:
    """`state` is that of its container: running, waiting or terminated."""
    name = ProcessName(role, index, incarnation)
    ended = state.get("terminated")
    phase = (
        "Pending" if not state or "waiting" in state else "Running" if ended is None else "Failed"
    )
    return {
        "metadata": {
            "name": f"{pod_name('digits', name)}-{at_s}",
            "namespace": "ns",
            "uid": f"{name}-{at_s}",
            "creationTimestamp": f"2026-11-21T10:00:{at_s:02}Z",
            "labels": {**labels("digits", name), JOB_UID_LABEL: uid},
            "ownerReferences": [{"uid": uid}],
        },
        "spec": {"nodeName": "node0", "containers": [{"name": "process", "image": "i"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "process", "state": state}] if state else [],
        },
    }


def running(
    role: Role = Role.MASTER, index: int = 0, incarnation: int = 0, *, at_s: int = 1
) -> dict[str, Any]:
    return pod(role, index, incarnation, at_s=at_s, running={"startedAt": "2026-11-21T10:00:02Z"})


def ended(code: int, said: str = "", *, at_s: int = 1, reason: str = "Error") -> dict[str, Any]:
    return pod(
        Role.MASTER, at_s=at_s, terminated={"exitCode": code, "reason": reason, "message": said}
    )


@pytest.mark.parametrize(
    ("found", "standing", "waits_for"),
    [
        (job_state(job()), JobStage.WAITING, "the cluster has not created its master's pod yet"),
        (job_state(job(suspend=True)), JobStage.WAITING, "it is suspended, for example by a queue"),
        (
            job_state(job(), [pod(Role.MASTER)]),
            JobStage.WAITING,
            "its master: node node0 is preparing it",
        ),
        (
            job_state(job(), [ended(137, at_s=1)]),
            JobStage.WAITING,
            "its master ended (signal 9) and is being restarted",
        ),
        (
            job_state(job(), [ended(66)]),
            JobStage.WAITING,
            "its master ended (exit code 66) and is being restarted",
        ),
        (
            job_state(job(), [ended(130)]),
            JobStage.WAITING,
            "its master has ended (exit code 130), which the cluster is about to",
        ),
        (
            job_state(job(), [ended(0)]),
            JobStage.WAITING,
            "its master has ended (exit code 0), which the cluster is about to",
        ),
        (job_state(job(), [ended(1, at_s=1), running(at_s=2)]), JobStage.RUNNING, ""),
        (
            job_state(
                {
                    **job(),
                    "metadata": {**job()["metadata"], "deletionTimestamp": "2026-11-21T10:01:00Z"},
                },
                [running()],
            ),
            JobStage.LEAVING,
            "it is being deleted",
        ),
    ],
)
def test_a_job_that_has_not_ended_runs_or_says_what_it_waits_for(
    found: Any, standing: JobStage, waits_for: str
) -> None:
    assert found.standing is standing and found.ended is None
    assert found.waits_for.startswith(waits_for) and bool(waits_for) == bool(found.waits_for)


@pytest.mark.parametrize(
    ("code", "standing"), [(0, JobStage.DONE), (1, JobStage.FAILED), (130, JobStage.STOPPED)]
)
def test_the_masters_word_is_how_a_job_ended(code: int, standing: JobStage) -> None:
    said = Outcome(
        code,
        "so it ended",
        "/data/digits",
        "do this",
        {"epochs": [], "total": {"expected": 10, "trained": 10, "lost": 0}},
        {"accuracy": 0.9},
        0.1,
        "/out",
        "train",
    )
    condition = "Complete" if code == 0 else "Failed"
    found = job_state(
        job((condition, "")), [ended(1, "an earlier one"), ended(code, outcome_text(said), at_s=9)]
    )
    assert (found.standing, found.ended) == (standing, said)


@pytest.mark.parametrize(
    ("condition", "pods", "code", "words"),
    [
        (("Complete", ""), [], 0, "done"),
        (
            (
                "Failed",
                (
                    "Container process for pod ns/digits failed with exit code 130 matching FailJob"
                    " rule"
                ),
            ),
            [],
            130,
            "without a report",
        ),
        (
            ("Failed", "Job has reached the specified backoff limit"),
            [ended(137, "last words", reason="OOMKilled")],
            1,
            "OOMKilled",
        ),
        (
            ("Failed", "Job has reached the specified backoff limit"),
            [ended(137, "last words")],
            1,
            "last words",
        ),
        (("Failed", ""), [ended(77, "")], 1, "exit code 77"),
    ],
)
def test_without_a_word_the_clusters_facts_tell_the_end(
    condition: Any, pods: Any, code: int, words: str
) -> None:
    found = job_state(job(condition), pods).ended
    assert found is not None and found.exit_code == code and words in found.message


def test_pods_of_another_job_of_that_name_and_pods_that_are_none_of_ours_do_not_count() -> None:
    stranger = {
        "metadata": {"name": "x", "uid": "x", "ownerReferences": [{"uid": UID}], "labels": {}}
    }
    found = job_state(job(), [pod(Role.MASTER, uid="another"), stranger, running(Role.WORKER)])
    assert found.masters == () and len(found.pods) == 1


def test_logs_are_chosen_by_process_and_the_newest_incarnation_is_meant() -> None:
    pods = [
        ended(137, at_s=1),
        running(at_s=5),
        running(Role.PS, 0, 1, at_s=3),
        pod(Role.PS, 0, 0, at_s=2, terminated={"exitCode": 66}),
    ]
    found = job_state(job(), [*pods, running(Role.WORKER, 2)])
    assert [name for name, _ in entries(found)] == [
        "master-0",
        "master-0.1",
        "worker-2",
        "ps-0",
        "ps-0.1",
    ]
    assert (
        dict(entries(found))["ps-0"] == "ended with exit code 66"
        and dict(entries(found))["worker-2"] == "runs on node0"
    )

    def name_of(process: str) -> str:
        chosen_pod = chosen(found, process)
        return "" if chosen_pod is None else chosen_pod["metadata"]["uid"]

    assert name_of("master-0") == "master-0-5" and name_of("master-0.0") == "master-0-1"
    assert name_of("ps-0") == name_of("ps-0.1") == "ps-0.1-3" and name_of("ps-0.0") == "ps-0-2"
    for nonsense in ("worker-0", "ps-0.7", "../../etc/passwd", "", "worker"):
        assert name_of(nonsense) == ""


def test_processes_are_told_in_the_masters_words() -> None:
    found = job_state(
        job(),
        [
            running(),
            pod(Role.WORKER, 1, terminated={"exitCode": 137, "reason": "OOMKilled"}),
            pod(Role.WORKER, 2),
        ],
    )
    told = {row.name: row for row in rows(found)}
    assert told["master-0"].state == "running"
    assert (told["worker-1"].state, told["worker-1"].cause) == ("ended", "out_of_memory")
    assert (told["worker-2"].state, told["worker-2"].message) == (
        "pending",
        "node node0 is preparing it",
    )


def spec(**flags: object) -> JobSpec:
    return JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv", **flags}
    )


def test_one_schema_wherever_a_job_is() -> None:
    status = unknown_status("its master is starting")
    local = Report(
        "digits", JobLocation(Kind.LOCAL, job_dir="/jobs/digits"), "waiting", 3.0, status
    ).as_dict()
    remote = Report(
        "digits", JobLocation(Kind.KUBERNETES, namespace="ns"), "waiting", 3.0, status
    ).as_dict()
    assert set(local) == set(remote)
    assert {key for key in local if local[key] != remote[key]} == {"place", "namespace", "job_dir"}
    assert (
        str(JobLocation(Kind.LOCAL, job_dir="/jobs/digits")),
        str(JobLocation(Kind.KUBERNETES, namespace="ns")),
    ) == ("/jobs/digits", "namespace ns")


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("registry.example.com:5000/team/elasticdl:1.0", Weight.FINE),
        ("localhost/elasticdl@sha256:" + "0" * 64, Weight.FINE),
        ("[::1]:5000/elasticdl:1", Weight.FINE),
        ("elasticdl", Weight.WARNING),
        ("registry:5000/elasticdl", Weight.WARNING),
        ("Elasticdl:1", Weight.PROBLEM),
        ("https://registry/elasticdl:1", Weight.PROBLEM),
        ("a b", Weight.PROBLEM),
        ("elasticdl:", Weight.PROBLEM),
    ],
)
def test_names_of_images_are_told_from_what_is_none(name: str, weight: Weight) -> None:
    assert image(name).weight is weight


def on_cluster(**flags: object) -> JobSpec:
    asked = {
        "image_name": "i:1",
        "num_workers": "2:4",
        "worker_resource_request": "cpu=500m,memory=1Gi",
        "job_name": "digits",
    }
    return spec(**{**asked, "ps_resource_limit": "cpu=1", **flags})


def test_what_a_job_takes_is_counted_as_quotas_count_it() -> None:
    found = needs(on_cluster(num_ps_pods=2), workers=4, servers=2)
    assert (found["requests.cpu"], found["cpu"], found["limits.cpu"], found["pods"]) == (4, 4, 2, 7)  # type: ignore[comparison-overlap]
    assert found["requests.memory"] == Decimal(4 << 30)


@pytest.mark.parametrize(
    ("used", "hard", "weight", "words"),
    [
        (
            "8",
            "8",
            Weight.WARNING,
            "quota team-a: cpu 8 of 8 used; the job needs 2 to start, so it would wait",
        ),
        ("5", "8", None, ""),
        (
            "5500m",
            "8",
            Weight.WARNING,
            "with all workers the job needs 3, so it would run with fewer",
        ),
        (
            "0",
            "1500m",
            Weight.PROBLEM,
            "cpu 0 of 1500m used; the job needs 2 to start, which exceeds the quota",
        ),
    ],
)
def test_a_quota_says_what_is_used_and_what_is_needed(
    used: str, hard: str, weight: Weight | None, words: str
) -> None:
    limits = {"hard": {"cpu": hard, "pods": "99"}}
    quota = {
        "metadata": {"name": "team-a"},
        "spec": limits,
        "status": limits | {"used": {"cpu": used}},
    }
    job_spec = on_cluster()
    found = judged(quota, needs(job_spec, 2, 1), needs(job_spec, 4, 1))
    assert [one.weight for one in found] == ([weight] if weight else [])
    assert all(words in one.text for one in found)


def test_a_quota_that_is_not_counted_yet_bounds_as_well() -> None:
    job_spec = on_cluster()
    for status in ({}, {"hard": {"cpu": "8"}}):
        quota = {
            "metadata": {"name": "team-a"},
            "spec": {"hard": {"cpu": "1500m"}},
            "status": status,
        }
        (found,) = judged(quota, needs(job_spec, 2, 1), needs(job_spec, 4, 1))
        assert found.weight is Weight.PROBLEM
        assert (
            found.text
            == "quota team-a: cpu limit 1500m, usage not counted yet; the job needs 2 to start,"
            " which exceeds the quota"
        )


def test_a_master_whose_node_is_lost_is_reported_with_what_helps() -> None:
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T10:05:00Z"
    due_s = 1795255500.0
    told = job_state(job(), [leaving])
    assert told.lost_master(due_s + 30) == "", "nodes take their time"
    words = told.lost_master(due_s + 61)
    assert (
        "node node0 of its master has not answered" in words
        and "kubectl delete pod digits-master-0-1 --force" in words
    )
    assert """kubectl patch pod digits-master-0-1 -p '{"metadata":{"finalizers":null}}')""" in words
    assert job_state(job(), [running()]).lost_master(due_s + 61) == ""
    assert job_state(job()).lost_master(due_s + 61) == ""
    gone = ended(66)
    gone["metadata"]["deletionTimestamp"] = "2026-11-21T10:05:00Z"
    assert job_state(job(), [gone]).lost_master(due_s + 61) == ""


def test_a_master_whose_node_is_silent_is_reported_as_such_before_its_pod_is_given_up() -> None:
    """Seen: the control plane takes back that the pod is ready, without a reason; a node tells both
    together.
    """
    silent, since = running(), "2026-11-21T20:39:09Z"
    containers = {"type": "ContainersReady", "status": "True"}
    silent["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": since},
        containers,
    ]
    words = job_state(job(), [silent]).lost_master(0.0)
    assert words.startswith(
        f"node node0 of its master has not answered since {since}; a job never has two"
        " masters, so it continues"
    )
    for ready in ({"status": "True"}, {"status": "False", "reason": "ReadinessGatesNotReady"}):
        fine = running()
        fine["status"]["conditions"] = [{"type": "Ready", **ready}, containers]
        assert job_state(job(), [fine]).lost_master(0.0) == ""


def no_image(*, at_s: int = 1) -> dict[str, Any]:
    return pod(
        Role.MASTER, at_s=at_s, waiting={"reason": "ErrImagePull", "message": "401 Unauthorized"}
    )


NO_PYTHON = pod(
    Role.MASTER,
    at_s=1,
    terminated={"exitCode": 128, "reason": "StartError", "message": "no python3"},
)


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([no_image()], "image i cannot be pulled (ErrImagePull): 401 Unauthorized"),
        ([NO_PYTHON], "its container could not be started: no python3"),
        ([NO_PYTHON, pod(Role.MASTER, at_s=2)], "its container could not be started: no python3"),
        ([NO_PYTHON, running(at_s=2)], ""),
        ([ended(137)], ""),
        ([running()], ""),
        ([pod(Role.MASTER)], ""),
    ],
)
def test_a_master_that_cannot_start_is_told_from_one_that_waits(
    pods: list[dict[str, Any]], words: str
) -> None:
    found = job_state(job(), pods)
    assert ("" if found.barred is None else found.barred.text) == words
    assert (found.standing is JobStage.STUCK) == bool(words)
    assert words in found.waits_for
    assert job_state(job(("Failed", "deadline")), pods).barred is None


def test_an_image_is_given_up_after_forty_seconds_with_the_registrys_words_unless_it_ran() -> None:
    now_s = [100.0]
    timer = StartTimer(lambda: now_s[0])
    stuck, backed_off = (
        job_state(job(), [no_image()]),
        pod(Role.MASTER, waiting={"reason": "ImagePullBackOff", "message": "later"}),
    )
    prepared = job_state(job(), [pod(Role.MASTER)])
    timer.seen(stuck, lambda: False)
    for now_s[0] in (110.0, 130.0):
        timer.seen(job_state(job(), [backed_off]), lambda: False)
        timer.seen(prepared, lambda: False)
    now_s[0] = 141.0
    timer.seen(stuck, lambda: True)
    with pytest.raises(CannotStart, match=r"digits cannot start: .* 401 Unauthorized"):
        timer.seen(job_state(job(), [backed_off]), lambda: False)
    # All was well for long: a failure now is the first one.
    for now_s[0] in (150.0, 195.0):
        timer.seen(prepared, lambda: False)
    now_s[0] = 200.0
    timer.seen(stuck, lambda: False)
