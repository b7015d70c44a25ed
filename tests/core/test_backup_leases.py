"""How long a slow worker needs for its last shards, and how long they take if others help."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.data.backup_leases import _Late
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.processes.table import Life
from elasticdl.shard import Source, Task
from tests.core.conftest import Bench, worker
from tests.present import present

pytestmark = pytest.mark.core

USUAL_S, BATCH, HANDOVER_S = 0.1, 8, 3.0


def with_leases(number: int) -> Any:
    """The core's parts. The first of two workers has so many shards of 1,000 records."""
    job = Bench(num_workers=2, records_per_task=1000, minibatch_size=BATCH)
    job.up(2, training=(Source("a", 4000),))
    for _ in range(number):
        job.lease(0)
    job.tick(50.0)
    return job.state._parts


def late(
    *,
    pace_s: float | None = 0.5,
    slow_times: float = 0.0,
    offsets: tuple[int, ...] = (100, 400),
    idle: int = 1,
    keeps_progress: bool = True,
) -> tuple[float, float] | None:
    """Seconds alone and with help, of a worker with shards of 1,000 records."""
    parts = with_leases(len(offsets))
    ledger = present(parts.context.work)
    shards, process = ledger.held_by(worker(0)), parts.context.worker(worker(0))
    for shard, offset, since_s in zip(shards, offsets, (10.0, 30.0), strict=False):
        shard.offset, shard.since_s = offset, since_s
    process.slow_times, process.busy_since_s = slow_times, 20.0
    for _ in range(4 if pace_s else 0):
        parts.leasing.paces.saw(worker(0), Task.TRAINING, 100 * (pace_s or 0.0), 100)
    ledger.keeps_progress = keeps_progress
    found = parts.backup_leases._late(ledger, process, shards, USUAL_S, idle)
    return None if found is None else (found.left_s, found.after_s)


def test_others_take_all_but_the_largest_shard_of_a_worker() -> None:
    assert late() == pytest.approx((0.5 * 1500, 0.5 * 900 + 0.5 * BATCH + HANDOVER_S))
    assert late(offsets=(100,)) == pytest.approx((450, 450 + 0.5 * BATCH + HANDOVER_S))


@pytest.mark.parametrize(("idle", "others_s"), [(1, 0.1 * 1500), (2, 0.1 * 900)])
def test_a_worker_that_is_slow_gets_none_of_them_again(idle: int, others_s: float) -> None:
    expected = (0.4 * 1500, others_s + 0.4 * BATCH + HANDOVER_S)
    assert late(pace_s=None, slow_times=4.0, idle=idle) == pytest.approx(expected)


def test_what_a_worker_took_counts_more_than_what_is_known_of_others() -> None:
    expected = (0.5 * 1500, 150 + 0.5 * BATCH + HANDOVER_S)
    assert late(slow_times=4.0) == pytest.approx(expected)
    assert late(pace_s=None) is None, "it has just begun"


def test_a_worker_that_reports_whole_shards_is_about_to_report_one() -> None:
    """It may have done what it could since its last report; the next worker begins anew."""
    found = late(keeps_progress=False)
    assert found == pytest.approx((0.5 * 1500 - (50.0 - 20.0), 0.5 * 900 + HANDOVER_S))
    found = late(offsets=(100,), keeps_progress=False)
    assert found == pytest.approx((420, 420 + HANDOVER_S)), "nobody takes its only shard"


def test_a_worker_loses_its_leases_three_times_and_not_again() -> None:
    parts = with_leases(1)
    ledger, backups = present(parts.context.work), parts.backup_leases
    for _ in range(4):
        parts.leasing.paces.saw(worker(1), Task.TRAINING, 10.0, 100)
    parts.context.worker(worker(0)).slow_times = 4.0
    for _ in range(3):
        (one,) = backups._holders(ledger, 1)
        backups._lease_again(ledger, one)
    assert backups._holders(ledger, 1) == []


