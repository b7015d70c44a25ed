"""A job that loses a worker to a kill and one that is sent away, and what must be true of it then.

One job for many sentences: most of a job's time is the start of its processes.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.jobs.directory_job import DirectoryJob
from elasticdl.history.diagnosis_text import entry_text
from elasticdl.jobdir.layout import JobDirectory
from tests.commands import printed
from tests.conftest import ROOT, Job, write_iris
from tests.tensorboard import points
from tests.waiting import until as until_soon

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
NAMED_WITHIN_S = 2.0
LIMIT_S = 240.0
until = partial(until_soon, every_s=0.2)
"""Each look reads the whole record of the job."""
MINIBATCH = 16
COPIES = 12
RECORDS = 2 * 150 * COPIES
"""Of two epochs.

More than are trained before a test has seen what it waits for, until it says `hurry`.
"""

MORE = """
import os
import time


class Paced(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if not os.path.exists(os.path.join(os.environ["PACED_FOLDER"], "hurry")):
            time.sleep(1.2)


def callbacks():
    return [Paced(), keras.callbacks.CSVLogger("history.csv"), keras.callbacks.TensorBoard("board")]
"""


def why(job: Job) -> dict[str, Any]:
    return json.loads(printed("why", "--job-dir", str(job.directory), "-o", "json"))


@dataclass(frozen=True)
class Lost:
    """A job of two workers of which one was killed and one was sent away; what was seen
    meanwhile.
    """

    job: Job
    code: int
    output: str
    footprints: dict[str, tuple[bool, int]]
    """Of each process: whether it has TensorFlow, and its KiB."""
    kill: dict[str, Any]
    named_s: float
    shown: str
    """What `why` printed then."""
    made_up: dict[str, Any]
    story: dict[str, Any]
    """What `why -o json` printed once another trained."""
    repeated: int
    """Records that the kill cost."""


def footprint(pid: int) -> tuple[bool, int]:
    resident_kib = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    return "tensorflow" in Path(f"/proc/{pid}/maps").read_text(), resident_kib


def footprints(job: Job) -> dict[str, tuple[bool, int]]:
    supervisor, master = (
        int(json.loads((job.directory / f"{name}.json").read_text())["pid"])
        for name in ("supervisor", "master")
    )
    servers = {f"server {pid}": pid for pid in job.pids("ps")}
    return {
        name: footprint(pid)
        for name, pid in {
            "command line": job.process.pid,
            "supervisor": supervisor,
            "master": master,
            **servers,
        }.items()
    }


def exits(job: Job) -> list[dict[str, Any]]:
    """As `why` has them, out of the record of a job that runs."""
    story = DirectoryJob(JobDirectory(job.directory)).story().story
    return [entry for entry in story["entries"] if entry["what"] == "exit"]


def settled(status: dict[str, Any]) -> bool:
    return (
        sum(
            process["role"] == "worker" and process["state"] == "ready" and process["records"] > 0
            for process in status["processes"]
        )
        == 2
    )


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, start_jobs: Callable[..., Job]) -> Lost:
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "iris_paced.py").write_text((ROOT / "model_zoo/iris.py").read_text() + MORE)
    job = start_jobs(
        model_zoo=folder,
        model_def="iris_paced",
        training_data=write_iris(folder / "train.csv", COPIES),
        validation_data=write_iris(folder / "validation.csv"),
        num_epochs=2,
        num_workers=2,
        num_ps_pods=2,
        minibatch_size=MINIBATCH,
        # A round is evaluated once a worker has trained the shards in its hands.
        records_per_task=2 * MINIBATCH,
        evaluation_steps=8,
        sync=False,
        tls="on",
        envs=f"PACED_FOLDER={folder}",
        tensorboard_log_dir=folder / "curves",
    )
    job.wait_until("both train", settled, LIMIT_S)
    job.wait_until(
        "a round is summed up",
        lambda status: any(one["values"] for one in status["rounds"]),
        LIMIT_S,
    )
    prints = footprints(job)
    killed_at = time.time()
    assert job.kill_one("worker", random.Random(3))
    kill = until(
        "the kill is told",
        lambda: next((one for one in exits(job) if "SIGKILL" in one["text"]), None),
        LIMIT_S,
    )
    shown = printed("why", "--job-dir", str(job.directory))
    made_up = until(
        "another trains",
        lambda: next((one for one in exits(job) if one["recovered_s"]), None),
        LIMIT_S,
    )
    story = why(job)
    repeated = job.wait_until("both train again", settled, LIMIT_S)["records"]["repeated"]
    os.kill(random.Random(3).choice(sorted(job.pids("worker"))), signal.SIGTERM)
    until(
        "a worker has left",
        lambda: [event for event in job.events() if event["cause"] == "drained"],
        LIMIT_S,
    )
    # How fast a machine is does not decide what was seen until here.
    (folder / "hurry").touch()
    code, output = job.finish(LIMIT_S)
    return Lost(
        job, code, output, prints, kill, kill["at"] - killed_at, shown, made_up, story, repeated
    )


def test_a_killed_worker_and_one_that_was_sent_away_lose_nothing(lost: Lost) -> None:
    assert lost.code == 0, lost.output
    total = lost.job.receipt()["total"]
    assert (total["expected"], total["trained"], total["lost"]) == (RECORDS, RECORDS, 0)


def test_a_worker_killed_in_the_middle_costs_at_most_one_minibatch(lost: Lost) -> None:
    assert lost.repeated <= MINIBATCH
    assert any(
        event["cause"] == "infrastructure" and "worker" in event["process"]
        for event in lost.job.events()
    )


def test_a_worker_asked_to_go_gives_its_work_back_and_nothing_is_repeated(lost: Lost) -> None:
    assert lost.job.receipt()["total"]["repeated"] == lost.repeated
    assert any(
        event["cause"] == "drained" and "worker" in event["process"] for event in lost.job.events()
    )


def test_master_ps_and_command_line_stay_small_and_free_of_tensorflow(lost: Lost) -> None:
    assert len(lost.footprints) == 5
    assert lost.footprints["supervisor"][1] < 40 * 1024
    for name, (has_tensorflow, resident_kib) in lost.footprints.items():
        assert not has_tensorflow, name
        assert resident_kib < 120 * 1024, (name, resident_kib)


def test_why_names_a_kill_within_two_seconds_and_the_worker_that_took_over(lost: Lost) -> None:
    assert lost.named_s < NAMED_WITHIN_S
    assert (
        lost.kill["process"] in ("worker-0", "worker-1") and lost.kill["replaced_by"] == "worker-2"
    )
    assert (
        f"! {lost.kill['process']} killed by signal 9 (SIGKILL)" in lost.shown
        and "worker-2" in lost.shown
    )
    assert lost.story["state"] == "running" and lost.story["totals"]["recoveries"]["count"] == 1


def test_the_record_is_all_there_when_the_job_is_over(lost: Lost) -> None:
    directory = lost.job.directory
    assert entry_text(lost.made_up) in [entry_text(entry) for entry in why(lost.job)["entries"]]
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "SIGKILL" in report, "the master left the page as it stood at the end"
    names = {curve["name"] for curve in json.loads((directory / "series.json").read_text())}
    assert {
        "loss",
        "records_per_s",
        "workers",
        "updates_per_s",
        "staleness",
        "pull_s",
        "push_s",
    } <= names
    words = (
        "import sys; from elasticdl.cli.main import run; [run([verb, '--job-dir', sys.argv[1]]) for"
        " verb in ('why', 'report')];"
    )
    light = words + " assert not {'tensorflow', 'grpc', 'kubernetes'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", light, str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_history_and_one_set_of_curves_come_out_of_a_job_that_loses_workers(lost: Lost) -> None:
    job, curves_at = lost.job, Path(lost.job.spec()["checkpoint"]["tensorboard_log_dir"])
    rounds = [line for line in job.metrics() if line["kind"] == "evaluation"]
    assert len(rounds) >= 3, "there is something to be lost"
    with (job.directory / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_accuracy"]) for row in rows] == pytest.approx(
        [one["values"]["accuracy"] for one in rounds]
    )
    board = [
        value
        for _, tag, value in points(job.directory / "board/validation")
        if tag == "epoch_accuracy"
    ]
    assert board == pytest.approx([one["values"]["accuracy"] for one in rounds])
    curves = [
        (step, value) for step, tag, value in points(curves_at / "validation") if tag == "accuracy"
    ]
    assert [step for step, _ in curves] == [one["version"] for one in rounds]
    assert [value for _, value in curves] == pytest.approx(
        [one["values"]["accuracy"] for one in rounds]
    )
    losses = [value for _, tag, value in points(curves_at / "train") if tag == "loss"]
    seen = [line["values"]["loss"] for line in job.metrics() if line["kind"] == "training"]
    assert losses == pytest.approx(seen) and len(losses) > 1, json.dumps(seen)
