"""What a message that changes nothing leaves behind: a count by its cause, and an error where no
correct process sends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import WRONG, DropCause, drops_in
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.events import ProgressReported
from elasticdl.master.core.state import JobState
from elasticdl.master.gateway.sessions import Session
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.recovery import replay
from elasticdl.master.journal.rules import may_free_work, worth_keeping
from elasticdl.master.journal.writer import JournalFile
from elasticdl.shard import Applied, ShardId, SnapshotId, Task
from tests.core.conftest import Bench
from tests.core.ring_world import TRAIN, VALIDATION, RingWorld, make_spec
from tests.present import present

pytestmark = pytest.mark.core


def errors(job: Bench) -> list[str]:
    return [line.text for line in job.of(c.Announce) if line.details.get("dropped")]


def dropped(job: Bench) -> dict[str, int]:
    return job.state.status().dropped


@pytest.fixture
def job() -> Bench:
    """One worker in hand, another that has ended; the first shard is done."""
    made = Bench.running(
        2, num_workers=2, evaluation_steps=10, validation_data="v", checkpoint_steps=100
    )
    made.die(made.worker(1))
    made.done = made.lease(0)
    made.finish(0, made.done)
    made.held = made.lease(0)
    return made


def progress(
    worker: ProcessName,
    shard: int,
    attempt: int,
    offset: int,
    task: Task = Task.TRAINING,
    **more: Any,
) -> ProgressReported:
    return e.ProgressReported(0, worker, task, Applied(ShardId(shard), attempt, offset), **more)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (lambda job, one: progress(one, job.done.shard.id, 0, 8), DropCause.VOIDED_LEASE),
        (
            lambda job, one: e.LeaseReturned(0, one, Applied(job.done.shard.id, 0, 8)),
            DropCause.VOIDED_LEASE,
        ),
        (
            lambda job, one: e.TaskFailed(0, one, Task.TRAINING, job.done.shard.id, 0, "x"),
            DropCause.VOIDED_LEASE,
        ),
        (lambda job, one: progress(one, 0, 0, 8, Task.EVALUATION), DropCause.VOIDED_LEASE),
        (
            lambda job, one: progress(job.worker(1), job.held.shard.id, 0, 8),
            DropCause.ENDED_PROCESS,
        ),
        (
            lambda job, one: e.LeaseReturned(0, job.worker(1), Applied(job.held.shard.id, 0, 8)),
            DropCause.ENDED_PROCESS,
        ),
        (
            lambda job, one: e.TaskFailed(
                0, job.worker(1), Task.TRAINING, job.held.shard.id, 0, "x"
            ),
            DropCause.ENDED_PROCESS,
        ),
        (
            lambda job, one: e.WorkerStopRequested(0, job.worker(1), "enough"),
            DropCause.ENDED_PROCESS,
        ),
        (lambda job, one: e.StartWentOn(0, job.worker(1), "build"), DropCause.ENDED_PROCESS),
        (
            lambda job, one: e.ProcessAttached(0, job.worker(1), "c", "b", None),
            DropCause.ENDED_PROCESS,
        ),
        (lambda job, one: e.ExportFinished(0, one, "/model"), DropCause.LATE_EXPORT),
        (lambda job, one: e.SnapshotCut(0, SnapshotId(7), 3, {}), DropCause.LATE_SNAPSHOT),
        (lambda job, one: e.SnapshotFailed(0, SnapshotId(7), "no"), DropCause.LATE_SNAPSHOT),
        (lambda job, one: e.WorkerFenced(0, one, ()), DropCause.LATE_SETTLEMENT),
        (
            lambda job, one: e.MessagesDropped(0, one, DropCause.STALE_GENERATION, 1),
            DropCause.STALE_GENERATION,
        ),
        (lambda job, one: progress(one, 1000, 0, 8), DropCause.UNKNOWN_LEASE),
        (lambda job, one: progress(one, -1, 0, 8), DropCause.UNKNOWN_LEASE),
        (lambda job, one: progress(one, 1000, 0, 8, Task.EVALUATION), DropCause.UNKNOWN_LEASE),
        (lambda job, one: progress(one, job.held.shard.id, 1, 8), DropCause.UNKNOWN_LEASE),
        (lambda job, one: e.SummaryReported(0, one, 5, {}, False), DropCause.UNKNOWN_LEASE),
        (
            lambda job, one: progress(one, job.held.shard.id, 0, 8, Task.PREDICTION),
            DropCause.OTHER_TASK,
        ),
    ],
)
def test_each_is_counted_once_and_changes_nothing_else(
    job: Bench, message: Callable[..., Any], cause: DropCause
) -> None:
    before = job.state.receipt(), len(errors(job))
    job.put(message(job, job.worker(0)))
    assert dropped(job) == {cause: 1}
    assert job.state.receipt() == before[0]
    assert len(errors(job)) - before[1] == (cause in WRONG)


def test_more_records_than_a_shard_has_and_fewer_than_before_are_defects_that_are_said_once(
    job: Bench,
) -> None:
    for offset in (12, 8, 4, 17, 18):
        job.progress(0, job.held, offset)
    assert dropped(job) == {"backward": 2, "beyond_lease": 2}
    assert job.total["trained"] == 32, "no more is booked than the shard has"
    first, second = errors(job)
    assert (
        "worker-0 sent an impossible message (backward), which is a bug in ElasticDL" in first
        and "beyond_lease" in second
    )


def test_a_lease_of_another_worker_is_none_that_could_be_over() -> None:
    job = Bench.running(2, num_workers=2)
    lease = job.lease(0)
    job.progress(1, lease, 8)
    assert (dropped(job), job.total["trained"]) == ({"unknown_lease": 1}, 0)


def test_what_a_worker_tells_of_leases_that_went_to_another_is_no_defect() -> None:
    job = Bench.running(2, num_workers=2)
    lease = job.lease(0)
    job.put(
        e.LeaseReturned(
            0, job.worker(0), Applied(present(lease.shard).id, lease.attempt, 0), taken=False
        )
    )
    again = job.lease(1)
    assert (again.shard, again.attempt) == (lease.shard, lease.attempt + 1)
    job.progress(0, lease, 8)
    assert (dropped(job), errors(job)) == ({"voided_lease": 1}, [])


def test_a_summary_that_comes_too_late_is_counted() -> None:
    job = Bench.running(action=Action.EVALUATE)
    lease = job.lease()
    job.finish(0, lease, metrics={})
    assert job.lease().task is Task.SUMMARY
    for _ in range(2):
        job.put(e.SummaryReported(0, job.worker(0), 0, {"loss": 1.0}, False))
    assert dropped(job) == {"late_summary": 1}
    job.progress(0, lease, 8)
    assert dropped(job) == {"late_summary": 1, "voided_lease": 1}, (
        "there is no ledger any more that knew it"
    )
    assert not errors(job)


def ring_of_two() -> RingWorld:
    world = RingWorld(make_spec(num_workers=2, records_per_task=24, shuffle="none"))
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    while world.newest.version < 1:
        world.turn()
    return world


def test_what_a_ring_tells_again_is_counted_and_what_it_cannot_have_done_is_a_defect() -> None:
    world = ring_of_two()
    member, lease = world.ring.members[0], present(world.newest.last)[0]
    counted = dict(world.state.status().dropped)
    trained = world.state.receipt().total.trained

    def new(*events: e.Event) -> dict[str, int]:
        for event in events:
            world.put(event)
        now = world.state.status().dropped
        return {
            cause: count - counted.get(cause, 0)
            for cause, count in now.items()
            if count > counted.get(cause, 0)
        }

    assert new(progress(member, present(lease.shard).id, lease.attempt, 0)) == {
        "repeated_report": 1
    }
    assert (
        new(progress(member, present(lease.shard).id, lease.attempt + 1, 8))["unknown_lease"] == 1
    )
    assert new(progress(member, 1000, 0, 8))["unknown_lease"] == 2
    assert new(e.RingReported(0, member, True, 99, 0, False, ""))["unknown_generation"] == 1
    assert world.state.receipt().total.trained == trained
    assert new(progress(member, present(lease.shard).id, lease.attempt, 1000))["beyond_lease"] == 1


def test_the_journal_brings_the_counts_back(job: Bench, tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, Header("run", 1))
    spec, live = job.spec, JobState(job.spec)
    event = e.MessagesDropped(1.0, ProcessName(Role.WORKER, 0), DropCause.VOIDED_LEASE, 3)
    commands = live.handle(event)
    assert worth_keeping(event, commands) and not may_free_work(event)
    journal.append(event)
    journal.close()
    again = JobState(spec)
    for kept in replay(tmp_path):
        again.handle(kept)
    assert again.status().dropped == live.status().dropped == {"voided_lease": 3}


def test_counts_of_processes_are_added_as_the_difference_to_the_report_before() -> None:
    presence = Session("here")
    assert presence.reported(
        {"dropped_voided_lease": 2.0, "repeated_pushes": 1.0, "dropped_nonsense": 9.0}
    ) == {DropCause.VOIDED_LEASE: 2, DropCause.REPEATED_PUSH: 1}
    assert presence.reported({"dropped_voided_lease": 2.0, "repeated_pushes": 1.0}) == {}
    assert presence.reported({"dropped_voided_lease": 5.0, "repeated_pushes": 1.0}) == {
        DropCause.VOIDED_LEASE: 3
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_gauge_that_is_no_count_counts_nothing(value: float) -> None:
    assert drops_in({"dropped_voided_lease": value, "repeated_pushes": value}) == {}


def test_causes_are_one_kind_or_the_other() -> None:
    assert {cause.value for cause in WRONG} == {
        "unknown_lease",
        "other_task",
        "beyond_lease",
        "backward",
        "unknown_generation",
    }