def test_nobody_loses_a_lease_while_another_one_is_on_its_way_back() -> None:
    job = Bench(num_workers=3, records_per_task=1000, minibatch_size=BATCH)
    job.up(3, training=(Source("a", 2000),))
    for index in (1, 2):
        job.lease(index)
    parts = job.state._parts
    for _ in range(4):
        parts.leasing.paces.saw(worker(0), Task.TRAINING, 10.0, 100)
    present(parts.context.worker(worker(1))).slow_times = 4.0
    [other] = present(parts.context.work).held_by(worker(2))
    other.stage = Stage.SETTLING
    parts.backup_leases.tick()
    assert not job.of(c.RevokeLeases, parts.context.orders.take())
    other.stage = Stage.LEASED
    parts.backup_leases.tick()
    (order,) = job.of(c.RevokeLeases, parts.context.orders.take())
    assert order.worker == worker(1)


def test_the_last_shards_are_those_of_training_or_of_the_last_round() -> None:
    job = Bench.running(
        2,
        num_workers=2,
        records_per_task=64,
        validation_data="v",
        evaluation_steps=10,
        num_epochs=2,
    )
    parts: Any = job.state._parts
    last = parts.backup_leases._ledger
    assert last() is None, "one can be leased"
    first = job.lease(0)
    assert last() is None, "an epoch is left"
    job.finish(0, first)
    second = job.lease(0)
    assert last() is parts.context.work
    job.put(e.VersionAdvanced(0, 10))
    assert last() is parts.context.work, "the round has no shards yet"
    job.cut(11)
    assert job.lease(1).task is Task.EVALUATION
    assert last() is None, "who has none of its shards trains on"
    assert second.task is Task.TRAINING
    only = Bench.running(2, action=Action.EVALUATE, num_workers=2, records_per_task=64)
    parts = only.state._parts
    assert parts.backup_leases._ledger() is None
    only.lease(0)
    assert parts.backup_leases._ledger() is parts.evaluation.round.ledger


def test_nobody_loses_a_lease_of_which_little_is_left() -> None:
    job = Bench(num_workers=2, records_per_task=1000, minibatch_size=BATCH)
    job.up(2, training=(Source("a", 1000),))
    job.lease(1)
    parts = job.state._parts
    for _ in range(4):
        parts.leasing.paces.saw(worker(0), Task.TRAINING, 10.0, 100)
    present(parts.context.worker(worker(1))).slow_times = 4.0
    [held] = present(parts.context.work).held_by(worker(1))
    # Ten records take it 4 s.
    for offset, orders in ((990, 0), (900, 1)):
        held.offset = offset
        parts.backup_leases.tick()
        assert len(job.of(c.RevokeLeases, parts.context.orders.take())) == orders


@pytest.mark.parametrize(
    ("left_s", "after_s", "worth"),
    [(20.0, 15.0, False), (20.4, 15.2, True), (100.0, 76.0, False), (100.0, 74.0, True)],
)
def test_a_backup_lease_saves_five_seconds_and_a_quarter_of_what_is_left(
    left_s: float, after_s: float, worth: bool
) -> None:
    parts = with_leases(1)
    process = parts.context.worker(worker(0))
    assert parts.backup_leases._is_worth(_Late(process, [], left_s, after_s)) == worth


def test_a_holder_that_is_ending_hides_no_other_one() -> None:
    job = Bench(num_workers=3, records_per_task=1000, minibatch_size=BATCH)
    job.up(3, training=(Source("a", 2000),))
    job.lease(1)
    job.lease(2)
    parts = job.state._parts
    for _ in range(4):
        parts.leasing.paces.saw(worker(0), Task.TRAINING, 10.0, 100)
    for index in (1, 2):
        present(parts.context.worker(worker(index))).slow_times = 4.0
    work = present(parts.context.work)
    backups = parts.backup_leases
    assert [str(holder.process.name) for holder in backups._holders(work, 1)] == [
        "worker-1",
        "worker-2",
    ]
    present(parts.context.worker(worker(1))).life = Life.STOPPING
    assert [str(holder.process.name) for holder in backups._holders(work, 1)] == ["worker-2"]
