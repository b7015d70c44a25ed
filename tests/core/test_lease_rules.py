"""Parts of the rules of leases, each by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elasticdl.dropped import DropCause
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.pieces import Blame, Stage
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.shard import Applied, ShardId, Task
from tests.core.conftest import Bench, worker
from tests.present import present

pytestmark = pytest.mark.core


def parts_of(job: Bench, index: int = 0) -> tuple[Leasing, Process]:
    parts: Any = job.state._parts
    return parts.leasing, present(parts.context.worker(worker(index)))


# a lease for a worker whose ring hangs


def test_a_worker_whose_ring_hangs_gets_two_leases_for_itself() -> None:
    job = Bench.running(
        2, action=Action.EVALUATE, num_workers=2, minibatch_size=4, records_per_task=4
    )
    (leasing, process), orders = parts_of(job), job.state._parts.context.orders
    process.revoked, process.busy_since_s = True, 1.0
    assert leasing.apart(e.LeaseRequested(7.0, worker(0)))
    assert [type(one) for one in orders.take()] == [c.GrantLease]
    assert (process.revoked, process.busy_since_s) == (False, 7.0)
    assert leasing.apart(e.LeaseRequested(9.0, worker(0)))
    assert process.busy_since_s == 7.0, "it is still at the first one"
    assert leasing.leases_of(worker(0)) == 2
    assert not leasing.apart(e.LeaseRequested(10.0, worker(0))), "it has two"
    assert not leasing.apart(e.LeaseRequested(10.0, worker(5))), "nobody knows it"
    assert [type(one) for one in orders.take()] == [c.GrantLease]


def test_a_worker_whose_ring_hangs_gets_no_shard_of_training() -> None:
    job = Bench.running()
    leasing, process = parts_of(job)
    process.revoked = True
    assert not leasing.apart(e.LeaseRequested(7.0, worker(0)))
    assert process.revoked and leasing.leases_of(worker(0)) == 0


# a slow worker


def test_a_slow_worker_is_told_so_while_there_is_something_to_lease() -> None:
    job = Bench.running()
    leasing, process = parts_of(job)
    assert leasing._slow_reason(process) == ""
    process.slow_times = 4.0
    reason = "worker-0 is slow: the others finish what is left sooner without it"
    assert leasing._slow_reason(process) == reason


def test_a_slow_worker_is_told_so_before_the_last_epoch_is_opened() -> None:
    job = Bench.running(2, num_workers=2, num_epochs=2)
    for index in (0, 0, 1, 1):
        job.lease(index)
    leasing, process = parts_of(job)
    process.slow_times = 4.0
    work = present(job.state._parts.context.work)
    assert (work.available, work.epochs_left) == (0, 1)
    assert "is slow" in leasing._slow_reason(process)


def test_a_slow_worker_hears_nothing_of_it_where_nothing_is_left() -> None:
    job = Bench.running(2, num_workers=2)
    for index in (0, 0, 1, 1):
        job.lease(index)
    leasing, process = parts_of(job)
    process.slow_times = 4.0
    assert leasing._slow_reason(process) == ""
    evaluating = Bench.running(action=Action.EVALUATE)
    leasing, process = parts_of(evaluating)
    process.slow_times = 4.0
    assert leasing._slow_reason(process) == ""


# progress


def test_new_records_are_booked_by_who_did_them() -> None:
    job = Bench.running(2, num_workers=2)
    (leasing, process), (_, other) = parts_of(job), parts_of(job, 1)
    seen: list[Any] = []
    parts: Any = job.state._parts
    parts.leasing.paces = SimpleNamespace(saw=lambda *one: seen.append(one))
    parts.context.budgets = SimpleNamespace(progressed=lambda: seen.append("progressed"))
    process.busy_since_s = 2.0
    applied = Applied(ShardId(1), 0, 8)
    report = e.ProgressReported(5.0, worker(0), Task.TRAINING, applied)
    leasing.gained(report, process, 8, (worker(0),))
    assert seen == [(worker(0), Task.TRAINING, 3.0, 8), "progressed"]
    assert process.busy_since_s == 5.0
    assert process.works and not other.works
    report = replace(report, at_s=9.0)
    leasing.gained(report, process, 8, (worker(0), worker(1), worker(5)))
    assert seen[2:] == [(None, Task.TRAINING, 4.0, 8), "progressed"], "nobody did it alone"
    assert (process.busy_since_s, other.works) == (9.0, True)
    told = [one.process for one in parts.context.orders.take() if "first progress" in one.text]
    assert told == ["worker-0", "worker-1"], "once each"


# failures


def failed(job: Bench, index: int = 0, task: Task | None = Task.TRAINING, **more: Any) -> Any:
    """A failure of user code, in shard 1 unless `task` is None; the job's parts after it."""
    shard = ShardId(1) if task is Task.TRAINING else None
    job.put(e.TaskFailed(0, worker(index), task, shard, 0, "ValueError: no", **more))
    return job.state._parts


