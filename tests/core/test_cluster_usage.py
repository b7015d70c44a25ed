"""What `elasticdl top` says, from the objects of a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from elasticdl.cli.jobs.pod_status import status_of_pods
from elasticdl.cluster.base import ProcessName, ProcessSpec, Role
from elasticdl.cluster.kubernetes.job_objects import pod
from elasticdl.cluster.kubernetes.job_state import job_state
from elasticdl.cluster.kubernetes.planning import job_object, pod_plan
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.cluster.kubernetes.usage import ClusterUsage, cluster_usage
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import ClusterShare

pytestmark = pytest.mark.core
NOW_S = 1_800_000_000.0
NODES = [
    {
        "metadata": {"name": name},
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
    for name, ready, cordoned in (
        ("a", "True", False),
        ("b", "True", False),
        ("lost", "Unknown", False),
        ("cordoned", "True", True),
    )
]


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW_S - seconds, UTC).isoformat()


def job_of(name: str, placed: int, pending: int = 0, **flags: Any) -> tuple[Any, list[Any]]:
    """A Job an hour old, and its pods; those that wait wait the longer the lower their index."""
    spec = JobSpec.from_flags(
        Action.TRAIN,
        {
            "model_def": "m",
            "training_data": "t",
            "image_name": "i",
            "job_name": name,
            "num_workers": "1:9",
            "worker_resource_request": "cpu=500m,memory=1Gi",
            **flags,
        },
    )
    owner = Owner("team", name, f"uid-{name}")
    made = job_object(spec, "team")
    made["metadata"] |= {"uid": owner.uid, "creationTimestamp": ago(3600)}
    pods = []
    for index in range(placed + pending):
        plan = pod_plan(spec, Role.WORKER, index + 1)
        one = pod(owner, plan, ProcessSpec(ProcessName(Role.WORKER, index), ("x",)))
        one["metadata"] |= {"uid": f"{name}-{index}", "creationTimestamp": ago(100 - index)}
        said = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}
        one["status"] = {"phase": "Pending", "conditions": [{**said, "reason": "Unschedulable"}]}
        if index < placed:
            one["spec"]["nodeName"] = "a"
            one["status"] = {"phase": "Running"}
        pods.append(one)
    return made, pods


def usage(*jobs: tuple[Any, list[Any]], nodes: Any = NODES, others: Any = ()) -> ClusterUsage:
    pods = [one for _, found in jobs for one in found]
    every = None if others is None else [*pods, *others]
    return cluster_usage([made for made, _ in jobs], pods, nodes, every, NOW_S)


def test_a_job_has_a_share_a_wish_and_what_it_waits_for() -> None:
    found = usage(job_of("small", 1), job_of("large", 4, pending=3, weight=2))
    large, small = found.jobs
    assert (large.name, large.weight, large.workers, large.pending) == ("large", 2, 4, 3)
    assert (large.minimum, large.maximum, large.wished_servers) == (1, 9, 1)
    assert large.most_servers == 1
    assert large.share == pytest.approx(4 * 0.5 / 16), "of the nodes that are ready and take pods"
    assert large.waiting_s == pytest.approx(3600) and large.age_s == pytest.approx(3600)
    assert small.share == pytest.approx(0.5 / 16)
    assert small.waits_for == large.waits_for == "the cluster has not created its master's pod yet"


def test_the_status_of_a_job_without_a_master_agrees_with_top() -> None:
    made, pods = job_of("large", 4, pending=3, weight=2, priority_ladder="on")
    (told,) = usage((made, pods)).jobs
    status = status_of_pods(job_state(made, pods), "its master is away")
    assert status.cluster_share == ClusterShare(2, 4, 1, 9, 1, 2)
    assert (told.weight, told.workers, told.minimum, told.maximum) == (2, 4, 1, 9)
    ended = {**made, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert status_of_pods(job_state(ended, pods), "done").cluster_share is None


def test_the_waiting_time_of_a_job_whose_master_runs_is_that_of_its_oldest_pod() -> None:
    made, pods = job_of("j", 2, pending=2)
    master = {
        "metadata": {
            "name": "j-x",
            "uid": "m",
            "creationTimestamp": ago(3000),
            "labels": made["spec"]["template"]["metadata"]["labels"],
            "ownerReferences": [{"uid": "uid-j"}],
        },
        "spec": {**made["spec"]["template"]["spec"], "nodeName": "a"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "process", "state": {"running": {}}}],
        },
    }
    (job,) = usage((made, [*pods, master])).jobs
    assert job.state == "running" and job.waiting_s == pytest.approx(98)
    assert "0/4 nodes" in job.waits_for


def test_utilisation_counts_all_pods_on_nodes_and_jobs_that_have_not_ended() -> None:
    other = {
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "b",
            "containers": [{"resources": {"requests": {"cpu": "4"}}}, {"resources": {}}],
        },
        "status": {"phase": "Running"},
    }
    ended = {**other, "status": {"phase": "Succeeded"}}
    found = usage(job_of("j", 4), others=[other, ended])
    assert found.utilisation["cpu"] == pytest.approx(6 / 16)
    assert found.of_jobs == pytest.approx({"cpu": 2 / 16, "memory": 4 / 32})
    made, pods = job_of("done", 1)
    made["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert usage((made, pods)).jobs == ()


def test_what_the_user_may_not_list_is_unknown() -> None:
    found = usage(job_of("j", 4), nodes=None, others=None)
    assert (found.jobs[0].share, found.utilisation, found.of_jobs) == (None, {}, {})
    document = found.as_document()
    assert document["jobs"][0]["workers"] == 4 and document["jobs"][0]["share"] is None
