"""What is left and for whom, who holds what, and why a worker gets nothing."""

from __future__ import annotations

import pytest

from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.rollback import restore_ledger
from elasticdl.master.core.job_context import Phase
from elasticdl.shard import Applied, ShardId, Task
from tests.core.conftest import Bench, ps, worker
from tests.present import present

pytestmark = pytest.mark.core

ONE = {"auc": ((1.0, 2.0), (0.5,))}


def leasing_of(job: Bench) -> Leasing:
    return job.state._parts.leasing


def paced(job: Bench, each_s: dict[int, float], task: Task = Task.TRAINING) -> Leasing:
    """Workers by index took so many seconds for a record, and can be judged."""
    leasing = leasing_of(job)
    for index, one in each_s.items():
        for _ in range(4):
            leasing.paces.saw(worker(index), task, 100 * one, 100)
    return leasing


def slow(job: Bench, index: int, times: float) -> None:
    present(job.state._parts.context.worker(worker(index))).slow_times = times


def open_round(job: Bench, version: int = 10) -> None:
    job.put(e.VersionAdvanced(0, version))
    job.cut(version + 1)


# what is left


def test_the_others_need_for_the_rest_what_their_usual_pace_says() -> None:
    job = Bench.running(4, num_workers=4)
    assert leasing_of(job).left_s(worker(0)) is None, "nobody has told"
    leasing = paced(job, {0: 9.0, 1: 0.5, 2: 1.5, 3: 7.0})
    slow(job, 3, 4.0)
    assert leasing.left_s(worker(0)) == pytest.approx(64 * 1.0 / 2)
    job.finish(0, job.lease(0))
    assert leasing.left_s(worker(0)) == pytest.approx(48 * 1.0 / 2)
    job.die(worker(2))
    assert leasing.left_s(worker(0)) == pytest.approx(48 * 0.5)
    job.die(worker(1))
    assert leasing.left_s(worker(0)) is None, "nobody else is healthy"


def test_a_round_counts_for_the_rest_only_when_training_is_over() -> None:
    job = Bench.running(2, validation_data="v", evaluation_steps=10, num_workers=2)
    open_round(job)
    leasing = paced(job, {1: 2.0}, Task.EVALUATION)
    assert leasing.left_s(worker(0)) is None
    paced(job, {1: 1.0})
    assert leasing.left_s(worker(0)) == pytest.approx(64 * 1.0)
    only = Bench.running(2, action=Action.EVALUATE, num_workers=2)
    leasing = paced(only, {1: 2.0}, Task.EVALUATION)
    assert leasing.left_s(worker(0)) == pytest.approx(16 * 2.0)


def test_nothing_is_left_before_and_between_rounds() -> None:
    job = Bench()
    assert leasing_of(job).left_s(worker(0)) is None
    job.up()
    paced(job, {0: 1.0})
    job.train_all()
    assert job.state.status().phase != "working"
    assert leasing_of(job).left_s(worker(1)) is None


