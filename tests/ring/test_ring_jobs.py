"""Whole jobs on a ring: `elasticdl train --distribution-strategy AllreduceStrategy`, whose members
are killed, stopped, sent away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Job
from tests.ring.ring_jobs import EPOCHS, LIMIT_S, RECORDS, finished, start_paced

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Disturbed:
    """A job one member of which was sent away, one was stopped, and of which fewer were wanted;
    then Ctrl-C, and `--resume`.
    """

    job: Job
    drained: str
    """The member that got SIGTERM."""
    cause: str
    """Why it ended, as the events say."""
    without_it: list[str]
    """Members of the next ring of two."""
    stopped: str
    """The member that got SIGSTOP."""
    meanwhile: list[str]
    """Members until it got SIGCONT."""
    again: list[str]
    broken: list[str]
    """What the events say of rings that broke, except while a member was stopped."""
    interrupted: tuple[int, str]
    trained: int
    """Records, when Ctrl-C had stopped the job."""


@pytest.fixture(scope="module")
def disturbed(
    start_jobs: Callable[..., Job],
    digits: Path,
    zoo: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Disturbed:
    """One job for several promises: most of a job's cost is the start of its processes."""
    orders = tmp_path_factory.mktemp("orders")
    flags = {"checkpoint_steps": 1000, "tls": "on"}
    paced = start_paced(start_jobs, digits, zoo, orders, num_workers=2, **flags)
    before = paced.ring(2)
    drained = paced.signal(before, 0, signal.SIGTERM)
    after = paced.ring(2, after=before["ring"]["generation"] + 1)
    cause = paced.cause(drained)
    broken = rings_that_broke(paced.job)
    stopped = paced.signal(after, 0, signal.SIGSTOP)
    try:
        alone = paced.ring(1, after=after["ring"]["generation"])
    finally:
        paced.signal(after, 0, signal.SIGCONT)
    again = paced.ring(2, after=alone["ring"]["generation"])
    by_the_stop = len(rings_that_broke(paced.job))
    scale(paced.job, 1)
    one = paced.ring(1, after=again["ring"]["generation"])
    [gone] = set(again["ring"]["members"]) - set(one["ring"]["members"])
    paced.job.wait_until(f"{gone} has ended", lambda status: gone not in ready(status))
    paced.job.wait_until("some is trained", lambda status: status["records"]["trained"] > 0)
    broken += rings_that_broke(paced.job)[by_the_stop:]
    paced.job.process.send_signal(signal.SIGINT)
    interrupted = paced.job.finish(LIMIT_S)
    trained = paced.job.receipt()["total"]["trained"]
    paced.order("hurry")
    resumed = start_paced(
        lambda **given: start_jobs("train", "--resume", **given),
        digits,
        zoo,
        orders,
        num_workers=1,
        job_dir=paced.job.directory,
        **flags,
    )
    return Disturbed(
        job=resumed.job,
        drained=drained,
        cause=cause,
        without_it=after["ring"]["members"],
        stopped=stopped,
        meanwhile=alone["ring"]["members"],
        again=again["ring"]["members"],
        broken=broken,
        interrupted=interrupted,
        trained=trained,
    )


def test_a_stopped_job_continues_where_it_was_and_loses_nothing(disturbed: Disturbed) -> None:
    code, output = disturbed.interrupted
    assert code == 130, output + disturbed.job.tails()
    assert 0 < disturbed.trained < EPOCHS * RECORDS
    finished(disturbed.job, EPOCHS)


def test_a_member_leaves_at_the_end_of_a_step_when_it_is_sent_away_and_when_fewer_are_wanted(
    disturbed: Disturbed,
) -> None:
    assert disturbed.drained not in disturbed.without_it and disturbed.cause == "drained"
    assert disturbed.broken == []


def test_a_stopped_member_is_cut_out_and_let_in_again(disturbed: Disturbed) -> None:
    assert disturbed.stopped not in disturbed.meanwhile
    assert disturbed.stopped in disturbed.again


def rings_that_broke(job: Job) -> list[str]:
    return [event["text"] for event in job.events() if "broke" in event["text"]]


def ready(status: dict[str, Any]) -> list[str]:
    return [process["name"] for process in status["processes"] if process["state"] == "ready"]


def scale(job: Job, workers: int) -> None:
    """As `elasticdl scale` does."""
    from elasticdl.cli.jobs.directory_job import DirectoryJob
    from elasticdl.jobdir.layout import JobDirectory

    DirectoryJob(JobDirectory(job.directory)).scale(workers, workers)
