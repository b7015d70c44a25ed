"""`why` and `report` on the record of a job that a real driver ran on the cluster in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.main import run
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import ExitCode
from elasticdl.history.diagnosis_text import story_of_lines
from elasticdl.history.event_log import EventLog
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.outcome import leave_outcome, leave_report, outcome_of, tell_story
from tests.contract.fake_job import FakeJob, whole_job
from tests.fake_cluster import OUT_OF_MEMORY, PREEMPTED

pytestmark = pytest.mark.contract
QUOTA = "quota team exhausted: cpu 8 of 8 used, 2 more asked for"
ON_KUBERNETES = {
    "image_name": "zoo:1",
    "worker_resource_limit": "memory=1Gi",
    "oom_memory_limit": "1Gi",
    "num_workers": 1,
}


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., FinishJob]:
    """Run a job to its end in a directory that looks as a master leaves it."""

    def run_job(
        scenario: Callable[[FakeJob], Any],
        prepare: Callable[[FakeJob], None] | None = None,
        **flags: Any,
    ) -> FinishJob:
        finish, job = asyncio.run(whole_job(tmp_path, scenario, prepare, **flags))
        directory = JobDirectory(tmp_path)
        directory.spec.write_text(job.spec.model_dump_json())
        status = job.core.status()
        outcome = outcome_of(finish, directory, job.spec, status, job.core.receipt())
        leave_outcome(directory, outcome, status)
        return finish

    return run_job


def why(capsys: pytest.CaptureFixture[str], directory: Path, *flags: str) -> str:
    assert run(["why", "--job-dir", str(directory), *flags]) == 0
    return capsys.readouterr().out


def at_shard_0(index: int) -> Callable[[FakeJob], bool]:
    name = str(ProcessName(Role.WORKER, index))
    return lambda job: any(
        process.name == name and "shard 0" in (process.shard or "")
        for process in job.core.status().processes
    )


def test_workers_out_of_memory_on_one_shard_are_counted_by_shard(
    play: Callable[..., FinishJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(job: FakeJob) -> None:
        for index in range(3):
            await job.until(f"worker-{index} has the shard", at_shard_0(index))
            job.cluster.exit(ProcessName(Role.WORKER, index), OUT_OF_MEMORY)

    assert (
        play(scenario, pace_s=0.5, shuffle="none", **ON_KUBERNETES).exit_code is ExitCode.JOB_FAILED
    )
    text = why(capsys, tmp_path)
    assert "! worker-1 out of memory at 1.0 of 1.0 GiB, twice on shard 0" in text
    assert "! worker-2 out of memory at 1.0 of 1.0 GiB, three times on shard 0" in text
    assert "ended: " in text and ", 3 out of memory" in text
    assert (
        " failed: worker-2 out of memory at 1.0 of 1.0 GiB, 3 times on shard 0"
        in text.splitlines()[0]
    )


def test_a_wait_and_a_loss_that_was_made_up_for_have_their_durations(
    play: Callable[..., FinishJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until("the wait is told", lambda job: "8 of 8" in job.events_path.read_text())
        job.cluster.quota(None)
        await job.until("all are there", lambda job: len(job.workers) == 3)
        before = job.trained
        await job.until("some progress", lambda job: job.trained > before)
        job.cluster.exit(job.workers[0], PREEMPTED)
        await job.until(
            "another works",
            lambda job: "worker-3 made its first progress" in job.events_path.read_text(),
        )

    assert (
        play(
            scenario, lambda job: job.cluster.quota(4, QUOTA), num_workers="1:3", pace_s=0.1
        ).exit_code
        is ExitCode.DONE
    )
    found = json.loads(why(capsys, tmp_path, "-o", "json"))
    assert (found["state"], found["missing"], found["dropped"]) == ("done", "", 0)
    (wait,) = [
        entry for entry in found["entries"] if entry["what"] == "wait" and QUOTA in entry["text"]
    ]
    assert wait["seconds"] > 0 and not wait["open"]
    assert found["totals"]["waited_s"]["place"] == wait["seconds"]
    (loss,) = [entry for entry in found["entries"] if entry["cause"] == "preempted"]
    assert loss["replaced_by"] == "worker-3" and loss["recovered_s"] > 0
    (lost,) = [one for one in found["goodput"]["spent"] if one["cause"] == "preempted"]
    assert (lost["kind"], lost["process"]) == ("lost", loss["process"]) and lost["seconds"] > 0
    text, _, goodput = why(capsys, tmp_path, "-n", "2").partition("goodput: ")
    assert "1 preempted (displaced by a pod of higher priority)" in text
    assert goodput.startswith("0.0 % of ") and "lost, preempted: " in goodput
    lines = text.splitlines()
    assert (
        lines[0].endswith(" is done")
        and "not shown" in lines[1]
        and len(lines) == 7
        and any(line.startswith("made up for 1 loss:") for line in lines)
    )


def test_report_writes_one_file_and_says_where(
    play: Callable[..., FinishJob], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until("some progress", lambda job: job.trained > 0)

    play(scenario)
    assert run(["report", "--job-dir", str(tmp_path)]) == 0
    place = Path(capsys.readouterr().out.strip())
    assert place == tmp_path / "report.html"
    text = place.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>") and "worker-0" in text
    assert (
        run(["report", "--job-dir", str(tmp_path), "--output", str(tmp_path / "no" / "where.html")])
        == ExitCode.USAGE
    )
    assert "cannot write" in capsys.readouterr().err
    assert run(["report", "--job-dir", str(tmp_path), "--output", "-"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("</html>")


def test_a_job_that_is_not_there_is_no_job_to_tell_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("why", "report"):
        assert run([verb, "--job-dir", str(tmp_path)]) == ExitCode.NO_SUCH_JOB
    assert "there is no job in" in capsys.readouterr().err


def test_a_job_that_failed_before_it_began_says_that_nothing_is_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, finish = (
        JobDirectory(tmp_path),
        FinishJob(ExitCode.JOB_FAILED, "zoo/iris.py:3: SyntaxError"),
    )
    spec = JobSpec.from_flags(
        Action.TRAIN, {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    )
    directory.spec.write_text(spec.model_dump_json())
    leave_outcome(directory, outcome_of(finish, directory))
    assert run(["why", "--job-dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert " failed: zoo/iris.py:3: SyntaxError" in captured.out and "not available" in captured.err


def test_a_report_that_cannot_be_made_changes_no_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> dict[str, Any]:
        raise KeyError("a bug of the page")

    leave_report(JobDirectory(tmp_path), broken)
    leave_report(JobDirectory(tmp_path / "away"), lambda: {})
    assert len(caplog.records) == 2 and not list(tmp_path.iterdir())


def test_a_story_comes_back_from_a_log_whatever_is_around_its_lines(
    play: Callable[..., FinishJob],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(job: FakeJob) -> None:
        await job.until("some progress", lambda job: job.trained > 0)
        job.cluster.exit(job.workers[0], PREEMPTED)

    play(scenario, pace_s=0.05)
    story = json.loads(why(capsys, tmp_path, "-o", "json"))
    caplog.set_level(logging.INFO)
    tell_story(EventLog(tmp_path / "events.jsonl", 0.0))
    lines = [
        f"2026-11-21 13:42:33,268 I {record.name}: {record.getMessage()}"
        for record in caplog.records
    ]
    told = story_of_lines(["some line", "why: {broken", *lines, "exit code 0: done"])
    assert told == {key: story[key] for key in ("entries", "dropped", "totals", "now_s")}
    assert (
        story_of_lines(["nothing of that kind", 'why: {"text": "an entry without a beginning"}'])
        is None
    )
