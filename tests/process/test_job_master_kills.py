"""The receipt of a job whose masters are killed, against a module that counts for itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Job, write_iris
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
MINIBATCH = 40
EPOCH_RECORDS = 1200
EPOCHS = 10
PACE_S = 0.06
LIMIT_S = 240.0
KILLS = 4

COUNTS = f"""
import os
import time


class Counted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with open(os.environ["COUNTED_FILE"], "a") as file:
            file.write(".")
        time.sleep({PACE_S})


def callbacks():
    return [Counted()]
"""


def kill(job: Job, file: str) -> None:
    os.kill(json.loads((job.directory / file).read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def start(start_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    shutil.copy(ROOT / "model_zoo/iris.py", tmp_path / "iris_counted.py")
    with (tmp_path / "iris_counted.py").open("a") as module:
        module.write(COUNTS)

    def run(*more: str) -> Job:
        return start_job(
            "train",
            *more,
            model_zoo=tmp_path,
            model_def="iris_counted",
            training_data=write_iris(tmp_path / "train.csv", EPOCH_RECORDS // 150),
            num_epochs=EPOCHS,
            num_workers=1,
            minibatch_size=MINIBATCH,
            checkpoint_steps=10,
            envs=f"COUNTED_FILE={tmp_path / 'counted'}",
            job_dir=tmp_path / "job",
        )

    return run


def check_receipt(job: Job, tmp_path: Path) -> None:
    receipt = job.receipt()
    total, expected = receipt["total"], EPOCHS * EPOCH_RECORDS
    twice = (tmp_path / "counted").stat().st_size * MINIBATCH - expected
    print(f"trained twice {twice}, receipt {total}")
    assert (total["trained"], total["left"], total["lost"]) == (expected, 0, 0)
    assert receipt["repeated_at_least"]
    # A step may be reported before its callbacks: a kill may leave one of each run uncounted.
    assert total["repeated"] <= twice + 2 * MINIBATCH
    # What was trained in the last second before a kill may be unknown.
    assert total["repeated"] >= twice - 2 * MINIBATCH / PACE_S
    assert all(0 <= row["repeated"] <= row["expected"] for row in receipt["epochs"])


def test_a_job_whose_master_is_killed_again_and_again_trains_every_record_once(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start()
    first = begun = job.wait_until("it trains", lambda status: status["version"] >= 50, LIMIT_S)
    address = json.loads((job.directory / "master.json").read_text())
    for term in range(1, KILLS + 1):
        kill(job, "master.json")

        def goes_on(status: dict[str, Any], version: int = begun["version"]) -> bool:
            return bool(status["version"] >= version + 10)

        def next_master(term: int = term) -> bool:
            return bool(json.loads((job.directory / "master.json").read_text())["term"] > term)

        until("another master listens", next_master, LIMIT_S)
        begun = job.wait_until("it goes on", goes_on, LIMIT_S)
    last = json.loads((job.directory / "master.json").read_text())
    same = ("address", "page", "token")
    assert {key: last[key] for key in same} == {key: address[key] for key in same}
    assert last["term"] == address["term"] + KILLS and last["pid"] != address["pid"]
    code, output = job.finish()
    assert code == 0, output
    assert output.count("killed by signal 9 (SIGKILL)") == KILLS
    assert output.count("starting worker-0") == output.count("starting ps-0") == 1
    events = job.events()
    ends = [one for one in events if one["details"].get("step") == "master_ended"]
    begins = [one for one in events if one["details"].get("step") == "begun"]
    assert [one["details"]["signal"] for one in ends] == [9] * KILLS
    assert len(begins) >= 1 + KILLS
    assert [one["seq"] for one in events] == list(range(len(events)))
    assert sorted(events, key=lambda one: one["at_s"]) == events
    total, expected = job.receipt()["total"], EPOCHS * EPOCH_RECORDS
    assert (total["trained"], total["repeated"], total["lost"]) == (expected, 0, 0)
    assert (tmp_path / "counted").stat().st_size * MINIBATCH == expected
    assert first["version"] < begun["version"]


def test_a_job_whose_supervisor_is_killed_twice_repeats_no_more_than_was_trained_twice(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    first = start()
    first.wait_until("it trains", lambda status: status["version"] >= 115, LIMIT_S)
    kill(first, "supervisor.json")
    code, output = first.finish()
    assert code == 1 and "--resume" in output, output
    second = start("--resume")
    journal = second.directory / "journal/run-0002-000001.jsonl"
    until("it begins", lambda: journal.exists() and "JobStarted" in journal.read_text(), LIMIT_S)
    kill(second, "supervisor.json")
    assert second.finish()[0] == 1
    third = start("--resume")
    code, output = third.finish()
    assert code == 0, output
    check_receipt(third, tmp_path)
