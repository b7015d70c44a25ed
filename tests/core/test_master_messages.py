"""What the master says of its job, in words that hold."""

from __future__ import annotations

import pytest

from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def test_a_shard_of_which_nothing_was_reported_yet_is_not_said_to_stand_at_zero() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    records = present(lease.shard).records

    def doing() -> str | None:
        return next(
            process.shard for process in job.state.status().processes if process.name == "worker-0"
        )

    assert doing() == f"training shard {present(lease.shard).id}: {records} records"
    job.progress(0, lease, 8)
    assert doing() == f"training shard {present(lease.shard).id}: 8 of {records}"


def refuse(job: Bench, reason: str = "no space left on device") -> None:
    job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, reason))


def told(job: Bench) -> list[str]:
    return [command.text for command in job.of(c.Announce) if command.kind == "checkpoint"]


def test_a_checkpoint_that_is_refused_is_tried_five_times_and_said_twice() -> None:
    job = Bench.running(num_workers=1, checkpoint_steps=4, num_epochs=9, stall_seconds=0)
    job.progress(0, job.lease(), 8)
    job.put(e.VersionAdvanced(0, 4))
    for _ in range(60):
        if len(job.of(c.TakeSnapshot)) > len(
            [one for one in job.given if isinstance(one, c.DropSnapshot)]
        ):
            refuse(job)
        job.tick(60)
    assert len(job.of(c.TakeSnapshot)) == 5, "an hour later, too"
    first, last = told(job)
    assert (
        first
        == "checkpoint failed: no space left on device; earlier ones are kept; retrying in 5 s"
    )
    assert (
        last.startswith("checkpoint failed 5 times: no space left on device")
        and "elasticdl checkpoint" in last
    )

    job.put(e.VersionAdvanced(0, 8))
    assert len(job.of(c.TakeSnapshot)) == 6, "the next one is due"
    refuse(job)
    job.tick(600)
    assert len(job.of(c.TakeSnapshot)) == 6 and len(told(job)) == 2

    job.put(e.CheckpointRequested(0))
    refuse(job)
    assert "retrying" in told(job)[-1], "who asks for one is told"
    job.tick(10)
    taken = job.cut(8)
    job.saved(taken, 8)
    assert told(job)[-1].startswith("checkpoint of version 8 saved")


def test_a_checkpoint_without_a_copy_is_saved_and_its_copy_is_missed() -> None:
    job = Bench.running(num_workers=1, checkpoint_steps=4)
    job.progress(0, job.lease(), 8)
    job.put(e.VersionAdvanced(0, 4))
    taken = job.cut(4)
    job.put(e.SnapshotSaved(0, taken, 4, "version-4", 1, "cannot copy version-4 to s3://b: no"))
    saved, missed = told(job)
    assert saved.startswith("checkpoint of version 4 saved")
    assert missed == "cannot copy version-4 to s3://b: no; the next checkpoint tries again"
    assert [checkpoint.path for checkpoint in job.state.status().checkpoints] == ["version-4"]


def test_checkpoints_that_are_not_copied_warn_once_until_one_is() -> None:
    job = Bench.running(num_workers=1, checkpoint_steps=4, checkpoint_dir="s3://b")
    job.progress(0, job.lease(), 8)
    warned, again = [], []
    for version, why in enumerate(("", "no", "no", "", "", "no"), 1):
        job.put(e.VersionAdvanced(0, 4 * version))
        taken = job.of(c.TakeSnapshot)[-1].snapshot
        job.put(e.SnapshotCut(0, taken, 4 * version, {}))
        before = len(job.of(c.Announce))
        job.put(e.SnapshotSaved(0, taken, 4 * version, f"version-{version}", 1, why))
        said = job.of(c.Announce)[before:]
        warned += [version for one in said if one.level == "warning"]
        again += [version for one in said if one.text == "checkpoints are copied to s3://b again"]
    assert (warned, again) == ([2, 6], [4])


def test_a_checkpoint_that_is_asked_for_before_the_first_step_is_taken_after_it() -> None:
    job = Bench.running(num_workers=1)
    job.put(e.CheckpointRequested(0))
    job.tick(10)
    assert not job.of(c.TakeSnapshot)
    assert told(job) == ["checkpoint requested; it will be taken after the first step"]
    job.progress(0, job.lease(), 8)
    assert len(job.of(c.TakeSnapshot)) == 1


def test_a_job_stopped_twice_keeps_the_first_reason_and_promises_no_missing_checkpoint() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    job.put(e.StopRequested(0, "enough"))
    job.put(e.StopRequested(0, "the master received SIGTERM"))
    job.die(job.worker(0))
    job.fenced(0)
    job.die(job.ps(0))
    job.tick(60)
    assert (job.end.message, job.end.hint) == ("stopped: enough", "")
