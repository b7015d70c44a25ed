"""Checkpoints by time: when they are due, what they may cost, and which jobs end with one."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName
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


def begun(**flags: Any) -> Bench:
    job = Bench.running(num_epochs=9, stall_seconds=0, **{"checkpoint_seconds": 300, **flags})
    job.put(e.VersionAdvanced(0, 1))
    return job


def ordered(job: Bench, after_s: float) -> bool:
    """Whether a checkpoint is ordered at the end of that time, and none just before."""
    assert not job.of(c.TakeSnapshot, job.tick(after_s - 0.5))
    return bool(job.of(c.TakeSnapshot, job.tick(0.5)))


def test_a_checkpoint_is_taken_every_minute() -> None:
    job = begun(checkpoint_seconds=make_spec().checkpoint.checkpoint_seconds)
    assert ordered(job, 60)
    saved(job, cut(job, 5))
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 60)


@pytest.mark.parametrize("seconds", [0, 7.5])
def test_a_user_sets_the_interval(seconds: float) -> None:
    job = begun(checkpoint_seconds=seconds)
    assert ordered(job, seconds or 1000) == bool(seconds)


def test_weights_that_did_not_change_are_not_saved_again() -> None:
    job = begun()
    assert ordered(job, 300)
    saved(job, cut(job, 5))
    assert not ordered(job, 1000)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 6)))


def test_a_checkpoint_that_takes_long_is_taken_seldom() -> None:
    """The time from the order to the file counts: the cut delays every push."""
    job = begun(checkpoint_seconds=60)
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


def test_workers_without_room_get_a_checkpoint_before_the_interval_of_steps_is_over() -> None:
    job = begun(checkpoint_seconds=0, checkpoint_steps=1000)
    assert not ordered(job, 1000)
    crowded = e.PushesReported(0, job.worker(0), 9, {}, crowded=True)
    assert job.of(c.TakeSnapshot, job.put(crowded))


def in_pods(**flags: Any) -> Bench:
    """A job whose servers lose their memory with their pods."""
    place = {"job_dir": "/data/job", "volume": "claim_name=c,mount_path=/data"}
    return begun(image_name="zoo:1", **place, **flags)


def test_pods_get_their_first_checkpoint_at_once() -> None:
    job = in_pods()
    save = cut(job, 1)
    assert save.pause_s == 0
    saved(job, save)
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 300)
    assert cut(job, 6).pause_s == 30


def test_the_end_of_a_worker_in_a_pod_brings_a_checkpoint_of_its_pushes() -> None:
    job = in_pods()
    job.tick(2)
    saved(job, cut(job, 1))
    job.put(e.VersionAdvanced(0, 6))
    job.tick(1)
    job.die(job.worker(0))
    assert not job.of(c.TakeSnapshot, job.tick(98)), "before 50 times the last one's 2 seconds"
    assert job.of(c.TakeSnapshot, job.tick(1))
    job.tick(0.5)
    job.die(job.worker(1))
    saved(job, cut(job, 6))
    job.put(e.VersionAdvanced(0, 7))
    assert ordered(job, 25), "another worker ended after its order"
    saved(job, cut(job, 7))
    job.put(e.VersionAdvanced(0, 8))
    job.tick(0.5)
    job.die(job.worker(2))
    assert ordered(job, 1), "its last pushes may be on their way"
    saved(job, cut(job, 8))
    job.put(e.VersionAdvanced(0, 9))
    assert not job.of(c.TakeSnapshot, job.tick(200))


def test_pods_of_a_synchronous_job_get_only_their_first_checkpoint_at_once() -> None:
    """There must be one to go back to."""
    job = in_pods(sync=True)
    saved(job, cut(job, 1))
    job.put(e.VersionAdvanced(0, 6))
    job.die(job.worker(0))
    assert not job.of(c.TakeSnapshot, job.tick(200)), "no worker takes updates along"
    assert job.of(c.TakeSnapshot, job.tick(100))


def test_pods_without_checkpoints_get_no_early_one() -> None:
    assert not ordered(in_pods(checkpoint_seconds=0), 300)


def test_pods_with_checkpoints_by_steps_alone_get_early_ones_too() -> None:
    job = in_pods(checkpoint_seconds=0, checkpoint_steps=1000)
    saved(job, cut(job, 1))
    job.put(e.VersionAdvanced(0, 6))
    assert not ordered(job, 1000)
    job.die(job.worker(0))
    assert ordered(job, 1)


def test_the_end_of_a_worker_in_a_pod_ends_the_pauses_of_a_checkpoint() -> None:
    job = in_pods()
    saved(job, cut(job, 1))
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 300)
    save = cut(job, 6)
    assert save.pause_s == 30
    job.die(job.worker(0))
    assert [one.snapshot for one in job.of(c.HurrySnapshot)] == [save.snapshot]


def test_a_report_from_before_a_checkpoint_brings_no_other_one() -> None:
    job = begun()
    job.tick(2)
    job.put(e.PushesReported(0, job.worker(0), 9, {}, crowded=True))
    job.tick(1)
    saved(job, cut(job, 1))
    job.put(e.PushesReported(0, job.worker(0), 12, {}, crowded=True))
    job.put(e.VersionAdvanced(0, 12))
    assert ordered(job, 300)


def ordinary(job: Bench, version: int = 5) -> c.SaveSnapshot:
    """A checkpoint that is due by time, and is being written."""
    assert ordered(job, 60)
    return cut(job, version)


def test_servers_leave_the_processors_to_training_while_nobody_waits() -> None:
    assert ordinary(begun(checkpoint_seconds=60)).pause_s == 30
    assert ordinary(begun(checkpoint_seconds=60, checkpoint_steps=99)).pause_s == 30
    job = begun(checkpoint_seconds=7)
    assert ordered(job, 7) and cut(job, 5).pause_s == 3.5, "half of the interval"
    job = begun(checkpoint_seconds=0, checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    assert cut(job, 10).pause_s == 30


def test_the_pauses_of_servers_are_not_what_a_checkpoint_takes() -> None:
    """Neither for the next one, nor for the interval."""
    job = begun(checkpoint_seconds=60)
    save = ordinary(job)
    job.tick(22)
    job.put(e.SnapshotSaved(0, save.snapshot, 5, "version-5", 9, paused_s=20))
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 100 - 20), "50 times two seconds"


def test_an_upload_of_the_first_checkpoint_of_pods_is_not_what_it_takes() -> None:
    job = in_pods(checkpoint_seconds=60)
    save = cut(job, 1)
    job.tick(101)
    job.put(e.SnapshotSaved(0, save.snapshot, 1, "version-1", 9, paused_s=100))
    job.put(e.VersionAdvanced(0, 6))
    job.tick(60)
    assert save.pause_s == 0 and len(job.of(c.TakeSnapshot)) == 2


def test_servers_do_not_pause_while_somebody_waits() -> None:
    def person(job: Bench) -> c.SaveSnapshot:
        job.put(e.CheckpointRequested(0))
        return cut(job, 5)

    def person_after_the_order(job: Bench) -> c.SaveSnapshot:
        assert ordered(job, 60)
        job.put(e.CheckpointRequested(0))
        return cut(job, 5)

    def end(job: Bench) -> c.SaveSnapshot:
        job.tick(70)
        saved(job, cut(job, 5))
        job.train_all()
        return cut(job, 7)

    def failure(job: Bench) -> c.SaveSnapshot:
        job.put(e.SnapshotFailed(0, ordinary(job).snapshot, "disk full"))
        job.tick(5)
        return cut(job, 5)

    def crowded(job: Bench) -> c.SaveSnapshot:
        job.tick(5)
        job.put(e.PushesReported(0, job.worker(0), 9, {}, crowded=True))
        return cut(job, 5)

    def crowded_after_the_order(job: Bench) -> c.SaveSnapshot:
        assert ordered(job, 60)
        job.put(e.PushesReported(0, job.worker(0), 9, {}, crowded=True))
        return cut(job, 5)

    for story in (person, person_after_the_order, end, failure, crowded, crowded_after_the_order):
        assert story(begun(checkpoint_seconds=60)).pause_s == 0, story.__name__


@pytest.mark.parametrize("who", ["person", "server", "end", "next"])
def test_servers_stop_to_pause_when_somebody_waits(who: str) -> None:
    job = begun(checkpoint_seconds=60, checkpoint_steps=10)
    save = ordinary(job)
    job.tick(1)
    assert not job.of(c.HurrySnapshot)
    match who:
        case "person":
            job.put(e.CheckpointRequested(0))
        case "server":
            job.put(e.CheckpointRequested(0, ProcessName.parse("ps-0")))
        case "end":
            job.train_all()
        case "next":
            job.put(e.VersionAdvanced(0, 10))
    assert [one.snapshot for one in job.of(c.HurrySnapshot)] == [save.snapshot]
    saved(job, save)
    assert (cut(job, 11).pause_s > 0) == (who == "next"), "nobody waits for that one"
    assert len(job.of(c.HurrySnapshot)) == 1


def test_another_master_ends_the_pauses_of_its_predecessors_checkpoint() -> None:
    job = begun(checkpoint_seconds=60)
    save = ordinary(job)
    commands = job.put(e.MasterTookOver(0, 2, 1.5))
    assert job.of(c.HurrySnapshot, commands) == [c.HurrySnapshot(save.snapshot)]
    assert [one.pause_s for one in job.of(c.SaveSnapshot, commands)] == [0]


def test_one_by_steps_or_at_a_persons_request_begins_the_interval() -> None:
    job = begun(checkpoint_steps=10)
    job.tick(200)
    job.put(e.VersionAdvanced(0, 10))
    saved(job, cut(job, 10))
    job.put(e.VersionAdvanced(0, 11))
    assert not ordered(job, 299)
    job.put(e.CheckpointRequested(0))
    saved(job, cut(job, 11))
    job.put(e.VersionAdvanced(0, 12))
    assert ordered(job, 300)


def test_one_that_is_given_up_is_tried_again_after_the_interval() -> None:
    job = begun()
    assert ordered(job, 300)
    for _ in range(5):
        snapshot = cut(job, 5).snapshot
        job.put(e.SnapshotFailed(0, snapshot, "disk full"))
        job.tick(60)
    assert job.said("checkpoint failed 5 times")
    assert len(job.of(c.TakeSnapshot)) == 5
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 240)


def test_a_store_that_is_back_gets_a_checkpoint_after_the_interval() -> None:
    """However long servers have tried to upload their parts."""
    job = begun(checkpoint_seconds=60)
    assert ordered(job, 60)
    for _ in range(5):
        save = cut(job, 5)
        job.tick(90)
        job.put(e.SnapshotFailed(0, save.snapshot, "cannot write, tried for 90 s"))
        job.tick(60)
    job.put(e.VersionAdvanced(0, 6))
    job.tick(60)
    save = cut(job, 6)
    assert len(job.of(c.TakeSnapshot)) == 6
    job.tick(90)
    job.put(e.SnapshotFailed(0, save.snapshot, "cannot write, tried for 90 s"))
    job.put(e.VersionAdvanced(0, 7))
    assert ordered(job, 60)


def in_a_store(**flags: Any) -> Bench:
    """A job whose processes share no directory."""
    return begun(image_name="zoo:1", checkpoint_dir="s3://bucket/job", **flags)


def test_old_checkpoints_of_a_store_are_removed_after_the_new_one_is_announced() -> None:
    job = in_a_store()
    save = cut(job, 1)
    assert save.keeps
    commands = saved(job, save)
    (prune,) = job.of(c.PruneCheckpoints, commands)
    assert prune == c.PruneCheckpoints(1) and job.said("checkpoint of version 1 saved")
    assert commands.index(c.DropSnapshot(save.snapshot, saved=True)) < commands.index(prune)


def test_a_job_without_a_place_takes_none() -> None:
    job = begun(image_name="zoo:1")
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
    lasted_s: float, flags: dict[str, Any], last: bool
) -> None:
    job = Bench.running(stall_seconds=0, **flags)
    job.tick(lasted_s)
    job.put(e.VersionAdvanced(0, 4))
    while job.of(c.TakeSnapshot)[len(job.of(c.SaveSnapshot)) :]:
        saved(job, cut(job, 4))
    job.train_all()
    assert (job.state.status().phase == "checkpointing") == last


def test_a_resumed_job_ends_with_a_checkpoint_however_short_it_is() -> None:
    job = Bench()
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


def test_uploads_that_take_longer_than_the_interval_do_not_follow_at_once() -> None:
    job = in_a_store(checkpoint_seconds=60)
    saved(job, cut(job, 1))
    job.put(e.VersionAdvanced(0, 6))
    assert ordered(job, 60)
    save = cut(job, 6)
    job.tick(90)
    job.put(e.SnapshotSaved(0, save.snapshot, 6, "version-6", 9, paused_s=90))
    job.put(e.VersionAdvanced(0, 7))
    assert ordered(job, 30)
