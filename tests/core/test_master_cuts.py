"""What is under way when something else happens: cuts and saves, rounds and revocations."""

from __future__ import annotations

import json

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.job_status import UpdateCounts
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def cut(job: Bench, version: int) -> c.SaveSnapshot:
    """Answer the last cut that was ordered."""
    snapshot = job.of(c.TakeSnapshot)[-1].snapshot
    (save,) = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, snapshot, version, {})))
    return save


def saved(job: Bench, save: c.SaveSnapshot) -> list[c.Command]:
    return job.put(e.SnapshotSaved(0, save.snapshot, save.version, f"version-{save.version}", 1000))


@pytest.mark.parametrize("at_the_end", ["cutting", "saving"])
def test_a_checkpoint_that_is_under_way_at_the_end_of_the_work_is_not_taken_for_the_last(
    at_the_end: str,
) -> None:
    """It has the weights of before: the last steps would be missing from it."""
    job = Bench.running(checkpoint_steps=10)
    lease = job.lease()
    job.progress(0, lease, 8, version=10)
    assert len(job.of(c.TakeSnapshot)) == 1
    save = cut(job, 10) if at_the_end == "saving" else None
    job.finish(0, lease, version=11)
    job.train_all()
    assert job.state.status().phase == "checkpointing"
    save = save or cut(job, 10)
    job.tick(0.1)
    assert len(job.of(c.TakeSnapshot)) == 1, "one at a time"
    saved(job, save)
    assert job.state.status().phase == "checkpointing" and len(job.of(c.TakeSnapshot)) == 2
    saved(job, cut(job, 14))
    assert job.state.status().phase == "ending"
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [10, 14]


def test_a_cut_that_came_later_than_its_step_is_what_the_next_one_is_counted_from() -> None:
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    save = cut(job, 21)
    saved(job, save)
    assert not job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 22)))
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 30)))


def test_a_cut_of_an_older_version_than_reported_crosses_no_version_twice() -> None:
    """Workers tell of a version that not every server has come to when the cut is made."""
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 20))
    saved(job, cut(job, 19))
    assert not job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 21)))
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 30)))


@pytest.mark.parametrize(("keep", "listed"), [(0, [10, 20, 30]), (2, [20, 30])])
def test_as_many_checkpoints_are_listed_as_are_kept_and_all_where_none_is_removed(
    keep: int, listed: list[int]
) -> None:
    job = Bench.running(checkpoint_steps=10, keep_checkpoint_max=keep)
    for version in (10, 20, 30):
        job.put(e.VersionAdvanced(0, version))
        saved(job, cut(job, version))
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == listed


def test_the_view_of_a_save_that_failed_is_let_go() -> None:
    """Servers have few places for views, and each costs the memory of the rows that change."""
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    save = cut(job, 10)
    assert c.DropSnapshot(save.snapshot) in job.put(
        e.SnapshotFailed(0, save.snapshot, "no space left on device")
    )


def test_a_second_cut_does_not_drop_the_view_that_is_being_saved() -> None:
    """A ring that lost a member at a barrier forms anew there, and makes its copy again."""
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    save = cut(job, 10)
    again = job.put(e.SnapshotCut(0, save.snapshot, 10, {}))
    assert not job.of(c.DropSnapshot, again)
    assert c.DropSnapshot(save.snapshot, saved=True) in saved(job, save)


def test_a_save_that_takes_too_long_is_given_up_and_still_counts_when_it_comes() -> None:
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    save = cut(job, 10)
    job.tick(1900.0)
    assert job.said("writing it took more than 1800 s")
    saved(job, save)
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [10]


@pytest.mark.parametrize("overtaken", [False, True])
def test_the_newest_checkpoint_has_the_ledger_that_a_ring_goes_back_to_however_late_it_came(
    overtaken: bool,
) -> None:
    """Else the records that are in its weights would be trained again, and nobody would know."""
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    slow = cut(job, 10)
    job.tick(1900.0)
    job.tick(10.0)
    newest = slow
    if overtaken:
        newest = cut(job, 20)
        saved(job, newest)
    saved(job, slow)
    found = job.state._checkpointing.complete.saved
    assert [one.version for one in found] == ([10, 20] if overtaken else [10])
    assert found[-1].ledger == newest.ledger and not any(one.ledger for one in found[:-1])


def test_pushes_acknowledged_before_a_servers_death_is_known_are_among_the_lost_ones() -> None:
    job = Bench.running()
    lease = job.lease()
    job.pushed(0, 5, {job.ps(0): 0})
    job.die(job.ps(0))
    job.progress(0, lease, 8, pushes=12)
    job.attach(job.ps(0, 1))
    assert job.updates.lost == 12


def test_what_was_acknowledged_is_lost_although_it_is_reported_after_the_servers_return() -> None:
    job = Bench.running()
    lease = job.lease()
    job.pushed(0, 5, {job.ps(0): 0})
    job.die(job.ps(0))
    job.attach(job.ps(0, 1))
    assert (job.updates.lost, job.updates.applied) == (5, 0)
    job.progress(0, lease, 8, pushes=12)
    assert (job.updates.lost, job.updates.applied) == (12, 0)
    # The next report says that the last of these were on the new server already.
    job.pushed(0, 16, {job.ps(0, 1): 13})
    job.pushed(0, 20)
    assert (job.updates.lost, job.updates.applied) == (13, 7)


