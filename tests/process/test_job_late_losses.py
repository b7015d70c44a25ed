"""Parameter servers of a job without checkpoints die when all records are trained: the job ends in
spite of that.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

LIMIT_S = 120.0
RECORDS = 150 * 4

MORE = """
import os
import time

_plain_feed = feed


def _held(row):
    while os.path.exists(os.path.join(os.environ["HOLD_FOLDER"], "hold")):
        time.sleep(0.05)
    return row


def feed(dataset, mode, metadata):
    if mode != "evaluation":
        return _plain_feed(dataset, mode, metadata)
    columns = len(metadata.column_names)

    def held(row):
        row = tf.py_function(_held, [row], tf.string)
        row.set_shape([columns])
        return row

    return _plain_feed(dataset.map(held), mode, metadata)
"""


@dataclass
class Held:
    """A job whose final evaluation has begun and does not end before `release`."""

    job: Job
    folder: Path

    def release(self) -> None:
        (self.folder / "hold").unlink()


@pytest.fixture
def hold_job(tmp_path: Path, start_job: Callable[..., Job]) -> Callable[..., Held]:
    def start(**flags: object) -> Held:
        shutil.copy(ROOT / "model_zoo/iris.py", tmp_path / "iris_held.py")
        with (tmp_path / "iris_held.py").open("a") as module:
            module.write(MORE)
        job = start_job(
            "train",
            model_zoo=tmp_path,
            model_def="iris_held",
            training_data=write_iris(tmp_path / "train.csv", 4),
            validation_data=write_iris(tmp_path / "validation.csv"),
            minibatch_size=16,
            envs=f"HOLD_FOLDER={tmp_path}",
            output=tmp_path / "export",
            **flags,
        )
        # The check of the model evaluates, too: it is over when processes are there.
        job.wait_until("a process is there", lambda status: len(status["processes"]) > 0, LIMIT_S)
        (tmp_path / "hold").touch()
        job.wait_until("the final evaluation has begun", evaluates, LIMIT_S)
        return Held(job, tmp_path)

    return start


def evaluates(status: dict[str, Any]) -> bool:
    return status["phase"] == "evaluating" and status["shards"]["evaluation"]["leased"] > 0


def kill(job: Job, role: str) -> None:
    for pid in job.pids(role):
        os.kill(pid, signal.SIGKILL)


def back(status: dict[str, Any]) -> bool:
    """The next process of each server is ready."""
    names = [
        process["name"]
        for process in status["processes"]
        if process["role"] == "ps" and process["state"] == "ready"
    ]
    return len([name for name in names if "." in name]) == 2


def test_all_servers_killed_in_the_final_evaluation_keep_their_weights_or_get_a_workers(
    hold_job: Callable[..., Held],
) -> None:
    """Those that a worker has, where they lost their memory, too."""
    held = hold_job(num_workers=1, num_ps_pods=2)
    kill(held.job, "ps")
    held.job.wait_until("both servers are back", back, LIMIT_S)

    def told() -> list[str]:
        return [event["text"] for event in held.job.events() if event["kind"] == "server"]

    held.job.wait_until("the log has both", lambda _: len(told()) == 2, LIMIT_S)
    assert all("no update of its part was lost" in one for one in told()), told()
    held.job.lose_servers(0, 1)
    held.release()
    code, output = held.job.finish(LIMIT_S)
    assert code == 0, output
    total = held.job.receipt()["total"]
    assert (total["trained"], total["lost"], total["repeated"]) == (RECORDS, 0, 0)
    assert "parameter servers that died lost" in output
    assert held.job.final("accuracy") > 0.8, "the weights are those that were trained"
    assert (held.folder / "export" / "saved_model.pb").exists()
