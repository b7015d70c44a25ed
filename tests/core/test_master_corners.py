"""Corners of leases, checkpoints and the end that nothing else comes to: each was found by a change
that no test noticed.
"""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.errors import ExitCode
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, Lease
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def at_the_end_without_its_server() -> Bench:
    """A job whose server went while its last shard was reported: its last checkpoint has to
    wait.
    """
    job = Bench.running(checkpoint_steps=100)
    for _ in range(3):
        job.finish(0, job.lease())
    last = job.lease()
    job.die(job.ps(0))
    job.finish(0, last)
    assert job.state.status().phase == "checkpointing"
    return job


def test_a_job_that_is_done_waits_for_servers_and_ends_with_its_last_checkpoint() -> None:
    """Only one that was stopped gives that up after a while."""
    job = at_the_end_without_its_server()
    for _ in range(4):
        job.tick(20)
    assert job.state.status().phase == "checkpointing"
    job.attach(job.ps(0, 1))
    job.tick(1)
    job.saved(job.cut(5), 5)
    assert job.of(c.WorkFinished)


def test_why_a_job_was_stopped_stands_beside_the_checkpoint_that_could_not_be_taken() -> None:
    job = at_the_end_without_its_server()
    job.put(e.StopRequested(0, "Ctrl-C"))
    job.die(job.worker(0), ExitStatus(exit_code=66, asked=True))
    for _ in range(6):
        job.tick(20)
    assert present(job.finished).exit_code == ExitCode.INTERRUPTED
    assert present(job.finished).message.startswith("stopped: Ctrl-C; the last checkpoint failed: ")


def test_tries_for_checkpoints_on_the_way_do_not_count_for_the_last_one() -> None:
    job = Bench.running(checkpoint_steps=10, stall_seconds=0)
    job.put(e.VersionAdvanced(0, 10))
    for _ in range(4):
        job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, "no room"))
        job.tick(100)
    job.train_all()
    for _ in range(4):
        job.tick(100)
        job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, "no room"))
        assert job.state.status().phase == "checkpointing"


def test_a_worker_that_is_still_draining_when_the_job_is_over_is_given_less_time() -> None:
    job = Bench.running(2, num_workers="1:2")
    (leaving,) = job.of(c.StopProcess, job.put(e.ScaleRequested(0, 1, 1)))
    assert leaving.grace_s > 5
    stays = 1 - leaving.name.index
    job.train_all(stays)
    again = [
        stop
        for stop in job.of(c.StopProcess)
        if stop.name == leaving.name and stop.reason == "the job is over"
    ]
    assert [stop.grace_s for stop in again] == [5.0]


def test_updates_lost_are_announced_from_the_newest_version_that_any_worker_told() -> None:
    """Reports of two workers may come in another order than their pushes, and while the server is
    away.
    """
    job = Bench.running(2, num_workers=2)
    first, second = job.lease(0), job.lease(1)
    job.die(job.ps(0))
    job.progress(0, first, 8, version=10)
    job.progress(1, second, 8, version=7)
    job.attach(job.ps(0, 1), restored=0)
    assert job.said("restored version 0 and lost at least 10 updates of its part")
    # Those ten are lost once, however often the server restores that version.
    job.die(job.ps(0, 1))
    job.attach(job.ps(0, 2), restored=0)
    assert job.said("ps-0.2 restored version 0: no update of its part was lost")


def test_workers_push_again_what_came_after_a_checkpoint_that_the_master_does_not_know() -> None:
    job = Bench.running(num_workers=1)
    job.progress(0, job.lease(), 8, version=10)
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=4)
    assert job.said("ps-0.1 restored version 4; workers push again what came after it")


def revoked() -> tuple[Bench, Lease]:
    """A worker whose view for an evaluation went with a server, while it trained on a shard,
    too.
    """
    job = Bench.running(validation_data="v", evaluation_steps=10, num_workers=1, num_epochs=2)
    trained = job.lease()
    job.put(e.VersionAdvanced(0, 10))
    job.cut(10)
    job.lease()
    assert job.of(c.RevokeLeases, job.die(job.ps(0)))
    job.attach(job.ps(0, 1))
    return job, trained


def test_a_worker_gets_no_new_lease_before_its_revoked_ones_are_back() -> None:
    """If it died with a push of a new lease, that would say that the revoked ones are trained."""
    job, _ = revoked()
    assert "its revoked shards are not back yet" in job.refused()


def test_leases_that_were_revoked_keep_no_new_ones_away_once_they_are_back() -> None:
    job, before = revoked()
    job.put(e.StateReported(0, job.worker(0), (), "", ""))
    granted = [job.lease() for _ in range(2)]
    assert len({(present(lease.shard).id, lease.attempt) for lease in (before, *granted)}) == 3
    assert "already has 2 leases" in job.refused()


def test_a_worker_whose_leases_were_revoked_once_may_drain_later() -> None:
    job, _ = revoked()
    job.put(e.StateReported(0, job.worker(0), (), "", ""))
    again = job.lease()
    job.put(e.LeaseReturned(0, job.worker(0), Applied(present(again.shard).id, again.attempt, 8)))
    assert job.said("worker-0 is draining: it returns its shards")


def test_an_export_that_makes_no_progress_goes_to_another_worker() -> None:
    job = Bench.running(2, output="out", num_workers=2)
    job.train_all()
    job.lease()
    for _ in range(18):
        job.tick(100)
    assert not [stop for stop in job.of(c.StopProcess) if stop.name == job.worker(0)]
    job.tick(100)
    assert "no progress for 1900 s" in next(
        stop.reason for stop in job.of(c.StopProcess) if stop.name == job.worker(0)
    )


def test_a_heartbeat_that_comes_after_the_end_does_not_take_the_last_version_back() -> None:
    job = Bench.running()
    while job.state.status().phase == "working":
        job.finish(0, job.lease(), version=156)
    job.die(job.worker(0), ExitStatus(exit_code=0))
    job.put(e.VersionAdvanced(0, 69))
    job.die(job.ps(0), ExitStatus(exit_code=0, asked=True))
    assert job.end.exit_code == ExitCode.DONE
    assert job.state.status().version == 156
