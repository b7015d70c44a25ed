"""Whole jobs on a ring: `elasticdl train --distribution-strategy AllreduceStrategy`, members killed and stopped."""

from __future__ import annotations

import os
import random
import signal

import pytest

from tests.ring.ring_jobs import finished, formed, start

pytestmark = pytest.mark.process

SEEDS = range(int(os.environ.get("ELASTICDL_CHURN_SEEDS", "2")))


def test_two_workers_train_evaluate_and_export(start_job, digits, tmp_path):
    job = start(start_job, digits, num_workers=2, num_epochs=8, evaluation_steps=200, checkpoint_steps=150, output=tmp_path / "out")
    finished(job, epochs=8)
    assert len([row for row in job.metrics() if row["kind"] == "evaluation"]) == 2
    assert (tmp_path / "out").is_dir() and any((tmp_path / "out").iterdir())
    assert any((job.directory / "checkpoints").glob("version-*/manifest.json"))


@pytest.mark.parametrize("seed", SEEDS)
def test_members_are_killed_all_the_time(seed, start_job, digits):
    choose = random.Random(seed)
    epochs = 120
    job = start(start_job, digits, num_workers="1:3", num_epochs=epochs, seed=seed)
    generation = 0
    for _ in range(3):
        # The last one's weights would go with it: wait for two that have them, in a ring that knows of the kill before.
        status = job.wait_until("two are in a new ring", formed(2, after=generation))
        generation = status["ring"]["generation"]
        victim = choose.choice(status["ring"]["members"])
        where = next(process["where"] for process in status["processes"] if process["name"] == victim)
        os.kill(int(where.removeprefix("pid ")), signal.SIGKILL)
    finished(job, epochs)


def test_a_stopped_member_is_cut_out_and_let_in_again(start_job, digits):
    job = start(start_job, digits, num_workers=2, num_epochs=150)
    job.wait_until("both are in the ring", formed(2))
    stopped = job.pids("worker")[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.wait_until("it was cut out", lambda status: len(status["ring"]["members"]) == 1, timeout_s=20)
    finally:
        os.kill(stopped, signal.SIGCONT)
    job.wait_until("it is in again", formed(2))
    finished(job, epochs=150)
