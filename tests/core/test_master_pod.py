"""What a master in a pod makes of its job's directory, and how it goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.errors import ExitCode, SpecError, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.resume_command import resume_command
from elasticdl.jobdir.scale_override import keep_scale
from elasticdl.master.core import events as e
from elasticdl.master.core.commands import FinishJob, TakeSnapshot
from elasticdl.master.core.state import JobState
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.shutdown_checkpoint import LIMIT_S, checkpoint_in_time
from elasticdl.master.platform.begin_anew import begin_anew as begin_local_anew
from elasticdl.master.platform.pod_directory import begin_anew, open_directory
from elasticdl.shard import Source

pytestmark = pytest.mark.core
OURS, THEIRS = Owner("team-a", "iris", "uid-1"), Owner("team-a", "iris", "uid-0")


def job(tmp_path: Path, **flags: Any) -> JobSpec:
    needed = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "job_name": "iris",
        "job_dir": str(tmp_path / "jobs/iris"),
    }
    volume = {"volume": f"claim_name=c,mount_path={tmp_path}"} if str(tmp_path) != "/tmp" else {}
    return JobSpec.from_flags(Action.TRAIN, {**needed, "image_name": "i", **volume, **flags})


def checkpoint(spec: JobSpec) -> None:
    made = Path(spec.cluster.job_dir, "checkpoints/version-3")
    made.mkdir(parents=True)
    (made / "manifest.json").touch()


def read(spec: JobSpec) -> JobSpec:
    return JobSpec.model_validate_json(Path(spec.cluster.job_dir, "job.json").read_text())


def test_the_first_master_makes_the_directory_and_says_whose_it_is(tmp_path: Path) -> None:
    spec = job(tmp_path, envs="KEY=secret")
    directory, warnings = open_directory(spec, OURS, replaces=False)
    assert (read(spec), warnings) == (spec, ())
    assert json.loads((directory.path / "kubernetes.json").read_text())["uid"] == "uid-1"
    assert directory.spec.stat().st_mode & 0o077 == 0


def test_a_directory_that_holds_another_job_is_refused_unless_it_is_to_be_resumed(
    tmp_path: Path,
) -> None:
    spec = job(tmp_path)
    directory, _ = open_directory(spec, THEIRS, replaces=False)
    directory.preflight.write_text("{}")
    with pytest.raises(SpecError, match="already contains a job"):
        open_directory(spec, OURS, replaces=False)
    resumed = job(tmp_path, resume=True)
    open_directory(resumed, OURS, replaces=False)
    assert read(spec).checkpoint.resume
    assert not directory.preflight.exists(), "the data may be other than it was"


def test_a_resume_needs_a_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no job"):
        open_directory(job(tmp_path, resume=True), OURS, replaces=False)
    copied = job(tmp_path / "elsewhere", resume=True, checkpoint_dir="s3://bucket/copies")
    open_directory(copied, OURS, replaces=False)  # all that is left may be the copies
    directory, _ = open_directory(job(tmp_path), THEIRS, replaces=False)
    (directory.checkpoints / "version-3").mkdir(parents=True)
    with pytest.raises(SpecError, match="has no manifest"):
        open_directory(job(tmp_path, resume=True), OURS, replaces=False)


def test_the_next_master_finds_the_job_as_the_one_before_left_it(tmp_path: Path) -> None:
    spec = job(tmp_path, num_workers="1:3")
    directory, _ = open_directory(spec, OURS, replaces=False)
    before = directory.spec.read_text()
    keep_scale(directory, spec.cluster.num_workers, 2, 2)
    assert open_directory(spec, OURS, replaces=True) == (directory, ())
    assert directory.spec.read_text() == before, "the journal knows that it was scaled"
    (scaled,) = begin_anew(spec, directory, lost=False)
    assert "2 workers" in scaled and read(spec).cluster.num_workers.high == 2


def test_a_directory_that_fails_under_the_next_master_does_not_end_the_job(tmp_path: Path) -> None:
    """It was usable before: the pod restarts until it is again."""
    spec = job(tmp_path)
    directory, _ = open_directory(spec, OURS, replaces=False)
    directory.kubernetes.unlink()
    directory.kubernetes.mkdir()
    with pytest.raises(TransientError, match=r"cannot be used .* now: Is a directory") as caught:
        open_directory(spec, OURS, replaces=True)
    assert caught.value.exit_code is ExitCode.UNAVAILABLE
    with pytest.raises(SpecError, match="Is a directory"):
        open_directory(spec, OURS, replaces=False)


def test_a_master_that_starts_over_resumes_from_the_newest_checkpoint_and_says_so(
    tmp_path: Path,
) -> None:
    spec = job(tmp_path, checkpoint_steps=10)
    directory, _ = open_directory(spec, OURS, replaces=False)
    directory.preflight.write_text("{}")
    checkpoint(spec)
    assert open_directory(spec, OURS, replaces=True)[1] == ()
    (warning,) = begin_anew(spec, directory, lost=False)
    assert read(spec).checkpoint.resume and "resumes from its newest checkpoint" in warning
    assert directory.preflight.exists(), "the same job need not look at its data again"


@pytest.mark.parametrize("passing", [True, False])
def test_without_a_checkpoint_a_job_whose_processes_are_lost_starts_over_and_says_so(
    tmp_path: Path, passing: bool
) -> None:
    spec = job(tmp_path, **({"volume": "claim_name=c,mount_path=/elsewhere"} if passing else {}))
    directory, _ = open_directory(spec, OURS, replaces=True)
    assert begin_anew(spec, directory, lost=False) == (), "nothing had begun"
    (warning,) = begin_anew(spec, directory, lost=True)
    assert read(spec).checkpoint.resume != passing, "what was trained before counts as repeated"
    assert "has no checkpoint" in warning and "starts over" in warning
    assert ("--job-dir to make jobs resumable" in warning) == passing


def test_a_resume_that_has_not_fetched_its_checkpoint_does_not_say_that_there_is_none(
    tmp_path: Path,
) -> None:
    at = "s3://bucket/copies"
    spec = job(tmp_path, checkpoint_dir=at, checkpoint_steps=10, resume=True)
    directory, _ = open_directory(spec, OURS, replaces=True)
    (warning,) = begin_anew(spec, directory, lost=True)
    assert warning.endswith(f": the job resumes from its newest checkpoint, if {at} has one")
    flags = {"model_zoo": "z", "model_def": "m", "training_data": "t", "job_dir": "s3://b/j"}
    for resumes in (True, False):
        here = JobDirectory(tmp_path / f"local {resumes}")
        here.path.mkdir()
        here.preflight.write_text("{}")
        local = JobSpec.from_flags(Action.TRAIN, {**flags, "resume": resumes})
        here.spec.write_text(local.model_dump_json())
        (warning,) = begin_local_anew(here, "run").warnings
        expected = (
            "newest checkpoint, if s3://b/j/checkpoints has one" if resumes else "starts over"
        )
        assert expected in warning and ("starts over" in warning) != resumes


def test_a_job_without_a_volume_resumes_from_its_address(tmp_path: Path) -> None:
    given = {"volume": "claim_name=c,mount_path=/elsewhere", "checkpoint_dir": "s3://bucket/iris"}
    spec = job(tmp_path, **given)
    directory, _ = open_directory(spec, OURS, replaces=True)
    (warning,) = begin_anew(spec, directory, lost=True)
    assert read(spec).checkpoint.resume
    assert "resumes from its newest checkpoint in s3://bucket/iris" in warning
    stopped = resume_command(spec.model_dump(mode="json"), directory)
    assert stopped.startswith("resume with: ")


def test_a_job_on_a_volume_with_copies_but_no_checkpoint_starts_over(tmp_path: Path) -> None:
    spec = job(tmp_path, checkpoint_dir="s3://bucket/iris")
    assert spec.checkpoint_copies and not spec.checkpoints_at
    directory, _ = open_directory(spec, OURS, replaces=True)
    stopped = resume_command(spec.model_dump(mode="json"), directory)
    assert stopped.startswith("start over, since no checkpoint exists, with: ")


def test_evaluation_begins_afresh_whatever_lies_there(tmp_path: Path) -> None:
    flags = {**job(tmp_path).flags(), "validation_data": "v", "checkpoint_dir_for_init": "/c"}
    spec = JobSpec.from_flags(Action.EVALUATE, flags)
    checkpoint(spec)
    directory, _ = open_directory(spec, OURS, replaces=True)
    (warning,) = begin_anew(spec, directory, lost=True)
    assert not read(spec).checkpoint.resume and "starts over" in warning


def test_predictions_are_not_mixed_with_those_of_another_job_and_the_next_master_finds_its_own(
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    flags = {
        **job(tmp_path).flags(),
        "prediction_data": "p",
        "checkpoint_dir_for_init": "/c",
        "output": str(output),
    }
    spec = JobSpec.from_flags(Action.PREDICT, flags)
    open_directory(spec, OURS, replaces=False)
    output.mkdir()
    (output / "predictions-000000-000000000-000000010.npz").touch()
    open_directory(spec, OURS, replaces=True)
    with pytest.raises(SpecError, match="predictions would mix"):
        open_directory(spec, OURS, replaces=False)


def test_a_directory_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    with pytest.raises(SpecError, match="cannot be used in the master's pod") as refused:
        open_directory(job(tmp_path), OURS, replaces=False)
    assert refused.value.exit_code is ExitCode.USAGE and "--fs-group" in refused.value.hint


# going


class Stage:
    """A job with a server, and a clock that jumps whenever the departing master looks again."""

    def __init__(self, tmp_path: Path, version: int = 3) -> None:
        self.core = JobState(job(tmp_path))
        self.clock = ManualClock()
        self.inbox = EventQueue(self.clock)
        self.running: asyncio.Future[FinishJob] = asyncio.get_running_loop().create_future()
        self.core.handle(e.JobStarted(0.0, (Source("a", 100),), (), ()))
        self.core.handle(e.ProcessAttached(0.0, ProcessName(Role.PS, 0), "a:1", "a:2", None))
        for first in self.core.handle(e.VersionAdvanced(0.0, min(version, 1))):
            # The job's first checkpoint comes at once.
            assert isinstance(first, TakeSnapshot)
            self.core.handle(e.SnapshotCut(0.0, first.snapshot, 1, {}))
            self.core.handle(e.SnapshotSaved(0.0, first.snapshot, 1, "/c/version-1", 10))
        self.core.handle(e.VersionAdvanced(0.0, version))

    async def leave(self, possible: bool = True) -> None:
        async with asyncio.timeout(10):
            await checkpoint_in_time(self.core, self.inbox, self.running, lambda: possible)


async def test_a_master_that_leaves_waits_for_a_checkpoint(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.clock.advance(5.0)
    leaving = asyncio.ensure_future(stage.leave())
    (entry,) = await stage.inbox.take()
    assert isinstance(entry.event, e.CheckpointRequested)
    (snapshot,) = [
        one.snapshot for one in stage.core.handle(entry.event) if hasattr(one, "snapshot")
    ]
    stage.core.handle(e.SnapshotCut(6.0, snapshot, 3, {}))
    await asyncio.sleep(0.15)
    assert not leaving.done()
    stage.core.handle(e.SnapshotSaved(7.0, snapshot, 3, "/c/version-3", 10))
    await leaving


@pytest.mark.parametrize("version", [9, 3, 2])
async def test_a_checkpoint_that_was_cut_before_is_not_the_last_one_of_a_master(
    tmp_path: Path, version: int
) -> None:
    """Even if the status has no newer version, or a server came back with an older one."""
    stage = Stage(tmp_path)
    (order,) = [
        one for one in stage.core.handle(e.CheckpointRequested(1.0)) if hasattr(one, "snapshot")
    ]
    stage.core.handle(e.SnapshotCut(2.0, order.snapshot, 3, {}))
    stage.core.handle(e.VersionAdvanced(4.0, max(3, version)))
    stage.clock.advance(5.0)
    leaving = asyncio.ensure_future(stage.leave())
    (entry,) = await stage.inbox.take()
    stage.core.handle(entry.event)
    commands = stage.core.handle(e.SnapshotSaved(6.0, order.snapshot, 3, "/c/version-3", 10))
    await asyncio.sleep(0.15)
    assert not leaving.done()
    (again,) = [command.snapshot for command in commands if isinstance(command, TakeSnapshot)]
    stage.core.handle(e.SnapshotCut(7.0, again, version, {}))
    path = f"/c/version-{version}"
    stage.core.handle(e.SnapshotSaved(8.0, again, version, path, 10))
    await leaving


async def test_a_master_leaves_at_once_where_no_checkpoint_can_be_had(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.leave(possible=False)
    assert len(stage.core.status().checkpoints) == 1, "the first one"


async def test_a_master_leaves_at_once_before_the_first_step(tmp_path: Path) -> None:
    await Stage(tmp_path, version=0).leave()


async def test_a_checkpoint_that_takes_too_long_does_not_hold_a_leaving_master(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    leaving = asyncio.ensure_future(stage.leave())
    await stage.inbox.take()
    stage.clock.advance(LIMIT_S + 1.0)
    await leaving


async def test_a_job_that_was_stopped_may_end_before_its_master_leaves(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.core.handle(e.StopRequested(1.0, "enough"))
    leaving = asyncio.ensure_future(stage.leave(possible=False))
    await asyncio.sleep(0.15)
    assert not leaving.done() and stage.core.status().exit_code == ExitCode.INTERRUPTED
    stage.running.set_result(FinishJob(ExitCode.INTERRUPTED, "stopped"))
    await leaving
