"""The process of a tracker, with the tracker's own package: what a job wrote is in the run, once,
although it had two masters. What cannot be reached holds nothing up.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.outcome import Outcome
from elasticdl.tracking.main import lock
from tests.conftest import ROOT
from tests.waiting import until

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]
LIMIT_S = 120.0
END = Outcome(0, "done", receipt={"total": {"trained": 300, "lost": 0}}, metrics={"accuracy": 0.9})


@dataclass
class Processes:
    """Starts the process of a job's tracker."""

    folder: Path
    what: str = "tracker"
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write_job(self, tracker: str, *versions: int) -> None:
        flags = {"model_zoo": "/z", "model_def": "m", "training_data": "/t", "job_name": "job-1"}
        # Changes when the job is resumed, and trackers refuse its name.
        params = {"lr": 0.1, "top@5": versions[0] if versions else 0}
        spec = JobSpec.from_flags(
            Action.TRAIN, {**flags, "tracker": tracker, "model_params": json.dumps(params)}
        )
        (self.folder / "job.json").write_text(spec.model_dump_json())
        with (self.folder / "metrics.jsonl").open("a") as file:
            for version in versions:
                stamp = {"at": 1.7e9 + version, "at_s": float(version), "records": 10 * version}
                for kind, values in (("training", {"loss": 0.5}), ("evaluation", {"f1@5": 0.75})):
                    row = {**stamp, "kind": kind, "version": version, "values": values}
                    file.write(json.dumps(row) + "\n")

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = self._started(log, variables)
        self.started.append(process)
        return process

    def _started(self, log: IO[bytes], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "elasticdl.tracking.main", str(self.folder), self.what],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )

    def wait_for_rows(self, last: int) -> None:
        def has_all() -> bool:
            path = self.folder / "tracker.json"
            return path.exists() and json.loads(path.read_text())["at_s"] >= last

        process = self.started[-1]
        until("the rows were sent", has_all, LIMIT_S, over=lambda: process.poll() is not None)

    def end(self, version: int) -> tuple[int, list[dict[str, Any]]]:
        """Its exit code, and what it said."""
        line = json.dumps({**END.to_json(), "version": version}) + "\n"
        process = self.started[-1]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line.encode())
        process.stdin.flush()
        # The pipe stays open, as the master's does.
        code = process.wait(LIMIT_S)
        return code, [json.loads(line) for line in process.stdout.read().splitlines()]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    ours = Processes(tmp_path)
    yield ours
    for process in ours.started:
        process.kill()
        process.wait(LIMIT_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def continued(
    processes: Processes, tracker: str, leave: Callable[[Processes], None], **variables: str
) -> None:
    """A whole job: its first process leaves after some rows, and a second one ends the run."""
    processes.write_job(tracker, 1, 2)
    first = processes.start(**variables)
    assert first.stdout is not None and b"tracking this job" in first.stdout.readline()
    leave(processes)
    first.wait(LIMIT_S)
    processes.write_job(tracker, 3)
    processes.start(**variables)
    code, said = processes.end(version=3)
    assert code == 0 and [one["level"] for one in said] == ["info"]


def killed(processes: Processes) -> None:
    processes.wait_for_rows(2)
    processes.started[-1].kill()


def left(processes: Processes) -> None:
    """As when the master is killed: its end of the pipe closes."""
    stdin = processes.started[-1].stdin
    assert stdin is not None
    stdin.close()


def test_mlflow_has_one_run_of_a_job_with_two_masters(processes: Processes) -> None:
    store = processes.folder / "store"
    continued(processes, f"mlflow:file:{store}", killed, MLFLOW_ALLOW_FILE_STORE="true")
    (run,) = (path.parent for path in store.glob("*/*/meta.yaml"))
    assert "name: elasticdl" in (run.parent / "meta.yaml").read_text()
    assert "status: 3" in (run / "meta.yaml").read_text(), "FINISHED"
    assert (run / "tags/mlflow.runName").read_text() == "job-1"
    assert (run / "params/model_params.lr").read_text() == "0.1"
    assert (run / "params/model_params.top_5").read_text() == "1", "it began with that"

    def points(name: str) -> list[tuple[int, float, int]]:
        lines = (run / "metrics" / name).read_text().splitlines()
        return [(int(at), float(value), int(step)) for at, value, step in map(str.split, lines)]

    assert points("train/loss") == [(1_700_000_000_000 + 1000 * n, 0.5, n) for n in (1, 2, 3)]
    assert [step for _, _, step in points("validation/f1_5")] == [1, 2, 3]
    assert [point[1:] for point in points("receipt/trained")] == [(300.0, 3)]
    assert [point[1:] for point in points("final/accuracy")] == [(0.9, 3)]


def records_of(path: Path) -> Iterator[Any]:
    """The records in a file of an offline run: after a header of 7 bytes, blocks as LevelDB has
    them, of chunks with checksum, length and type (1 whole, 2 first, 3 middle, 4 last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, offset, text = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        if (left := 32768 - offset % 32768) < 7:
            offset += left
            continue
        size, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        text += data[offset + 7 : offset + 7 + size]
        offset += 7 + size
        if kind in (1, 4):
            yield Record.FromString(text)
            text = b""


def test_wandb_has_one_offline_run_of_a_job_with_two_masters(processes: Processes) -> None:
    continued(
        processes,
        "wandb",
        left,
        WANDB_MODE="offline",
        WANDB_PROJECT="mine",
        WANDB_INIT_TIMEOUT="60",
    )
    files = sorted((processes.folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({path.name for path in files}) == 1, "one id"
    records = [one for path in files for one in records_of(path)]
    runs = [record.run for record in records if record.HasField("run")]
    assert {(run.project, run.display_name) for run in runs} == {("mine", "job-1")}
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.HasField("config")
        for item in record.config.update
    }
    assert config["model_params.lr"] == "0.1"
    rows: list[dict[str, Any]] = [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.HasField("history")
    ]
    # A first process that was too slow to leave has not made its rows safe: they come again.
    assert {row["version"] for row in rows if row.get("train/loss") == 0.5} == {1, 2, 3}
    assert {row["version"] for row in rows if row.get("validation/f1@5") == 0.75} == {1, 2, 3}
    summary = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for record in records
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert summary["receipt/trained"] == 300 and summary["outcome"] == "done"


def test_a_server_that_never_answers_costs_a_warning_and_no_wait_for_it(
    processes: Processes,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        processes.write_job(f"mlflow:http://127.0.0.1:{silent.getsockname()[1]}", 1)
        process = processes.start(MLFLOW_HTTP_REQUEST_TIMEOUT="1")
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["level"] == "warning" and first["text"].startswith("MLflow: ")
        code, said = processes.end(version=1)
    assert code == 1 and said == []


def test_wandb_s_server_is_tried_again_and_a_failed_attempt_leaves_nothing(
    processes: Processes,
) -> None:
    processes.write_job("wandb", 1)
    process = processes.start(
        WANDB_MODE="online",
        WANDB_API_KEY="a" * 40,
        WANDB_BASE_URL="http://127.0.0.1:9",
        WANDB_INIT_TIMEOUT="1",
    )
    log = processes.folder / "log"

    def attempts() -> bool:
        return log.read_text().count(" W elasticdl.tracking.following: W&B: ") >= 2

    until("it was tried twice", attempts, LIMIT_S, over=lambda: process.poll() is not None)
    code, said = processes.end(version=1)
    assert code == 1 and [one["level"] for one in said] == ["warning"]
    assert "Traceback" not in log.read_text()
    assert not list((processes.folder / "wandb").glob("run-*"))


def test_a_process_whose_master_has_left_leaves_the_run_open(processes: Processes) -> None:
    store = processes.folder / "store"
    processes.write_job(f"mlflow:file:{store}", 1)
    process = processes.start(MLFLOW_ALLOW_FILE_STORE="true")
    assert process.stdout is not None and b"tracking this job" in process.stdout.readline()
    left(processes)
    assert process.wait(LIMIT_S) == 0
    (meta,) = store.glob("*/*/meta.yaml")
    assert "status: 1" in meta.read_text(), "RUNNING"


@pytest.mark.parametrize("told", [b"", b"no JSON\n"])
def test_a_library_that_hangs_does_not_outlive_the_master_for_long(told: bytes) -> None:
    program = """
import time
from elasticdl.tracking.main import EndOnStdin
EndOnStdin(0, leave_s=1)
time.sleep(600)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=told,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGALRM, ended.stderr


def test_a_run_has_one_process(tmp_path: Path) -> None:
    path = tmp_path / "tracker.lock"
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not lock(path, limit_s=0.0)
    assert lock(path)
