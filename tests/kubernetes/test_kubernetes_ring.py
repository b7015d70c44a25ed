"""A ring of pods: whatever the cluster does to its members, the others go on, new ones join, and no record is trained twice."""

from __future__ import annotations

import pytest

from tests.kubernetes.faults import delete, evict, filled, free_m, kubectl
from tests.kubernetes.jobs import DATA, ROOT, Job, Jobs

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1500)]
JOB_LIMIT_S = 400.0
WORKER_M = 400


def test_a_ring_loses_members_and_takes_in_new_ones(jobs: Jobs) -> None:
    place = jobs.place
    assert place.own is not None
    jobs.make_data("digits")
    place.kubectl("apply", "-f", "-", text=(ROOT / "docker/priorities.yaml").read_text())
    job = jobs.submit(
        "ring",
        model_def="paced",
        distribution_strategy="AllreduceStrategy",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=30,
        minibatch_size=32,
        num_workers=2,
        envs=f"PACED_FOLDER={DATA};PACED_S=0.5",
        master_pod_priority="elasticdl-guaranteed",
        worker_pod_priority="elasticdl-rung-{rung}",
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
    members(job, without=told)
    assert {name: job.causes().get(name) for name in told} == told, job.story()
    (jobs.folder / "hurry").touch()
    code, said = job.wait(JOB_LIMIT_S)
    assert code == 0, f"{said}\n{job.story()}"
    total = job.receipt()
    assert total["trained"] == total["expected"] > 0 and total["lost"] == total["repeated"] == 0, f"{total}\n{job.story()}"
    assert job.metrics()["accuracy"] >= 0.95


def members(job: Job, without: dict[str, str] = {}) -> list[str]:  # noqa: B006 - read only
    """Those of the newest ring, by rank, once two workers that are none of these have the weights in it."""

    def complete(events: list[dict]) -> list[str] | None:
        rings = [event["text"] for event in events if event["kind"] == "ring" and " of the ring" in event["text"]]
        if not rings or " is complete " not in rings[-1]:
            return None
        found = rings[-1].rpartition(": ")[2].split(", ")
        return found if len(found) == 2 and not set(found) & set(without) else None

    return job.until("two workers are in the ring", complete)


def preempted(job: Job) -> dict[str, str]:
    """A pod of a higher class, below that of the master, takes the place of the member on the higher rung."""
    with filled(job, free_m(job.jobs.place) + WORKER_M // 2):
        events = job.until("a member is preempted", lambda events: [one for one in events if one["cause"] == "preempted"])
        kubectl(job, "wait", "--for=condition=Ready", "pod/filler", "--timeout=60s")
        # The other one goes on alone.
        trained = job.progress()
        job.until("it goes on training", lambda _: job.progress() > trained)
    return {event["process"]: "preempted" for event in events}