def test_a_server_that_kept_its_memory_loses_nothing_whatever_is_reported_later() -> None:
    job = Bench.running()
    job.put(e.VersionAdvanced(0, 5))
    job.pushed(0, 5, {job.ps(0): 0})
    job.die(job.ps(0))
    job.put(e.ProcessAttached(0, job.ps(0, 1), "c", "at-ps-0.1", 12, kept=True))
    assert job.said(
        "has the memory of the process before, of version 12: no update of its part was lost"
    )
    job.pushed(0, 14, {job.ps(0, 1): 12})
    assert job.updates == UpdateCounts(14, 0, 0, at_least=False)


def test_pushes_that_only_a_fence_tells_of_are_lost_at_least() -> None:
    """The servers have 9 pushes of a lost worker; nobody knows before which it met the new one."""
    job = Bench.running()
    job.pushed(0, 5, {job.ps(0): 0})
    job.die(job.ps(0))
    job.attach(job.ps(0, 1))
    job.put(e.WorkerFenced(0, job.worker(0), (None,), (9,)))
    assert job.updates == UpdateCounts(4, 5, 0, at_least=True)


def test_a_step_that_ends_after_a_server_was_replaced_is_lost_on_it() -> None:
    job = Bench.running(sync=True)
    for number in (1, 2):
        job.put(e.StepApplied(0, number, complete=True, servers=(job.ps(0),)))
    job.put(e.StepApplied(0, 3, complete=False, servers=(job.ps(0),)))
    job.die(job.ps(0))
    job.attach(job.ps(0, 1))
    assert job.updates == UpdateCounts(0, 2, 0, at_least=False)
    job.put(e.StepApplied(0, 4, complete=True, servers=(job.ps(0),)))
    job.put(e.StepApplied(0, 5, complete=True, servers=(job.ps(0, 1),)))
    assert job.updates == UpdateCounts(1, 3, 0, at_least=False)
    # Told once more by a master that took over.
    job.put(e.StepApplied(0, 5, complete=True, servers=(job.ps(0, 1),)))
    assert job.updates == UpdateCounts(1, 3, 0, at_least=False)


def test_validation_shards_of_a_worker_whose_leases_are_voided_go_to_others_at_once() -> None:
    job = Bench.running(2, num_workers=2, validation_data="v", evaluation_steps=1, num_epochs=9)
    held = job.lease(0)
    job.progress(0, held, 8, version=1)
    job.cut(1)
    mine = job.lease(0)
    assert mine.task is Task.EVALUATION
    job.put(e.WorkerStopRequested(0, job.worker(0), "it is good enough"))
    again = job.lease(1)
    assert (again.task, again.shard, again.attempt) == (
        Task.EVALUATION,
        mine.shard,
        mine.attempt + 1,
    )


def test_a_crash_in_a_validation_shard_is_not_blamed_on_the_training_shard_that_waits() -> None:
    job = Bench.running(2, num_workers=2, validation_data="v", evaluation_steps=1, max_relaunches=0)
    for attempt in range(3):
        worker = 0 if attempt == 0 else attempt + 1
        held = job.lease(worker)
        if attempt == 0:
            job.progress(0, held, 8, version=1)
            job.cut(1)
        mine = job.lease(worker) if held.task is Task.TRAINING else held
        assert mine.task is Task.EVALUATION
        if held is mine and attempt < 2:
            job.lease(worker)
        job.die(job.worker(worker), ExitStatus(signal=11))
        job.fenced(worker, None)
        job.attach(job.worker(attempt + 2))
    (story,) = job.state.status().parked
    assert story.startswith("evaluation shard")
    assert not any(piece.failures for piece in present(job.state._context.work).returned)


@pytest.mark.parametrize(("offset", "trained", "bad"), [(8, 7, 1), (16, 13, 3)])
def test_bad_records_that_no_worker_reported_as_done_are_not_trained_ones_in_a_cut(
    offset: int, trained: int, bad: int
) -> None:
    """Two of the second batch are bad: its worker reported that before any server had it."""
    job = Bench.running(checkpoint_steps=1, max_bad_records=9)
    lease = job.lease()
    job.progress(0, lease, 8, version=1, bad_records=1)
    job.progress(0, lease, 8, version=1, bad_records=3, ahead=True)
    assert (job.total["trained"], job.total["bad"]) == (7, 1)
    snapshot = job.of(c.TakeSnapshot)[-1].snapshot
    applied = {"worker-0": Applied(present(lease.shard).id, lease.attempt, offset)}
    (save,) = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, snapshot, 2, applied)))
    (count,) = json.loads(save.ledger)["counts"]
    assert (count["trained"], count["bad"]) == (trained, bad)
    job.progress(0, lease, 16, version=2, bad_records=3)
    assert (job.total["trained"], job.total["bad"]) == (13, 3)
