"""People stop jobs whose workers hang in the user's code, and so do not drain."""

from __future__ import annotations

import time

import pytest

from tests.kubernetes.faults import processes
from tests.kubernetes.jobs import DATA, STEP_LIMIT_S, Job, Jobs, until_seen

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
ENDS_S = 15.0
"""On a busy machine. The grace of a worker's pod is 30 s, and nodes do not shorten it."""


def test_a_second_stop_and_a_stop_at_once_end_a_worker_that_hangs_within_seconds(
    jobs: Jobs,
) -> None:
    jobs.make_data("digits")
    twice, at_once = (_trains(jobs, name) for name in ("twice", "at-once"))
    for job in (twice, at_once):
        _hang(job)
    _stop(twice)
    twice.until("its worker drains", _is_stopping)
    _stop(twice)
    _until_no_worker_runs(twice)
    code, said = twice.wait(STEP_LIMIT_S)
    assert code == 130, said
    _stop(at_once, "--now")
    _until_no_worker_runs(at_once)


def _trains(jobs: Jobs, name: str) -> Job:
    return jobs.submit(
        name,
        model_def="paced",
        training_data=f"{DATA}/digits/train.npz",
        num_epochs=50,
        minibatch_size=32,
        num_workers=1,
        num_ps_pods=1,
        envs=f"PACED_FOLDER={DATA}/{name}",
    )


def _hang(job: Job) -> None:
    job.until("it trains", lambda _: job.progress() > 0)
    order = job.directory / "hang"
    order.touch()
    job.until("its worker hangs", lambda _: not order.exists())


def _is_stopping(events: list[dict[str, object]]) -> bool:
    return any(str(event["text"]).startswith("stopping worker-0") for event in events)


def _stop(job: Job, *more: str) -> None:
    done = job.jobs.elasticdl("stop", job.name, "--yes", *more)
    assert done.returncode == 0, done.stderr


def _until_no_worker_runs(job: Job) -> None:
    asked_s = time.monotonic()

    def workers() -> list[str]:
        return [pod for pod in processes(job) if "-worker-" in pod]

    until_seen("no worker runs", lambda: not workers(), ENDS_S, context=job.story)
    print(f"the worker of {job.name} ended {time.monotonic() - asked_s:.1f} s after the stop")