@pytest.mark.parametrize(
    ("own_s", "times", "left", "last"),
    [
        (None, 0.0, 64, False),  # It is not slow.
        (None, 4.0, 64, False),  # 16 records take as long as the others' 64.
        (None, 4.1, 64, True),
        (4.1, 1.5, 64, True),
        (3.9, 9.0, 64, False),
        (None, 4.0, 48, True),
        (None, 1.1, 8, True),
    ],
)
def test_a_slow_worker_gets_no_shard_that_it_would_end_last(
    own_s: float | None, times: float, left: int, last: bool
) -> None:
    job = Bench.running(2, num_workers=2)
    for _ in range((64 - left) // 16):
        job.finish(1, job.lease(1))
    if left % 16:
        job.progress(1, job.lease(1), 8)
    leasing = paced(job, {1: 1.0} | ({} if own_s is None else {0: own_s}))
    slow(job, 0, times)
    work = present(job.state._parts.context.work)
    # The bench's own reports took no time.
    leasing.paces.usual = lambda task, workers: 1.0  # type: ignore[method-assign]
    assert (work.remaining, leasing._would_be_last(worker(0), work)) == (left, last)


def test_a_slow_worker_may_have_a_shard_while_nothing_is_known_of_others() -> None:
    job = Bench.running(2, num_workers=2)
    slow(job, 0, 4.0)
    work = present(job.state._parts.context.work)
    assert not leasing_of(job)._would_be_last(worker(0), work)
    assert not leasing_of(job)._would_be_last(worker(7), work), "nobody knows it"


def test_synchronous_steps_do_without_a_slow_worker_if_there_are_others() -> None:
    for number in (1, 2):
        job = Bench.running(
            number, num_workers=number, sync=True, validation_data="v", evaluation_steps=10
        )
        slow(job, 0, 4.0)
        open_round(job)
        parts = job.state._parts
        leasing, others = leasing_of(job), number > 1
        assert leasing._would_be_last(worker(0), present(parts.context.work)) == others
        # A step does not wait for evaluation.
        assert not leasing._would_be_last(worker(0), present(parts.evaluation.round).ledger)


def test_a_slow_worker_evaluates_nothing_that_others_end_sooner() -> None:
    job = Bench.running(2, validation_data="v", evaluation_steps=10, num_workers=2)
    open_round(job)
    paced(job, {1: 1.0}, Task.EVALUATION)
    slow(job, 0, 4.0)
    assert job.lease(0).task is Task.TRAINING
    assert job.lease(1).task is Task.EVALUATION


# who holds what


def test_leases_of_all_kinds_count_and_revoked_ones_do_not() -> None:
    job = Bench.running(
        2, validation_data="v", evaluation_steps=10, num_workers=2, records_per_task=8
    )
    leasing = leasing_of(job)
    assert (leasing.leases_of(worker(0)), leasing.idle_workers()) == (0, [worker(0), worker(1)])
    trained = job.lease()
    assert (leasing.leases_of(worker(0)), leasing.idle_workers()) == (1, [worker(1)])
    open_round(job)
    evaluated = job.lease()
    assert evaluated.task is Task.EVALUATION
    assert leasing.leases_of(worker(0)) == 2
    assert [held.piece.shard for _, held in leasing.leased_to(worker(0))] == [
        trained.shard,
        evaluated.shard,
    ]
    job.finish(1, job.lease(1), metrics=ONE)
    job.finish(0, evaluated, metrics=ONE)
    assert job.lease().task is Task.SUMMARY
    assert leasing.leases_of(worker(0)) == 2
    assert leasing.idle_workers() == [worker(1)]
    leasing.revocation.revoke(worker(0), "slow")
    assert leasing.leases_of(worker(0)) == 0
    assert leasing.leased_to(worker(0)) == []
    job.put(e.ProcessSilent(0, worker(1), 10.0))
    assert leasing.idle_workers() == [worker(0)]


def test_a_worker_holds_as_many_leases_more_as_a_step_has_gradients() -> None:
    job = Bench.running(3, num_workers=3, sync=True, grads_to_wait=3, records_per_task=8)
    assert job.spec.gradients_per_step == 3
    for _ in range(2 + 3):
        job.lease()
    assert "already has 5 leases" in job.refused()


# why there is none


def test_why_nothing_is_leased_while_records_are_counted_and_when_all_are_leased() -> None:
    job = Bench(num_workers=2, records_per_task=32, num_ps_pods=1)
    assert leasing_of(job).idle_reason() == "counting records"
    job.up(2)
    first = job.lease()
    job.lease(1)
    assert leasing_of(job).idle_reason() == "all shards are leased, 2 unfinished"
    job.die(worker(1))
    assert leasing_of(job).idle_reason() == (
        "all shards are leased, 2 unfinished (1 being reconciled)"
    )
    job.fenced(1, None)
    job.finish(0, first)
    job.finish(0, job.lease())
    assert leasing_of(job).idle_reason() == f"the job is {job.state.status().phase}"


def test_why_nothing_is_leased_during_a_round() -> None:
    job = Bench.running(
        2, validation_data="v", evaluation_steps=10, num_workers=2, records_per_task=64
    )
    assert leasing_of(job).idle_reason() == "the job is working"
    trained = job.lease()
    job.put(e.VersionAdvanced(0, 10))
    assert leasing_of(job).idle_reason() == "waiting for the frozen view of evaluation round 0"
    job.cut(11)
    evaluated = job.lease(1)
    assert leasing_of(job).idle_reason() == (
        "evaluation round 0 is computing metrics; all shards are assigned"
    )
    job.finish(1, evaluated, metrics=ONE)
    assert job.lease(1).task is Task.SUMMARY
    assert leasing_of(job).idle_reason() == (
        "evaluation round 0 is summarising; all shards are assigned"
    )
    job.put(e.SummaryReported(0, worker(1), 0, {"auc": 0.5}))
    open_round(job, 20)
    job.finish(0, job.lease(0), metrics=ONE)
    assert leasing_of(job).idle_reason() == (
        "worker-1 will summarise evaluation round 1: its callbacks have seen the earlier rounds"
    )
    job.put(e.SummaryReported(0, worker(1), 1, {"auc": 0.5}))
    assert trained.task is Task.TRAINING


# first progress


def test_the_first_progress_has_the_time_since_ready_and_since_the_lease() -> None:
    job = Bench()
    job.tick(1.0)
    job.up()
    job.tick(2.0)
    lease = job.lease()
    job.tick(4.0)
    (one,) = job.of(c.Announce, job.progress(0, lease, 8))
    assert one.text == "worker-0 made its first progress 6.0 s after it was ready"
    assert one.details["after_s"] == 6.0
    assert one.details["first_s"] == 4.0
    assert (one.process, one.level, one.kind) == ("worker-0", "detail", "process")


# what comes back


def test_a_validation_shard_that_never_reached_its_worker_is_leased_again() -> None:
    job = Bench.running(2, validation_data="v", evaluation_steps=10, num_workers=2, num_epochs=9)
    open_round(job)
    lease = job.lease()
    shard = present(lease.shard).id
    returned = e.LeaseReturned(0, worker(0), Applied(shard, lease.attempt, 0), taken=False)
    job.put(returned)
    context = job.state._parts.context
    assert not context.dropped
    again = job.lease(1)
    assert (again.shard, again.attempt) == (lease.shard, 1)
    job.put(returned)
    assert sum(context.dropped.values()) == 1, "it is not its lease any more"


def test_a_server_is_no_worker() -> None:
    job = Bench.running()
    assert job.of(c.RevokeLeases, job.put(e.LeaseRequested(0, ps(0))))


def test_nothing_is_kept_of_the_pace_of_a_worker_that_is_gone() -> None:
    job = Bench.running(2, num_workers=2)
    leasing = paced(job, {0: 1.0, 1: 1.0})
    job.die(worker(0))
    assert not leasing.paces.knows(worker(0), Task.TRAINING)
    assert leasing.paces.knows(worker(1), Task.TRAINING)


def test_only_training_under_way_ends_early_and_once() -> None:
    job = Bench()
    assert not leasing_of(job).stop_early("no data yet")
    job.up()
    assert leasing_of(job).stop_early("enough")
    assert job.state._parts.context.ended_early == "enough"
    assert not leasing_of(job).stop_early("again")
    predicting = Bench.running(action=Action.PREDICT)
    assert not leasing_of(predicting).stop_early("it is not training")


def test_no_shard_is_leased_while_a_stopped_job_ends() -> None:
    job = Bench.running(2, checkpoint_steps=100, num_workers=2)
    job.finish(0, job.lease())
    job.put(e.StopRequested(0, "Ctrl-C"))
    assert job.state.status().phase != "working"
    assert present(job.state._parts.context.work).available
    assert leasing_of(job)._work_lease(worker(1)) is None


def test_a_limit_is_five_minutes_where_a_model_may_have_to_be_compiled() -> None:
    job = Bench.running()
    leasing, process = leasing_of(job), present(job.state._parts.context.worker(worker(0)))
    assert leasing.limits.limit_s(process) is None, "it holds nothing"
    job.lease()
    assert leasing.limits.limit_s(process) == 300.0
    assert leasing.limits.limit_s(process, compiles=False) == 30.0


def test_a_worker_that_only_waits_for_others_in_a_step_has_no_limit() -> None:
    job = Bench.running(2, num_workers=2, sync=True, minibatch_size=16)
    job.lease(0)
    job.lease(1)
    job.put(e.StepDelayed(0, "a step waits for worker-1", (worker(1),)))
    limits, context = leasing_of(job).limits, job.state._parts.context
    assert limits.limit_s(present(context.worker(worker(0)))) is None
    assert limits.limit_s(present(context.worker(worker(1)))) == 300.0


def test_nobody_is_told_that_leases_of_a_worker_that_is_gone_are_void() -> None:
    job = Bench.running()
    orders = job.state._parts.context.orders
    leasing_of(job).revocation.revoke(worker(7), "slow")
    assert orders.take() == []


@pytest.mark.parametrize("phase", [Phase.WORKING, Phase.CHECKPOINTING])
def test_training_resumes_from_an_earlier_ledger_only_if_it_was_over(phase: Phase) -> None:
    job = Bench.running()
    job.finish(0, job.lease())
    parts = job.state._parts
    context = parts.context
    context.phase = phase
    assert restore_ledger(context, parts.evaluation, "", worker(0)) == 16
    texts = [one.text for one in job.of(c.Announce, context.orders.take())]
    assert context.phase is Phase.WORKING
    assert texts == ["the weights were lost: training resumes"] * (phase is not Phase.WORKING)
    assert job.total["repeated"] == 0 and job.total["trained"] == 0


def test_what_books_nothing_is_no_progress_of_a_worker() -> None:
    job = Bench.running(max_bad_records=9)
    lease = job.lease()
    process = present(job.state._parts.context.worker(worker(0)))
    job.put(e.ProgressReported(0, worker(0), Task.TRAINING, Applied(ShardId(999), 0, 8)))
    job.progress(0, lease, 8, bad_records=1, ahead=True)
    assert not process.works
    job.progress(0, lease, 8, bad_records=1)
    assert process.works