def test_a_worker_whose_code_failed_is_about_to_end() -> None:
    job = Bench.running()
    job.tick(10.0)
    parts = failed(job, task=None)
    _, process = parts_of(job)
    assert process.failure_reported
    assert (process.life, process.deadline_s) == (Life.STOPPING, 70.0)
    assert parts.context.budgets.user_errors == 1 and job.state.status().exit_code is None
    (told,) = [one for one in job.of(c.Announce) if one.kind == "task"]
    assert (told.text, told.cause, told.level) == (
        "worker-0: ValueError: no",
        "user_error",
        "error",
    )


def test_a_failure_of_a_worker_that_leaves_does_not_give_it_more_time() -> None:
    job = Bench.running(2, num_workers="1:2")
    job.put(e.ScaleRequested(0, 1, 1))
    _, leaving = parts_of(job, 1)
    assert leaving.life is Life.STOPPING
    deadline_s = leaving.deadline_s
    job.tick(5.0)
    failed(job, 1, None)
    assert leaving.failure_reported and leaving.deadline_s == deadline_s


def test_a_failure_of_nobody_is_dropped() -> None:
    job = Bench.running(max_relaunches=0)
    parts = failed(job, 7, None)
    assert parts.context.dropped == {DropCause.ENDED_PROCESS: 1}
    assert not [one for one in job.of(c.Announce) if one.kind == "task"]
    assert job.state.status().exit_code is None


def test_a_failure_that_ends_the_job_counts_against_nothing_else() -> None:
    job = Bench.running(max_relaunches=0)
    parts = failed(job, task=None, fatal=True)
    assert (parts.context.outcome.message, parts.context.budgets.user_errors) == (
        "ValueError: no",
        0,
    )
    job = Bench.running(max_relaunches=0)
    parts = failed(job, task=None)
    assert "--max-relaunches 0" in parts.context.outcome.message
    assert "fix the model module" in parts.context.outcome.hint


def test_a_failure_in_a_shard_counts_against_the_shard_alone() -> None:
    job = Bench.running(max_relaunches=0, max_failed_shards=1)
    lease = job.lease()
    shard = present(lease.shard).id
    job.put(e.TaskFailed(0, worker(0), Task.TRAINING, shard, 0, "ValueError: no"))
    parts: Any = job.state._parts
    assert parts.context.budgets.user_errors == 0
    assert parts.leasing._reconciliation.open[worker(0)].blame == Blame(
        "worker-0: ValueError: no", shard
    )


def test_a_shard_that_ends_short_too_often_is_given_up() -> None:
    job = Bench.running(max_failed_shards=1)
    for attempt in range(3):
        assert not job.state._parts.context.given_up
        lease = job.lease()
        assert lease.attempt == attempt
        job.progress(0, lease, 8 + attempt, done=True)
    assert len(job.state._parts.context.given_up) == 1


# workers that are gone


def gone(job: Bench, blame: Blame | None, index: int = 0) -> tuple[bool, list[Any], list[Any]]:
    """Whether it is counted; stages of what it holds afterwards; commands."""
    parts: Any = job.state._parts
    counted = parts.leasing._reconciliation.lost(parts.context.worker(worker(index)), blame)
    work = parts.context.work
    stages = [one.stage for one in work.held_by(worker(index))] if work else []
    given = [one for one in parts.context.orders.take() if not isinstance(one, c.Announce)]
    return counted, stages, given


BLAME = Blame("it ended", None)
FENCE = c.FenceWorker(worker(0))


def test_what_a_lost_worker_trained_is_asked_of_the_servers() -> None:
    for blame in (BLAME, None):
        job = Bench.running()
        job.lease()
        assert gone(job, blame) == (blame is not None, [Stage.SETTLING], [FENCE])
    job = Bench.running()
    assert gone(job, BLAME) == (False, [], [FENCE]), "a push may be on its way"
    job = Bench.running()
    parts_of(job)[1].finished = True
    assert gone(job, BLAME) == (False, [], [])


