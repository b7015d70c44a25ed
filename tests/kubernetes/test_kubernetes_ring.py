"""A ring of pods: whatever the cluster does to its members, the others go on, new ones join, and no
record is trained twice.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.kubernetes.faults import (
    cut_off,
    delete,
    evict,
    filled,
    free_m,
    kubectl,
    until_all_have_gone,
)
from tests.kubernetes.jobs import DATA, Job, Jobs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
WORKER_M = 400
GONE_ON_S = 30.0
"""A silent member is given up after 4 s; the rest is for a machine that is busy with other
clusters.
"""


def test_a_ring_loses_members_and_takes_in_new_ones(jobs: Jobs) -> None:
    place = jobs.place
    assert place.own is not None
    jobs.make_data("digits")
    jobs.set_up_ladder()
    job = jobs.submit(
        "ring",
        model_def="paced",
        distribution_strategy="AllreduceStrategy",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=12,
        minibatch_size=32,
        num_workers=2,
        envs=f"PACED_FOLDER={DATA}",
        worker_resource_request=f"cpu={WORKER_M}m,memory=900Mi",
        worker_resource_limit="memory=1200Mi",
    )
    first = members(job)
    delete(job, first[0])
    told = {first[0]: "deleted"}
    second = members(job, without=told)
    evict(job, second[-1])
    told[second[-1]] = "evicted"
    members(job, without=told)
    told |= preempted(job)
    told |= lost_silently(job, members(job, without=told))
    members(job, without=told)
    assert job.causes(told) == told, job.story()
    (jobs.folder / "hurry").touch()
    job.done()
    assert job.receipt()["repeated"] == 0, job.story()
    assert job.metrics()["accuracy"] >= 0.95


def members(job: Job, without: dict[str, str] = {}) -> list[str]:  # noqa: B006 - read only
    """Those of the newest ring, by rank, once two workers that are none of these have the weights
    in it.
    """

    def complete(events: list[dict[str, Any]]) -> list[str] | None:
        newest = (rings(events) or [""])[-1]
        if " is complete " not in newest:
            return None
        found = newest.rpartition(": ")[2].split(", ")
        return found if len(found) == 2 and not set(found) & set(without) else None

    return job.until("two workers are in the ring", complete)


def rings(events: list[dict[str, Any]]) -> list[str]:
    """What was told of each."""
    return [
        event["text"]
        for event in events
        if event["kind"] == "ring" and " of the ring" in event["text"]
    ]


def lost_silently(job: Job, ring: list[str]) -> dict[str, str]:
    """The network of a member's pod goes, and nobody is told: the other one goes on, and the member
    is given up for its silence.
    """
    victim, survivor = ring
    earlier = len(rings(job.events()))
    cut_off(job, victim)
    cut_s = time.monotonic()
    job.until(
        f"{survivor} is a ring of its own",
        lambda events: any(text.endswith(f": {survivor}") for text in rings(events)[earlier:]),
        GONE_ON_S,
    )
    trained = job.progress()
    job.until(f"{survivor} goes on alone", lambda _: job.progress() > trained, GONE_ON_S)
    took_s = time.monotonic() - cut_s
    event = job.ended(victim)
    assert "no message for" in event["text"], f"{event}\n{job.story()}"
    print(
        f"the survivor trained on {took_s:.1f} s after the network of {victim} had gone:"
        f" {event['text']}"
    )
    return {victim: "silent"}


def preempted(job: Job) -> dict[str, str]:
    """A pod of a higher class, below that of the master, takes the place of the member on the
    higher rung.
    """
    until_all_have_gone(job.jobs.place)
    with filled(job, free_m(job.jobs.place) + WORKER_M // 2):
        events = job.until(
            "a member is preempted",
            lambda events: [event for event in events if event["cause"] == "preempted"],
        )
        kubectl(job, "wait", "--for=condition=Ready", "pod/filler", "--timeout=60s")
        # The other one goes on alone.
        trained = job.progress()
        job.until("it goes on training", lambda _: job.progress() > trained)
    return {event["process"]: "preempted" for event in events}
