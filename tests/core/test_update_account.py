"""The account of updates: ranges that are lost count once, and only what is known is exact."""

from __future__ import annotations

import pytest

from elasticdl.job_status import UpdateCounts
from elasticdl.master.core import events as e
from elasticdl.master.core.updates import UpdateAccount, _Updates
from tests.core.conftest import Bench, ps, worker

pytestmark = pytest.mark.core


def test_ranges_that_touch_are_one() -> None:
    updates = _Updates()
    for lost in ((0, 5), (10, 15), (20, 25)):
        updates.lose(*lost)
    assert updates.lost == [(0, 5), (10, 15), (20, 25)]
    updates.lose(15, 18)
    assert updates.lost == [(0, 5), (10, 18), (20, 25)]
    updates.lose(5, 10)
    assert updates.lost == [(0, 18), (20, 25)]


def account(booked: int, has: int) -> UpdateAccount:
    """A worker that has not met a restored server, which has so many of its pushes."""
    made = UpdateAccount()
    made.reported(e.PushesReported(0.0, worker(0), booked), {})
    made._of(str(worker(0))).lacking[ps(0)] = has
    return made


@pytest.mark.parametrize(
    ("booked", "has", "sequence", "at_least"),
    [(3, 3, 5, True), (3, 5, 5, False), (7, 3, 5, False), (5, 3, 5, False)],
)
def test_a_lost_worker_makes_counts_inexact_only_if_it_may_have_pushed_before_a_restore(
    booked: int, has: int, sequence: int, at_least: bool
) -> None:
    made = account(booked, has)
    made.fenced(e.WorkerFenced(0.0, worker(0), (None,), (sequence,)))
    assert made.counts().at_least == at_least


def test_all_updates_are_repeated_when_training_begins_again() -> None:
    made = account(7, 7)
    made._of(str(worker(0))).lose(2, 4)
    assert made.counts() == UpdateCounts(5, 2, 0, False)
    made.begin_again()
    assert made.counts() == UpdateCounts(0, 0, 7, True)


def test_a_worker_that_a_restored_server_does_not_know_has_no_push_there() -> None:
    made = UpdateAccount()
    made._restored[ps(0)] = {str(worker(0)): 4}
    assert made._of(str(worker(0))).lacking == {ps(0): 4}
    assert made._of(str(worker(1))).lacking == {ps(0): 0}


def test_a_step_that_is_told_again_changes_nothing() -> None:
    made = UpdateAccount()
    made.stepped(e.StepApplied(0.0, 1, True, (ps(0),)))
    made.stepped(e.StepApplied(0.0, 2, True, (ps(0),)))
    before = made.counts()
    made.stepped(e.StepApplied(0.0, 1, True, (ps(0),)))
    assert (made.counts(), made.step) == (before, 2)


def test_a_server_that_nobody_knows_is_not_one_that_a_worker_has_met(bench: type[Bench]) -> None:
    job = bench()
    job.up()
    job.put(e.PushesReported(0, worker(0), 3, {"at-nowhere": 1}))
    assert job.updates.applied == 3
