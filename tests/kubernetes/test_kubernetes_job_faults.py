"""A whole job on a real cluster, whatever the cluster does to its pods.

The longest test: it has its file, and so a cluster, to itself.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.kubernetes.faults import evict, filled, kill, kubectl, room_m
from tests.kubernetes.jobs import DATA, Job, Jobs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
AWAY_S = float(os.environ.get("ELASTICDL_TEST_AWAY_S", "40"))
"""How long the API server is away: longer than any deadline of a call (30 s), shorter than workers
wait for their master.
"""


def test_one_job_suffers_everything_that_a_cluster_does_and_loses_nothing(jobs: Jobs) -> None:
    place = jobs.place
    assert place.own is not None
    jobs.make_data("digits")
    jobs.set_up_ladder()
    job = jobs.submit(
        "suffers",
        "--no-sync",
        model_def="paced",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=18,
        minibatch_size=32,
        num_workers=2,
        num_ps_pods=1,
        envs=f"PACED_FOLDER={DATA}",
        worker_pod_priority="elasticdl-rung-{rung}",
        worker_resource_request="cpu=400m,memory=900Mi",
        worker_resource_limit="memory=1200Mi",
    )
    told: dict[str, str] = {}
    job.until_workers(2)
    told |= deleted_while_the_node_is_cordoned(job)
    told |= killed(job)
    told |= evicted(job)
    told |= out_of_memory(job)
    told |= preempted(job)
    the_api_server_is_away(job, AWAY_S)
    the_kubelet_is_restarted(job)
    assert job.causes(told) == told, job.story()
    (jobs.folder / "hurry").touch()
    job.done()
    assert job.metrics()["accuracy"] >= 0.95
    by_events = {
        event["process"]: event["cause"]
        for event in job.events()
        if event["process"] in told and event["cause"]
    }
    assert by_events == told, job.story()


def deleted_while_the_node_is_cordoned(job: Job) -> dict[str, str]:
    victim = job.until_workers(2)[0]
    pod = job.jobs.place.read("pods", job.pod(victim), namespace=job.jobs.namespace)
    node = pod["spec"]["nodeName"]
    kubectl(job, "cordon", node)
    try:
        kubectl(job, "delete", "pod", job.pod(victim), "--wait=false")
        job.ended(victim)
        job.until(
            "the wait is told",
            lambda events: [
                event
                for event in events
                if event["kind"] == "wait" and "unschedulable" in event["text"]
            ],
        )
    finally:
        kubectl(job, "uncordon", node)
    job.until_workers(2)
    return {victim: "deleted"}


def killed(job: Job) -> dict[str, str]:
    victim = job.until_workers(2)[0]
    kill(job, job.pod(victim), "worker")
    event = job.ended(victim)
    assert "SIGKILL" in event["text"], event
    job.until_workers(2)
    return {victim: "infrastructure"}


def evicted(job: Job) -> dict[str, str]:
    victim = job.until_workers(2)[0]
    evict(job, victim)
    job.until_workers(2)
    return {victim: "evicted"}


def out_of_memory(job: Job) -> dict[str, str]:
    before = set(job.until_workers(2))
    (job.jobs.folder / "eat").touch()
    event = job.until(
        "a worker is killed for its memory",
        lambda events: [e for e in events if e["cause"] == "out_of_memory"],
    )[0]
    assert event["process"] in before
    job.until_workers(2)
    return {event["process"]: "out_of_memory"}


def preempted(job: Job) -> dict[str, str]:
    """A pod of a higher class, below that of master and server, fills the node and goes again."""
    before = job.until_workers(2)
    with filled(job, room_m(job.jobs.place) - 300):
        told = {victim: job.ended(victim)["cause"] for victim in before}
        assert set(told.values()) == {"preempted"}, job.story()
        kubectl(job, "wait", "--for=condition=Ready", "pod/filler", "--timeout=60s")
        job.until(
            "the wait is told",
            lambda events: [
                event
                for event in events
                if event["kind"] == "wait" and "Insufficient cpu" in event["text"]
            ],
        )
    job.until_workers(2)
    return told


def the_api_server_is_away(job: Job, away_s: float) -> None:
    """Nobody's training notices."""
    own = job.jobs.place.own
    assert own is not None
    before = job.until_workers(2)
    own.kill("kube-apiserver")
    try:
        began_s = time.monotonic()
        job.continues()
        time.sleep(max(0.0, began_s + away_s - time.monotonic()))
        job.continues()
    finally:
        own.start("kube-apiserver")
    job.jobs.place.wait_until_reachable()
    assert job.ready() == before, job.story()


def the_kubelet_is_restarted(job: Job) -> None:
    own = job.jobs.place.own
    assert own is not None
    before = job.until_workers(2)
    own.kill("kubelet")
    own.start("kubelet")
    job.jobs.place.wait_until_node_is_back()
    job.continues()
    assert job.ready() == before, job.story()
