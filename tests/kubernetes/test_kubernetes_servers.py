"""The parameter server of one job is killed in its container and evicted. No update is lost, and no
other pod notices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.kubernetes.faults import evict, kill
from tests.kubernetes.jobs import DATA, Job, Jobs, until_seen

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
STEP_LIMIT_S = 120.0


def test_a_server_that_is_killed_or_evicted_loses_no_update(jobs: Jobs) -> None:
    jobs.make_data("digits")
    job = jobs.submit(
        "servers",
        model_def="counted",
        training_data=f"{DATA}/digits/train.npz",
        validation_data=f"{DATA}/digits/test.npz",
        num_epochs=60,
        minibatch_size=32,
        num_workers=2,
        num_ps_pods=1,
        checkpoint_seconds=0,
        envs=f"PACED_FOLDER={DATA};PACED_S=0.3",
    )
    job.until_workers(2)
    job.continues()
    before = pods(job)
    assert len(before) == 4, before

    # The node starts the first container at once, and the next one after 10 s.
    for incarnation in (1, 2):
        kill(job, job.pod("ps-0"), "ps")
        took_over(job, f"ps-0.{incarnation}")
        same = {**before, "servers-ps-0": (before["servers-ps-0"][0], incarnation)}
        # The node writes the pod's status some time after it has started the container.
        until_seen("the node shows the restart", partial(shows, job, same), STEP_LIMIT_S)

    evict(job, "ps-0.2", pod=job.pod("ps-0"))
    took_over(job, "ps-0.3")
    after = {name: pod for name, pod in pods(job).items() if "-ps-" not in name}
    assert after == {name: pod for name, pod in before.items() if "-ps-" not in name}

    causes = {"ps-0": "infrastructure", "ps-0.1": "infrastructure", "ps-0.2": "evicted"}
    assert job.causes(causes) == causes, job.story()
    assert job.status()["updates"]["lost"] == 0, job.story()
    (jobs.folder / "hurry").touch()
    job.done()
    total = job.receipt()
    assert total["repeated"] == 0, job.story()
    assert job.metrics()["count"] == total["trained"], "the weights have each record once"


def took_over(job: Job, process: str) -> None:
    """Wait until a server has the updates of the one before, and workers train with it."""
    said = job.until(
        f"{process} serves",
        lambda events: [
            event["text"]
            for event in events
            if event["process"] == process and event["kind"] == "server"
        ],
        STEP_LIMIT_S,
    )
    assert "no update of its part was lost" in said[0], job.story()
    job.continues()


def shows(job: Job, wanted: dict[str, tuple[str, int]]) -> bool:
    return pods(job) == wanted


def pods(job: Job) -> dict[str, tuple[str, int]]:
    """Uid of each pod that runs, and how many containers it had before the present one."""
    found: list[dict[str, Any]] = job.jobs.place.read("pods", "-n", job.jobs.namespace)["items"]
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in found
        if pod["status"]["phase"] == "Running"
    }
