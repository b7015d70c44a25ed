"""Whole jobs on a ring: `elasticdl train --distribution-strategy AllreduceStrategy`, members killed and stopped."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from model_zoo import make_data

pytestmark = pytest.mark.process

RECORDS = 1437
SEEDS = range(int(os.environ.get("ELASTICDL_CHURN_SEEDS", "2")))


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    make_data.MAKERS["digits"](folder, 0)
    return folder


def start(start_job, digits: Path, **flags):
    return start_job(
        model_def="digits",
        distribution_strategy="AllreduceStrategy",
        training_data=digits / "train.npz",
        validation_data=digits / "test.npz",
        minibatch_size=32,
        **flags,
    )


def formed(members: int, after: int = 0):
    """So many have the weights, in a generation after that one: of one that is still forming some may not have them yet."""

    def is_formed(status) -> bool:
        ring = status["ring"]
        return len(ring["members"]) >= members and after < ring["generation"] == ring["formed"]

    return is_formed


def finished(job, epochs: int) -> dict[str, int]:
    """The receipt's total of a job that ended well and lost nothing."""
    code, output = job.finish()
    assert code == 0, output + job.tails()
    total = job.receipt()["total"]
    assert total["trained"] == total["expected"] == epochs * RECORDS
    assert (total["lost"], total["repeated"]) == (0, 0)
    assert job.final("accuracy") >= 0.95
    return total


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
