"""The receipt of a job whose masters, server and supervisors are killed and which Ctrl-C stops,
against a module that counts for itself.

One job for all of it: most of a job's time is the start of its processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import printed
from tests.conftest import ROOT, Job, write_iris
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
MINIBATCH = 40
EPOCH_RECORDS = 1200
EPOCHS = 8
SLOW_S = 0.5
"""Of a step until the job is stopped. At this pace all steps take 120 s, whatever is killed."""
PACE_S = 0.06
"""Of a step of a job that goes on."""
LIMIT_S = 240.0
KILLS = 4

COUNTS = f"""
import os
import time


class Counted(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with open(os.environ["COUNTED_FILE"], "a") as file:
            file.write(".")
        slow = not os.path.exists(os.environ["COUNTED_FILE"] + ".hurry")
        time.sleep({SLOW_S} if slow else {PACE_S})


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

    def run(*more: str, checkpoint_steps: int = 10) -> Job:
        return start_job(
            "train",
            *more,
            model_zoo=tmp_path,
            model_def="iris_counted",
            training_data=write_iris(tmp_path / "train.csv", EPOCH_RECORDS // 150),
            num_epochs=EPOCHS,
            num_workers=1,
            num_ps_pods=2,
            minibatch_size=MINIBATCH,
            sync=False,
            tls="on",
            checkpoint_steps=checkpoint_steps,
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


def trains_on(job: Job) -> int:
    """Wait for three more steps; the version then."""
    begun = job.wait_until("it trains", lambda status: status["version"] > 0, LIMIT_S)["version"]

    def further(status: dict[str, Any]) -> bool:
        return bool(status["version"] >= begun + 3)

    return int(job.wait_until("it goes on", further, LIMIT_S)["version"])


def kill_masters(job: Job) -> None:
    """Kill one after another; each next one is reached where the first was."""
    first = last = json.loads((job.directory / "master.json").read_text())
    for term in range(first["term"] + 1, first["term"] + KILLS + 1):
        kill(job, "master.json")

        def next_master(term: int = term) -> bool:
            return bool(json.loads((job.directory / "master.json").read_text())["term"] == term)

        until("another master listens", next_master, LIMIT_S)
        trains_on(job)
    last = json.loads((job.directory / "master.json").read_text())
    same = ("address", "page", "token")
    assert {key: last[key] for key in same} == {key: first[key] for key in same}
    assert last["pid"] != first["pid"]


def kill_server(job: Job) -> None:
    """The next process of it comes."""
    [pid] = job.pids("ps", 1)
    os.kill(pid, signal.SIGKILL)

    def told() -> bool:
        return any(
            event["process"] == "ps-1" and "SIGKILL" in event["text"]
            for event in job.events()
            if event["kind"] == "process"
        )

    def back(status: dict[str, Any]) -> bool:
        names = [process["name"] for process in status["processes"] if process["state"] == "ready"]
        return any(name.startswith("ps-1.") for name in names)

    until("the kill is told", told, LIMIT_S)
    job.wait_until("the server is back", back, LIMIT_S)


def check_kills(job: Job, output: str) -> None:
    """The events and the output tell each master's end; nothing else was started again."""
    assert output.count("the master ended") == KILLS
    assert output.count("starting worker-0") == output.count("starting ps-0") == 1
    events = job.events()
    ends = [event for event in events if event["details"].get("step") == "master_ended"]
    begins = [event for event in events if event["details"].get("step") == "begun"]
    assert [end["details"]["signal"] for end in ends] == [9] * KILLS
    assert len(begins) >= 1 + KILLS
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert sorted(events, key=lambda one: one["at_s"]) == events


def test_killed_masters_and_ctrl_c_repeat_nothing_and_what_killed_supervisors_cost_is_counted(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    first = start()
    trains_on(first)
    kill_masters(first)
    kill_server(first)
    trains_on(first)
    first.process.send_signal(signal.SIGINT)
    code, output = first.finish()
    assert code == 130 and "--resume" in output, output
    check_kills(first, output)
    assert json.loads(printed("why", str(first.directory), "-o", "json"))["state"] == "stopped"
    total = first.receipt()["total"]
    assert (total["repeated"], total["lost"]) == (0, 0)
    assert 0 < total["trained"] < EPOCHS * EPOCH_RECORDS
    assert (tmp_path / "counted").stat().st_size * MINIBATCH == total["trained"]
    (tmp_path / "counted.hurry").touch()
    second = start("--resume", checkpoint_steps=1000)
    stopped_at = total["trained"] // MINIBATCH

    def further(status: dict[str, Any]) -> bool:
        return bool(status["version"] >= stopped_at + 60)

    second.wait_until("more is trained than may be unknown", further, LIMIT_S)
    kill(second, "supervisor.json")
    code, output = second.finish()
    assert code == 1 and "--resume" in output, output
    third = start("--resume")
    journal = third.directory / "journal/run-0003-000001.jsonl"
    until("it begins", lambda: journal.exists() and "JobStarted" in journal.read_text(), LIMIT_S)
    kill(third, "supervisor.json")
    assert third.finish()[0] == 1
    fourth = start("--resume", checkpoint_steps=1000)
    code, output = fourth.finish()
    assert code == 0, output
    check_receipt(fourth, tmp_path)
