"""A real job whose worker is killed: the record names the signal at once, who took over, and it is all there afterwards."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.directory_job import DirectoryJob
from elasticdl.history.why import told
from elasticdl.master.files import JobDirectory

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
NAMED_WITHIN_S = 2.0


def elasticdl(*arguments: str) -> str:
    command = [sys.executable, "-m", "elasticdl.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exits(directory: Path) -> list[dict[str, Any]]:
    """As `why` has them, out of the record of a job that runs."""
    return [entry for entry in DirectoryJob(JobDirectory(directory)).story().story["entries"] if entry["what"] == "exit"]


def wait_for(what: str, found: Any, limit_s: float = 120.0) -> Any:
    end_s = time.monotonic() + limit_s
    while not (value := found()):
        assert time.monotonic() < end_s, f"not within {limit_s} s: {what}"
        time.sleep(0.05)
    return value


def test_why_names_a_kill_within_two_seconds_and_the_worker_that_took_over(start_job, iris_csv) -> None:
    job = start_job(model_def="iris", training_data=iris_csv(2000), num_epochs=50, num_workers=2, num_ps_pods=1, minibatch_size=64)
    job.wait_until("both train", lambda status: sum(one["records"] > 0 for one in status["processes"]) == 2, 240)
    killed_at = time.time()
    assert job.kill_one("worker", random.Random(1))
    kill = wait_for("the kill is told", lambda: next((one for one in exits(job.directory) if "SIGKILL" in one["text"]), None))
    assert kill["at"] - killed_at < NAMED_WITHIN_S
    assert kill["process"] in ("worker-0", "worker-1") and kill["replaced_by"] == "worker-2"

    running = elasticdl("why", "--job-dir", str(job.directory))
    assert f"! {kill['process']} killed by signal 9 (SIGKILL)" in running and "worker-2" in running
    made_up = wait_for("another trains", lambda: next((one for one in exits(job.directory) if one["recovered_s"]), None), 240)
    elasticdl("stop", "--job-dir", str(job.directory), "--yes")
    code, output = job.finish(240)
    assert code == 130, output

    found = json.loads(elasticdl("why", "--job-dir", str(job.directory), "-o", "json"))
    assert found["state"] == "stopped" and found["totals"]["recoveries"]["count"] == 1
    assert told(made_up) in [told(one) for one in found["entries"]]
    report = job.directory / "report.html"
    assert "SIGKILL" in report.read_text(encoding="utf-8"), "the master left the page as it stood at the end"
    names = {one["name"] for one in json.loads((job.directory / "series.json").read_text())}
    assert {"loss", "records_per_s", "workers", "updates_per_s", "staleness", "pull_s", "push_s"} <= names
    for other in ("why", "report"):
        words = "import sys; from elasticdl.cli.main import run; run([sys.argv[1], '--job-dir', sys.argv[2]]);"
        heavy = words + " assert not {'tensorflow', 'grpc', 'kubernetes'} & set(sys.modules)"
        subprocess.run(
            [sys.executable, "-c", heavy, other, str(job.directory)], cwd=ROOT, check=True, capture_output=True, timeout=60
        )
