"""Every record of a job is in the receipt, and what workers did adds up to it.

The core is the real one, its world is by hand.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.job_choices import Action
from elasticdl.job_status import JobStatus, NotBegun, ReceiptEpoch, ReceiptTotal, StepsStatus
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

ONE = {"auc": ((1.0, 2.0),)}


def done_by(job: Bench) -> dict[str, int]:
    rows = job.state.status().processes
    return {row.name: row.records or 0 for row in rows if row.role == "worker"}


def adds_up(job: Bench) -> None:
    """What workers of this master did, with what was there before, is what the receipt counts; and
    nothing is unsaid.
    """
    status, receipt = job.state.status(), job.state.receipt()
    total, records = receipt.total, status.records
    assert sum(done_by(job).values()) + records.resumed == total.trained + records.undone
    rows: list[ReceiptEpoch | ReceiptTotal] = [*receipt.epochs, total]
    for row in rows:
        assert row.expected == row.trained + row.bad + row.lost + row.left, row
    begun = sum(row.expected for row in receipt.epochs)
    assert total.expected == begun + receipt.not_begun.records
    shown = {
        key: getattr(records, key)
        for key in ("expected", "trained", "repeated", "bad", "lost", "left")
    }
    assert shown == asdict(total)


@pytest.mark.parametrize("sync", [True, False])
def test_a_status_has_the_choice_of_steps_and_its_reason(sync: bool) -> None:
    job = Bench(num_workers=2)
    assert job.state.status().steps is None, "it is not made before the preflight has passed"
    job.start(sync=sync, why_sync="few steps")
    status = job.state.status()
    assert status.steps == StepsStatus(sync, "few steps")
    assert JobStatus.from_json(status.to_json()).steps == status.steps
    on_ring = Bench(distribution_strategy="AllreduceStrategy", num_workers=2)
    on_ring.start(sync=False)
    assert on_ring.state.status().steps is None


@pytest.mark.parametrize(("chosen", "limit"), [(None, "auto"), (0, 0)])
def test_the_staleness_that_the_preflight_chose_is_that_of_the_workers(
    chosen: int | None, limit: object
) -> None:
    job = Bench(num_workers=2)
    job.start(max_staleness=chosen)
    assert job.state.spec.training.max_staleness == limit


def test_training_of_a_lost_worker_is_counted_when_settled_and_evaluation_never() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=2, validation_data="v", evaluation_steps=1)
    lease = job.lease(1)
    job.progress(1, lease, 8, version=1)
    job.cut(1)
    evaluation = job.lease(0)
    assert evaluation.task is Task.EVALUATION
    job.finish(0, evaluation, metrics=ONE)
    adds_up(job)
    assert done_by(job) == {"worker-0": 0, "worker-1": 8}
    assert {
        row.name: row.evaluated for row in job.state.status().processes if row.role == "worker"
    } == {"worker-0": 16, "worker-1": 0}
    job.die(job.worker(1))
    told = Applied(present(lease.shard).id, lease.attempt, 16)
    job.fenced(1, told, told)
    adds_up(job)
    assert done_by(job) | {"worker-2": 0} == {"worker-0": 0, "worker-1": 16, "worker-2": 0}


def test_a_minibatch_that_only_some_servers_have_is_nobodys_until_it_is_trained_again() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=2)
    lease = job.lease(1)
    job.progress(1, lease, 8)
    job.die(job.worker(1))
    job.fenced(
        1,
        Applied(present(lease.shard).id, lease.attempt, 16),
        Applied(present(lease.shard).id, lease.attempt, 8),
    )
    adds_up(job)
    assert done_by(job)["worker-1"] == 8 and job.total["repeated"] == 8
    job.finish(0, job.lease(0))
    adds_up(job)
    assert done_by(job)["worker-0"] == 8


def test_the_receipt_of_a_stopped_job_accounts_for_every_record_of_all_epochs() -> None:
    job = Bench.running(num_workers=1, num_epochs=3)
    lease = job.lease()
    job.progress(0, lease, 8)
    job.put(e.StopRequested(0, "Ctrl-C"))
    job.put(e.LeaseReturned(0, job.worker(0), Applied(present(lease.shard).id, lease.attempt, 8)))
    job.die(job.worker(0), ExitStatus(exit_code=66, asked=True))
    adds_up(job)
    assert job.total == {
        "expected": 192,
        "trained": 8,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 184,
    }
    assert job.state.receipt().not_begun == NotBegun(epochs=2, records=128)
    assert job.state.receipt().why_left == "stopped: Ctrl-C"


def test_training_that_ends_early_leaves_records_and_says_why() -> None:
    job = Bench.running(num_workers=1, num_epochs=3)
    job.finish(0, job.lease())
    job.put(e.WorkerStopRequested(0, job.worker(0), "MaxStepsStopping: 2 steps are done"))
    adds_up(job)
    assert job.total == {
        "expected": 192,
        "trained": 16,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 176,
    }
    assert (
        job.state.receipt().why_left == "training ended early: MaxStepsStopping: 2 steps are done"
    )


def test_a_job_that_is_done_has_left_nothing_and_while_it_runs_the_rest_is_to_come() -> None:
    job = Bench.running(num_workers=1, num_epochs=2)
    job.finish(0, job.lease())
    adds_up(job)
    assert job.total["left"] == 112 and job.state.receipt().why_left is None
    job.train_all()
    adds_up(job)
    assert job.total["left"] == 0 and job.state.receipt().not_begun == NotBegun(0, 0)


def test_a_resumed_job_says_how_many_records_were_trained_before() -> None:
    first = Bench.running(num_workers=1, num_epochs=2)
    first.finish(0, first.lease())
    first.progress(0, first.lease(), 8)
    again = Bench(num_workers=1, num_epochs=2)
    again.start(ledger=first.state.ledger_json(), version=3)
    again.attach(again.ps(0), again.worker(1))
    assert again.state.status().records.resumed == 24
    adds_up(again)
    again.train_all(1)
    adds_up(again)
    assert again.state.status().records.trained == 128


def test_shards_are_counted_over_all_epochs_so_that_done_is_of_the_whole() -> None:
    job = Bench.running(num_workers=1, num_epochs=5)
    for _ in range(4):
        job.finish(0, job.lease())
    counts = job.state.status().shards["training"]
    assert (counts.todo, counts.leased, counts.done, counts.parked) == (16, 0, 4, 0)


def test_a_worker_that_is_starting_does_not_wait_for_work() -> None:
    job = Bench(Action.EVALUATE, num_workers=2)
    job.start()
    job.attach(job.ps(0))
    for index in range(2):
        job.put(e.ProcessAttached(0, job.worker(index), "c", "b", starting=True))
    for _ in range(10):
        job.tick(1)
    assert (
        not job.said("waiting for work")
        and job.state.status().message == "evaluating: computing metrics"
    )
    for index in range(2):
        job.put(e.StartWentOn(0, job.worker(index), ""))
    job.lease(0)
    for _ in range(10):
        job.tick(1)
    assert job.said("waiting for work"), "one worker has the only shard"


def test_the_status_has_the_newest_epochs_and_the_receipt_all_of_them() -> None:
    job = Bench.running(num_workers=1, num_epochs=250)
    for _ in range(4 * 230 + 1):
        job.finish(0, job.lease())
    shown, whole = job.state.status().receipt, job.state.receipt()
    assert [row.epoch for row in present(shown).epochs] == list(range(31, 231))
    assert present(shown).epochs_left_out == 31
    assert (
        len(whole.epochs) == 231
        and whole.epochs_left_out == 0
        and present(shown).total == whole.total
    )
    assert present(shown).not_begun.epochs == 19


@pytest.mark.parametrize(("action", "records"), [(Action.EVALUATE, 16), (Action.PREDICT, 32)])
def test_records_of_other_jobs_add_up_too(action: Action, records: int) -> None:
    job = Bench.running(action=action, num_workers=1)
    while (job.total["trained"]) < records:
        lease = job.lease()
        job.finish(0, lease, **({"metrics": ONE} if action is Action.EVALUATE else {}))
        adds_up(job)
    assert done_by(job) == {"worker-0": records}
    (counts,) = job.state.status().shards.values()
    assert (counts.todo, counts.leased, counts.done) == (0, 0, records // 16)
