"""The receipt of a job whose master is killed twice, against a module that counts for itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Job, write_iris
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
MINIBATCH = 40
EPOCH_RECORDS = 1200
EPOCHS = 20
LIMIT_S = 240.0

COUNTS = """
import os
import time


class Counted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with open(os.environ["COUNTED_FILE"], "a") as file:
            file.write(".")
        time.sleep(0.02)


def callbacks():
    return [Counted()]
"""


def kill_master(job: Job) -> None:
    os.kill(json.loads((job.directory / "master.json").read_text())["pid"], signal.SIGKILL)
    code, output = job.finish()
    assert code != 0, output


def test_a_job_whose_master_is_killed_twice_repeats_no_more_than_was_trained_twice(
    start_job: Callable[..., Job], tmp_path: Path
) -> None:
    shutil.copy(ROOT / "model_zoo/iris.py", tmp_path / "iris_counted.py")
    with (tmp_path / "iris_counted.py").open("a") as module:
        module.write(COUNTS)
    counted, directory = tmp_path / "counted", tmp_path / "job"

    def start(*more: str) -> Job:
        return start_job(
            "train",
            *more,
            model_zoo=tmp_path,
            model_def="iris_counted",
            training_data=write_iris(tmp_path / "train.csv", EPOCH_RECORDS // 150),
            num_epochs=EPOCHS,
            num_workers=1,
            minibatch_size=MINIBATCH,
            checkpoint_steps=20,
            envs=f"COUNTED_FILE={counted}",
            job_dir=directory,
        )

    first = start()
    # The saved status is up to 5 s old by then: epochs older than the newest checkpoint.
    first.wait_until("it trains", lambda status: status["version"] >= 230, LIMIT_S)
    kill_master(first)
    second = start("--resume")
    journal = directory / "journal/run-0002-000001.jsonl"
    until("it begins", lambda: journal.exists() and "JobStarted" in journal.read_text(), LIMIT_S)
    kill_master(second)
    third = start("--resume")
    code, output = third.finish()
    assert code == 0, output
    receipt = third.receipt()
    total, expected = receipt["total"], EPOCHS * EPOCH_RECORDS
    twice = counted.stat().st_size * MINIBATCH - expected
    print(f"trained twice {twice}, receipt {total}")
    assert (total["trained"], total["left"], total["lost"]) == (expected, 0, 0)
    assert receipt["repeated_at_least"]
    # A step may be reported before its callbacks: a kill may leave one of each run uncounted.
    assert total["repeated"] <= twice + 2 * MINIBATCH
    # What was trained in the last second before a kill may be unknown.
    assert total["repeated"] >= twice - 2 * MINIBATCH / 0.02
    assert all(0 <= row["repeated"] <= row["expected"] for row in receipt["epochs"])
