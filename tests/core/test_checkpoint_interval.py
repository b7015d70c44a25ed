"""Checkpoints by time: when they are due, what they may cost, and which jobs end with one."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.errors import ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from tests.core.conftest import Bench
from tests.core.ring_world import RingWorld, make_spec
from tests.core.test_master_cuts import cut, saved
from tests.core.test_ring_work import saved as saved_at
from tests.core.test_ring_work import started, trained

pytestmark = pytest.mark.core


def begun(bench: type[Bench], **flags: Any) -> Bench:
    job = bench(num_epochs=9, stall_seconds=0, **{"checkpoint_seconds": 300, **flags})
    job.up()
    job.put(e.VersionAdvanced(0, 1))
    return job


def ordered(job: Bench, after_s: float) -> bool:
    """Whether a checkpoint is ordered at the end of that time, and none just before."""
    assert not job.of(c.TakeSnapshot, job.tick(after_s - 0.5))
    return bool(job.of(c.TakeSnapshot, job.tick(0.5)))


def test_a_checkpoint_is_taken_every_minute(bench: type[Bench]) -> None:
    job = begun(bench, checkpoint_seconds=make_spec().checkpoint.checkpoint_seconds)
    assert ordered(job, 60)
    saved(job, cut(job, 5))
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 60)


@pytest.mark.parametrize("seconds", [0, 7.5])
def test_a_user_sets_the_interval(bench: type[Bench], seconds: float) -> None:
    job = begun(bench, checkpoint_seconds=seconds)
    assert ordered(job, seconds or 1000) == bool(seconds)


def test_weights_that_did_not_change_are_not_saved_again(bench: type[Bench]) -> None:
    job = begun(bench)
    assert ordered(job, 300)
    saved(job, cut(job, 5))
    assert not ordered(job, 1000)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 6)))


def test_a_checkpoint_that_takes_long_is_taken_seldom(bench: type[Bench]) -> None:
    """The time from the order to the file counts: the cut delays every push."""
    job = begun(bench, checkpoint_seconds=60)
    assert ordered(job, 60)
    job.tick(1)
    save = cut(job, 5)
    job.tick(3)
    saved(job, save)
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 200)
    saved(job, cut(job, 6))
    job.put(e.VersionAdvanced(0, 7))
    assert ordered(job, 60), "the newest one counts"


def test_one_by_steps_or_at_a_persons_request_begins_the_interval(bench: type[Bench]) -> None:
    job = begun(bench, checkpoint_steps=10)
    job.tick(200)
    job.put(e.VersionAdvanced(0, 10))
    saved(job, cut(job, 10))
    job.put(e.VersionAdvanced(0, 11))
    assert not ordered(job, 299)
    job.put(e.CheckpointRequested(0))
    saved(job, cut(job, 11))
    job.put(e.VersionAdvanced(0, 12))
    assert ordered(job, 300)


def test_one_that_is_given_up_is_tried_again_after_the_interval(bench: type[Bench]) -> None:
    job = begun(bench)
    assert ordered(job, 300)
    for _ in range(5):
        snapshot = cut(job, 5).snapshot
        job.put(e.SnapshotFailed(0, snapshot, "disk full"))
        job.tick(60)
    assert job.said("checkpoint failed 5 times")
    assert len(job.of(c.TakeSnapshot)) == 5
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 240)


def test_a_job_without_a_place_takes_none(bench: type[Bench]) -> None:
    job = begun(bench, image_name="zoo:1")
    assert not ordered(job, 10_000)
    job.train_all()
    assert job.state.status().phase == "ending"


@pytest.mark.parametrize(
    ("lasted_s", "flags", "last"),
    [
        (58, {}, False),
        (62, {}, True),
        (62, {"checkpoint_seconds": 0}, False),
        (1, {"checkpoint_steps": 1000}, True),
    ],
)
def test_a_job_that_lasted_an_interval_ends_with_a_checkpoint(
    bench: type[Bench], lasted_s: float, flags: dict[str, Any], last: bool
) -> None:
    job = bench(stall_seconds=0, **flags)
    job.up()
    job.tick(lasted_s)
    job.put(e.VersionAdvanced(0, 4))
    while job.of(c.TakeSnapshot)[len(job.of(c.SaveSnapshot)) :]:
        saved(job, cut(job, 4))
    job.train_all()
    assert (job.state.status().phase == "checkpointing") == last


def test_a_resumed_job_ends_with_a_checkpoint_however_short_it_is(bench: type[Bench]) -> None:
    job = bench()
    job.up(version=20)
    job.train_all()
    assert job.state.status().phase == "checkpointing"


def timed(**flags: Any) -> RingWorld:
    return started(num_workers=2, records_per_task=24, num_epochs=3, **flags)


def test_a_ring_makes_a_mark_when_the_interval_is_over() -> None:
    world = timed(checkpoint_seconds=1)
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    assert len(saved_at(world)) > 1
    world.check_truth()


def test_a_ring_without_an_interval_makes_none() -> None:
    world = timed(checkpoint_seconds=0)
    world.run_out()
    assert not world.state.status().checkpoints and trained(world)


def test_the_interval_is_a_flag_of_training_alone() -> None:
    assert make_spec().checkpoint.checkpoint_seconds == 60
    flags = {"model_zoo": "z", "model_def": "m", "validation_data": "v"}
    spec = JobSpec.from_flags(Action.EVALUATE, {**flags, "checkpoint_dir_for_init": "c"})
    assert "checkpoint_seconds" not in spec.flags(defaults=False)
