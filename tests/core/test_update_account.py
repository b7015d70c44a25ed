"""The account of updates: ranges that are lost count once, and only what is known is exact."""

from __future__ import annotations

import json

import pytest

from elasticdl.job_status import UpdateCounts
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.updates import (
    UpdateAccount,
    UpdateMark,
    _Restored,
    _UnmetRestore,
    _Updates,
)
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
    updates.lose(30, 30)
    assert updates.lost == [(0, 18), (20, 25)], "nothing is in it"


def account(booked: int, has: int) -> UpdateAccount:
    """A worker that has not met a restored server, which has so many of its pushes."""
    made = UpdateAccount()
    made.reported(e.PushesReported(0.0, worker(0), booked), {})
    made._of(str(worker(0))).lacking[ps(0)] = _UnmetRestore(has, True, 0.0)
    return made


@pytest.mark.parametrize(
    ("booked", "has", "sequence", "at_least"),
    [(3, 3, 5, True), (3, 5, 5, False), (7, 3, 5, True), (5, 3, 5, True)],
)
def test_a_lost_worker_makes_counts_inexact_if_it_pushed_to_a_restored_server_and_did_not_say_so(
    booked: int, has: int, sequence: int, at_least: bool
) -> None:
    made = account(booked, has)
    made.fenced(e.WorkerFenced(0.0, worker(0), (None,), (sequence,)), [0])
    assert made.counts().at_least == at_least


def test_all_updates_are_repeated_when_training_begins_again() -> None:
    made = account(7, 7)
    made._of(str(worker(0))).lose(2, 4)
    assert made.counts() == UpdateCounts(5, 2, 0, False)
    made.before = UpdateCounts(20, 3, 1, False)
    made.begin_again()
    assert made.counts() == UpdateCounts(0, 0, 1 + 20 + 3 + 7, True)


def test_steps_that_a_ring_lost_are_undone_and_never_fewer_than_none() -> None:
    made = UpdateAccount()
    for steps in (3, -2, 0):
        made.undo(steps, at_least=False)
    assert made.counts() == UpdateCounts(0, 0, 3, False)
    made.undo(1, at_least=True)
    made.undo(1, at_least=False)
    assert made.counts() == UpdateCounts(0, 0, 5, True)


def test_a_worker_that_a_restored_server_does_not_know_has_no_push_there() -> None:
    made = UpdateAccount()
    made._restored[ps(0)] = _Restored({str(worker(0)): 4}, True, 7.0)
    assert made._of(str(worker(0))).lacking == {ps(0): _UnmetRestore(4, True, 7.0)}
    assert made._of(str(worker(1))).lacking == {ps(0): _UnmetRestore(0, True, 7.0)}


def lost_again(*, first_lacks: int, second_lacks: int) -> UpdateCounts:
    """A worker meets two processes of a server, one after the other, and tells both at once."""
    made = UpdateAccount()
    made.reported(e.PushesReported(0.0, worker(0), 20), {})
    for incarnation in (1, 2):
        made.restored(ps(1, incarnation), UpdateMark({str(worker(0)): 5}), 0.0, again=True)
    met = {ps(1, 2): second_lacks, ps(1, 1): first_lacks}
    made.reported(e.PushesReported(0.0, worker(0), 20), met)
    return made.counts()


def test_what_the_older_process_of_a_server_lacks_is_lost_whatever_the_next_one_says() -> None:
    assert lost_again(first_lacks=12, second_lacks=0) == UpdateCounts(13, 7, 0, False)
    assert lost_again(first_lacks=0, second_lacks=12) == UpdateCounts(13, 7, 0, False)


def test_what_a_server_has_that_restored_an_unknown_checkpoint_is_not_lost_but_inexact() -> None:
    made = UpdateAccount()
    made.reported(e.PushesReported(0.0, worker(0), 20), {})
    made.restored(ps(0, 1), None, 3.0, again=True)
    assert list(made.awaited(2.0)) == [str(worker(0))]
    assert list(made.awaited(3.0)) == []
    assert made.counts() == UpdateCounts(20, 0, 0, True)
    made.reported(e.PushesReported(0.0, worker(0), 20), {ps(0, 1): 0})
    assert list(made.awaited(2.0)) == []
    assert made.counts() == UpdateCounts(20, 0, 0, True)


def test_servers_that_the_parameters_moved_to_succeed_all_those_before() -> None:
    made = UpdateAccount()
    assert made._succeeds(ps(0, 1), ps(0)) and not made._succeeds(ps(1), ps(0))
    made.moved(2)
    assert all(made._succeeds(ps(new), ps(old)) for new in (2, 3) for old in (0, 1))
    assert not made._succeeds(ps(1), ps(0))
    assert not made._succeeds(ps(3), ps(2))
    assert made.moves == 1


def test_nothing_is_exact_after_a_server_restored_what_nobody_knows() -> None:
    made = account(5, 5)
    assert not made.counts().at_least
    made.restored(ps(0, 1), None, 0.0, again=False)
    assert made.counts() == UpdateCounts(5, 0, 0, at_least=True)


def test_a_cut_of_asynchronous_pushes_has_no_steps() -> None:
    job = Bench.running(checkpoint_steps=10)
    job.pushed(0, 3)
    taken = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 10)))[0].snapshot
    commands = job.put(e.SnapshotCut(0, taken, 10, {}, {"worker-0": 3}))
    (save,) = job.of(c.SaveSnapshot, commands)
    assert json.loads(save.ledger)["updates"]["applied"] == 3


@pytest.mark.parametrize(("last", "at_least"), [(3, False), (5, False), (6, True)])
def test_a_cut_is_inexact_if_a_worker_may_have_pushed_before_a_restore(
    last: int, at_least: bool
) -> None:
    mark = UpdateMark({str(worker(0)): last})
    assert account(3, 5).counts_at(mark) == UpdateCounts(last, 0, 0, at_least)


def test_a_cut_of_steps_has_those_that_are_complete() -> None:
    job = Bench.running(checkpoint_steps=10, sync=True)
    for number, complete in ((1, True), (2, False), (3, True)):
        job.put(e.StepApplied(0, number, complete, (ps(0),)))
    taken = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 10)))[0].snapshot
    (save,) = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, taken, 10, {})))
    assert json.loads(save.ledger)["updates"]["applied"] == 2
    job.saved(taken, 10)
    job.put(e.StepApplied(0, 4, True, (ps(0),)))
    job.die(ps(0))
    job.attach(ps(0, 1), restored=10)
    # The job returns to the checkpoint, and makes the step again.
    assert job.updates == UpdateCounts(2, 0, 1, at_least=False)


def test_a_step_that_is_reported_again_changes_nothing() -> None:
    made = UpdateAccount()
    made.stepped(e.StepApplied(0.0, 1, True, (ps(0),)))
    made.stepped(e.StepApplied(0.0, 2, True, (ps(0),)))
    before = made.counts()
    made.stepped(e.StepApplied(0.0, 1, True, (ps(0),)))
    assert (made.counts(), made.step) == (before, 2)


def test_a_server_that_nobody_knows_is_not_one_that_a_worker_has_met() -> None:
    job = Bench.running()
    job.put(e.PushesReported(0, worker(0), 3, {"at-nowhere": 1}))
    assert job.updates.applied == 3
