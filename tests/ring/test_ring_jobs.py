"""Whole jobs on a ring: `elasticdl train --distribution-strategy AllreduceStrategy`, whose members
are killed, stopped, sent away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Job
from tests.ring.ring_jobs import EPOCHS, LIMIT_S, finished, start_paced

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_a_member_leaves_at_the_end_of_a_step_when_it_is_sent_away_and_when_fewer_are_wanted(
    start_job: Callable[..., Job], digits: Path, zoo: Path, tmp_path: Path
) -> None:
    paced = start_paced(start_job, digits, zoo, tmp_path / "orders", num_workers=2, tls="on")
    before = paced.ring(2)
    drained = paced.signal(before, 0, signal.SIGTERM)
    after = paced.ring(2, after=before["ring"]["generation"] + 1)
    assert drained not in after["ring"]["members"] and paced.cause(drained) == "drained"
    scale(paced.job, 1)
    alone = paced.ring(1, after=after["ring"]["generation"])
    [gone] = set(after["ring"]["members"]) - set(alone["ring"]["members"])
    paced.job.wait_until(
        "it has ended",
        lambda status: (
            gone not in [one["name"] for one in status["processes"] if one["state"] == "ready"]
        ),
    )
    paced.order("hurry")
    finished(paced.job, EPOCHS)
    assert not [event for event in paced.job.events() if "broke" in event["text"]]


def test_a_stopped_member_is_cut_out_and_let_in_again_and_a_stopped_job_goes_on_where_it_was(
    start_job: Callable[..., Job], digits: Path, zoo: Path, tmp_path: Path
) -> None:
    paced = start_paced(
        start_job, digits, zoo, tmp_path / "orders", num_workers=2, checkpoint_steps=1000
    )
    status = paced.ring(2)
    stopped = paced.signal(status, 0, signal.SIGSTOP)
    try:
        alone = paced.ring(1, after=status["ring"]["generation"])
        assert stopped not in alone["ring"]["members"]
    finally:
        paced.signal(status, 0, signal.SIGCONT)
    again = paced.ring(2, after=alone["ring"]["generation"])
    assert stopped in again["ring"]["members"]
    paced.job.wait_until("some is trained", lambda status: status["records"]["trained"] > 0)
    paced.job.process.send_signal(signal.SIGINT)
    code, output = paced.job.finish(LIMIT_S)
    assert code == 130, output + paced.job.tails()
    trained = paced.job.receipt()["total"]["trained"]
    paced.order("hurry")
    resumed = start_paced(
        lambda **flags: start_job("train", "--resume", **flags),
        digits,
        zoo,
        tmp_path / "orders",
        num_workers=1,
        checkpoint_steps=1000,
        job_dir=paced.job.directory,
    )
    finished(resumed.job, EPOCHS)
    assert trained > 0


def scale(job: Job, workers: int) -> None:
    """As `elasticdl scale` does."""
    from elasticdl.cli.jobs.directory_job import DirectoryJob
    from elasticdl.jobdir.layout import JobDirectory

    DirectoryJob(JobDirectory(job.directory)).scale(workers, workers)