def test_what_a_lost_worker_predicted_is_taken_back_at_once() -> None:
    for blame in (BLAME, None):
        job = Bench.running(action=Action.PREDICT)
        lease = job.lease()
        assert gone(job, blame) == (blame is not None, [], [])
        work = present(job.state._parts.context.work)
        assert present(lease.shard).id in [one.shard.id for one in work.returned]
    job = Bench.running(action=Action.PREDICT)
    assert gone(job, BLAME) == (False, [], []), "it held nothing"


def test_what_a_leaving_worker_did_not_predict_is_leased_again_at_once() -> None:
    job = Bench.running(2, action=Action.PREDICT, num_workers=2)
    lease = job.lease()
    job.put(e.LeaseReturned(0, worker(0), Applied(present(lease.shard).id, 0, 8)))
    again = job.lease(1)
    assert (again.shard, again.attempt, again.offset) == (lease.shard, 1, 8)


def test_one_end_blames_one_piece_of_work() -> None:
    def ended(*tasks: Task) -> tuple[bool, Blame | None]:
        job = Bench.running(2, validation_data="v", evaluation_steps=10, num_workers=2)
        if Task.TRAINING in tasks:
            job.lease()
        if Task.EVALUATION in tasks:
            job.put(e.VersionAdvanced(0, 10))
            job.cut(11)
            assert job.lease().task is Task.EVALUATION
        leasing, process = parts_of(job)
        return leasing.lost(process, "it ended"), leasing._reconciliation.open[worker(0)].blame

    blame = Blame("it ended")
    assert ended() == (False, blame)
    assert ended(Task.TRAINING) == (True, blame)
    assert ended(Task.EVALUATION) == (True, None)
    assert ended(Task.TRAINING, Task.EVALUATION) == (True, None)


def test_a_cause_that_comes_later_is_counted_once() -> None:
    job = Bench.running(max_failed_shards=1)
    shard = present(job.lease().shard).id
    reconciliation = job.state._parts.leasing._reconciliation
    job.die(worker(0))
    pending = reconciliation.open[worker(0)]
    pending.blame = None
    for reason in ("hung", "silent"):
        reconciliation.blame(worker(0), Blame(reason, shard))
    assert pending.blame == Blame("hung", shard)
    job.fenced(0, None)
    for reason in ("first", "second"):
        reconciliation.blame(worker(0), Blame(reason, shard))
    assert [one.split(":")[0] for one in job.state._parts.context.given_up] == [
        f"training shard {shard} (a records 0 to 16) failed 3 times"
    ]


@pytest.mark.parametrize(("sync", "trained"), [(False, 8), (True, 0)])
def test_all_servers_have_the_batches_before_the_last_one_of_any_except_in_steps(
    sync: bool, trained: int
) -> None:
    """In steps a server has gradients that it has not applied."""
    job = Bench.running(num_ps_pods=2, sync=sync)
    shard = present(job.lease().shard).id
    job.die(worker(0))
    job.fenced(0, Applied(shard, 0, 16), None)
    assert (job.total["trained"], job.total["repeated"]) == (trained, 16 - trained)


def test_what_became_of_lost_workers_leases_is_reported_for_each_worker() -> None:
    job = Bench.running(num_ps_pods=2, records_per_task=32)
    told = []
    for index, reached in enumerate((8, 24)):
        lease = job.lease(index)
        shard = present(lease.shard).id
        job.die(worker(index))
        job.fenced(
            index,
            Applied(shard, lease.attempt, reached),
            Applied(shard, lease.attempt, reached - 4),
        )
        job.attach(worker(index + 1))
        told += [one for one in job.of(c.Announce) if one.kind == "shard"][index:]
    assert [(one.text, one.process) for one in told] == [
        ("reconciled 1 shard of worker-0: 4 more records confirmed, 4 to redo", "worker-0"),
        ("reconciled 1 shard of worker-1: 16 more records confirmed, 4 to redo", "worker-1"),
    ]
    assert told[1].details == {"shards": 1, "trained": 16, "repeated": 4}


def test_a_worker_that_failed_and_then_ended_is_asked_about_once_and_the_failure_counts() -> None:
    job = Bench.running()
    job.lease()
    assert gone(job, None)[2] == [FENCE]
    pending = job.state._parts.leasing._reconciliation.open[worker(0)]
    for blame in (BLAME, Blame("later", None), None):
        assert gone(job, blame)[2] == []
        assert pending.blame == BLAME


def test_who_never_attached_or_has_no_work_holds_nothing() -> None:
    job = Bench.running()
    job.lease()
    parts_of(job)[1].attached = False
    assert gone(job, BLAME) == (False, [Stage.LEASED], [])
    evaluating = Bench.running(action=Action.EVALUATE)
    assert gone(evaluating, BLAME) == (False, [], [])
