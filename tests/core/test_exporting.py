"""Exports while the job trains: one at a time, of one frozen view, whatever happens to the worker,
the server or the master; and the last one at the end.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.errors import ExitCode
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.state import JobState
from elasticdl.shard import Lease, ReceivedLease, SnapshotId, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def training(started: int = 0, **flags: Any) -> Bench:
    """Two workers train; the first view of an export is cut at version 6."""
    defaults: dict[str, Any] = {"num_workers": 2, "num_epochs": 9, "checkpoint_seconds": 0}
    job = Bench(**defaults | {"output": "o", "export_seconds": 10} | flags)
    job.up(2, exported=started)
    return job


def view(job: Bench, version: int = 5) -> SnapshotId:
    """Let an export be due, and the servers freeze its view."""
    job.put(e.VersionAdvanced(0, version))
    job.tick(11)
    take = job.of(c.TakeSnapshot)[-1]
    assert take.purpose is c.Purpose.EXPORT
    snapshot: SnapshotId = take.snapshot
    job.put(e.SnapshotCut(0, snapshot, version + 1, {}))
    return snapshot


def open_export(job: Bench, index: int = 0) -> Lease:
    """Let a worker have the export that is due."""
    view(job)
    lease = job.lease(index)
    assert lease.task is Task.EXPORT
    return lease


def exported(job: Bench, index: int, lease: Lease, problem: str = "") -> list[c.Command]:
    return job.put(e.ExportFinished(0, Bench.worker(index), f"o/{lease.round}", problem))


def dropped(job: Bench) -> list[SnapshotId]:
    return [one.snapshot for one in job.of(c.DropSnapshot)]


def test_an_export_is_due_by_seconds_and_only_if_something_was_learned() -> None:
    job = training()
    assert job.of(c.TakeSnapshot, job.tick(11)) == []
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 5)))
    assert job.of(c.TakeSnapshot, job.tick(11)) == []


def test_one_worker_exports_a_frozen_view_and_gets_nothing_else_meanwhile() -> None:
    job = training()
    snapshot = view(job)
    lease = job.lease(0)
    assert (lease.task, lease.round, lease.snapshot, lease.version) == (Task.EXPORT, 1, snapshot, 6)
    assert job.refused(0) == "worker-0 makes an export"
    assert job.lease(1).task is Task.TRAINING
    exported(job, 0, lease)
    assert job.said("exported: o/1") and dropped(job) == [snapshot]
    assert job.lease(0).task is Task.TRAINING


def test_no_synchronous_step_waits_for_a_worker_that_exports() -> None:
    job = training(sync=True)
    lease = open_export(job)
    assert job.state.step_outlook().ready == {Bench.worker(1)}
    exported(job, 0, lease)
    assert job.state.step_outlook().ready == {Bench.worker(0), Bench.worker(1)}


def test_the_next_interval_begins_when_an_export_is_over() -> None:
    job = training()
    lease = open_export(job)
    job.t += 30
    exported(job, 0, lease)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 99))) == []
    assert job.of(c.TakeSnapshot, job.tick(11))


def test_numbers_follow_those_of_earlier_jobs_and_each_view_has_its_own() -> None:
    job = training(started=41)
    assert open_export(job).round == 42
    job.die(Bench.ps(0))
    job.attach(Bench.ps(0, 1), restored=0)
    job.t += 5
    assert open_export(job, 1).round == 43


def test_another_worker_makes_the_export_of_a_killed_one_at_the_same_number() -> None:
    job = training()
    first = open_export(job)
    job.die(Bench.worker(0))
    second = job.lease(1)
    assert (second.round, second.snapshot) == (first.round, first.snapshot)
    assert second.attempt == first.attempt + 1


def test_a_worker_that_was_given_up_does_not_close_the_next_export() -> None:
    job = training()
    first = open_export(job)
    exported(job, 0, first)
    second = open_export(job)
    exported(job, 0, first)
    assert job.refused(0) == "worker-0 makes an export"
    exported(job, 0, second)
    assert job.said("exported: o/2")


def test_an_export_whose_view_is_lost_is_revoked_and_tried_again() -> None:
    job = training()
    open_export(job)
    job.die(Bench.ps(0))
    assert job.of(c.RevokeLeases)[-1].worker == Bench.worker(0)
    assert job.said("export failed: the frozen view was lost with ps-0; retrying in 5 s")
    job.attach(Bench.ps(0, 1), restored=0)
    job.put(e.VersionAdvanced(0, 7))
    assert job.of(c.TakeSnapshot, job.tick(6))


def test_a_cut_that_fails_is_tried_again() -> None:
    job = training()
    job.put(e.VersionAdvanced(0, 5))
    job.tick(11)
    job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, "ps-0: away"))
    assert job.of(c.TakeSnapshot, job.tick(1)) == []
    assert job.of(c.TakeSnapshot, job.tick(5))


def test_a_place_that_cannot_be_written_costs_that_export_and_is_reported_once() -> None:
    job = training()
    for number in (1, 2):
        lease = open_export(job)
        assert lease.round == number
        exported(job, 0, lease, "disk full")
    said = [one for one in job.of(c.Announce) if "disk full" in one.text]
    assert [one.level for one in said] == ["warning"]
    assert job.state.status().phase == "working"


def test_an_export_that_keeps_failing_is_given_up_but_not_the_job() -> None:
    job = training()
    lease = open_export(job)
    for attempt in range(3):
        name = Bench.worker(0 if not attempt else attempt + 1)
        job.put(e.TaskFailed(0, name, Task.EXPORT, None, lease.attempt, "no such layer"))
        job.die(name, ExitStatus(exit_code=64))
        if attempt < 2:
            job.attach(Bench.worker(attempt + 2))
            lease = job.lease(attempt + 2)
            assert (lease.task, lease.attempt) == (Task.EXPORT, attempt + 1)
    assert job.said("the export failed 3 times") and job.said("the next export is tried in 20 s")
    assert job.state.status().phase == "working" and job.finished is None
    taken = len(job.of(c.TakeSnapshot))
    job.tick(11)
    assert len(job.of(c.TakeSnapshot)) == taken
    job.tick(11)
    assert job.of(c.TakeSnapshot)[taken].purpose is c.Purpose.EXPORT


def test_training_ends_after_the_export_that_a_worker_makes() -> None:
    job = training(num_epochs=1)
    lease = open_export(job)
    while job.state.status().records.left:
        job.finish(1, job.lease(1))
    assert job.state.status().phase == "working"
    exported(job, 0, lease)
    assert job.state.status().phase == "exporting"
    last = job.lease(1)
    assert (last.task, last.round, last.snapshot) == (Task.EXPORT, 2, None)
    exported(job, 1, last)
    assert job.state.status().phase == "ending"


def test_an_export_that_nobody_has_does_not_delay_the_end_of_training() -> None:
    job = training(num_epochs=1)
    leases = [job.lease(0), job.lease(1)]
    while job.state.status().records.left > sum(present(lease.shard).records for lease in leases):
        job.finish(0, leases[0])
        leases[0] = job.lease(0)
    snapshot = view(job)
    for index, lease in enumerate(leases):
        job.finish(index, lease)
    assert job.state.status().phase == "exporting" and dropped(job) == [snapshot]


def test_a_stopped_job_gives_its_export_up() -> None:
    job = training()
    lease = open_export(job)
    job.put(e.StopRequested(0, "Ctrl-C"))
    assert dropped(job) == [lease.snapshot]
    exported(job, 0, lease)
    assert not job.said("exported:")


def test_a_master_that_takes_over_keeps_the_view_and_takes_a_lost_lease_back() -> None:
    job = training()
    lease = open_export(job)
    job.put(e.MasterTookOver(0, 2, 1.0))
    assert present(lease.snapshot) in job.of(c.KeepSnapshots)[-1].snapshots
    received = (ReceivedLease.of(lease),)
    job.put(e.ProcessReturned(0, Bench.worker(0), received))
    assert job.refused(0) == "worker-0 makes an export"
    job.put(e.MasterTookOver(0, 3, 1.0))
    job.put(e.ProcessReturned(0, Bench.worker(0), ()))
    again = job.lease(1)
    assert (again.task, again.round, again.attempt) == (Task.EXPORT, lease.round, 1)


def test_a_cut_that_was_ordered_by_an_earlier_master_is_ordered_again() -> None:
    job = training()
    job.put(e.VersionAdvanced(0, 5))
    job.tick(11)
    job.put(e.MasterTookOver(0, 2, 1.0))
    take = job.of(c.TakeSnapshot)[-1]
    assert take.purpose is c.Purpose.EXPORT
    job.put(e.SnapshotCut(0, take.snapshot, 6, {}))
    assert job.lease(0).snapshot == take.snapshot


def test_an_image_of_the_state_has_the_open_export() -> None:
    job = training()
    lease = open_export(job)
    image = job.state.image(job.spec)
    started = present(job.state.started)
    job.state = JobState.from_image(job.spec, job.state._context.limits, started, image)
    assert job.refused(0) == "worker-0 makes an export"
    exported(job, 0, lease)
    assert job.said("exported: o/1")


def test_a_failed_last_export_fails_the_job() -> None:
    job = Bench.running(output="o", num_epochs=1)
    job.train_all()
    assert job.lease(0).round is None
    for index in range(3):
        job.put(e.TaskFailed(0, Bench.worker(index), Task.EXPORT, None, index, "no such layer"))
        job.die(Bench.worker(index), ExitStatus(exit_code=64))
        job.attach(Bench.worker(index + 1))
        if index < 2:
            job.lease(index + 1)
    assert job.said("the export failed 3 times")
    assert present(job.state._context.outcome).exit_code is ExitCode.JOB_FAILED


def test_the_last_export_may_have_a_higher_number_than_its_own() -> None:
    """Another job has the number. A late report of an earlier export has a lower one."""
    job = training(num_epochs=1)
    job.train_all()
    last = job.lease(0)
    assert (last.task, last.round) == (Task.EXPORT, 1)
    job.put(e.ExportFinished(0, Bench.worker(0), "o/0", ""))
    assert job.state.status().phase == "exporting"
    job.put(e.ExportFinished(0, Bench.worker(0), "o/7", ""))
    assert job.said("exported: o/7") and job.state.status().phase == "ending"


def test_a_job_without_training_exports_nothing() -> None:
    job = Bench.running(action=Action.PREDICT)
    job.put(e.VersionAdvanced(0, 5))
    assert job.of(c.TakeSnapshot, job.tick(1000)) == []
