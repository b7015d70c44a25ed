"""The ledger: what is cut, ordered, leased, settled and given up always adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.job_choices import Shuffle
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.data.counts import EpochCount, ShardIds
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import Blame, HeldShard, Stage
from elasticdl.master.core.data.sharding import ShardPlan, shard_records
from elasticdl.shard import Applied, ShardId, Source, Task
from tests.present import present

pytestmark = pytest.mark.core

A, B = (ProcessName(Role.WORKER, index) for index in range(2))


@given(st.integers(1, 50_000), st.integers(1, 512), st.integers(0, 5_000), st.integers(1, 16))
def test_shards_are_whole_windows_and_as_many_as_workers_can_use(
    total: int, batch: int, asked: int, workers: int
) -> None:
    size = shard_records(asked, batch, total, workers)
    assert size % batch == 0
    if asked:
        assert asked <= size < asked + batch
    else:
        assert batch <= size <= 64 * batch
        assert size == batch or -(-total // size) >= 4 * workers


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=5),
    st.integers(1, 30),
    st.sampled_from(Shuffle),
    st.integers(0, 9),
)
def test_a_plan_cuts_every_record_into_exactly_one_shard(
    records: list[int], size: int, shuffle: Shuffle, seed: int
) -> None:
    plan = ShardPlan(
        tuple(Source(f"s{i}", n) for i, n in enumerate(records)), size, 3, shuffle, seed
    )
    for epoch in range(3):
        shards = [plan.shard(number, ShardId(number)) for number in plan.order(epoch)]
        cut = sorted((shard.source, i) for shard in shards for i in range(shard.begin, shard.end))
        assert cut == sorted((f"s{i}", k) for i, n in enumerate(records) for k in range(n))
        assert all(0 < shard.records <= size for shard in shards)


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    def make(shuffle: Shuffle = Shuffle.RECORDS, seed: int = 1) -> ShardPlan:
        return ShardPlan((Source("a", 1000),), 10, 2, shuffle, seed)

    assert make().order(0) == make().order(0)
    assert make().order(0) != make().order(1)
    assert make().order(0) != make(seed=2).order(0)
    assert list(make(Shuffle.NONE).order(1)) == list(range(100))
    assert make(Shuffle.SHARDS).order(0) == make().order(0)
    seeds = {
        present(make(seed=seed).order_seed(epoch, number))
        for seed in (1, 2)
        for epoch in (0, 1)
        for number in range(100)
    }
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert make(Shuffle.SHARDS).order_seed(0, 0) is None


def taken(ledger: Ledger, worker: ProcessName) -> HeldShard:
    """The next shard, for a worker, at the beginning of time."""
    return present(ledger.take(worker, 0.0))


def make(records: int = 40, size: int = 20, epochs: int = 1, task: Task = Task.TRAINING) -> Ledger:
    return Ledger(ShardPlan((Source("a", records),), size, epochs), ShardIds(), task=task)


def test_the_totals_are_the_sums_of_all_epochs() -> None:
    ledger = make()
    ledger.counts = [EpochCount(0, 10, 20, 30, 40, 50, 60, 70), EpochCount(1, 1, 2, 3, 4, 5, 6, 7)]
    assert ledger.totals() == EpochCount(2, 11, 22, 33, 44, 55, 66, 77)


def test_what_is_left_is_neither_trained_nor_given_up() -> None:
    count = EpochCount(0, 10, 1, trained=3, repeated=9, bad=2, parked=1, forgone=4)
    assert count.left == 10 + 4 - 3 - 2 - count.lost


def test_records_that_are_done_were_foretold_no_longer() -> None:
    ledger = make()
    held = present(ledger.take(A, 0.0))
    held.bad_ahead = {4: 1, 8: 2, 12: 3}
    ledger.advance(held, 8, 0)
    assert held.bad_ahead == {8: 2, 12: 3}


def adds_up(ledger: Ledger) -> bool:
    count = ledger.counts[0]
    waiting = sum(piece.rest for piece in ledger.returned) + sum(
        held.piece.rest for held in ledger.held.values()
    )
    fresh = sum(
        ledger.plan.shard(number, ShardId(0)).records
        for number in ledger.plan.order(0)[ledger.cursor :]
    )
    return count.expected == count.trained + count.bad + count.parked + waiting + fresh


def test_progress_counts_once_and_the_last_of_it_ends_the_shard() -> None:
    ledger = make()
    held = taken(ledger, A)
    assert [ledger.advance(held, offset, 0) for offset in (8, 8, 4, 16)] == [8, 0, 0, 8]
    assert ledger.counts[0].trained == 16
    assert ledger.advance(held, 99, 0) == 4
    assert ledger.finish(held)
    assert (ledger.counts[0].trained, ledger.counts[0].unfinished) == (20, 1)
    assert adds_up(ledger)


def test_bad_records_are_expected_but_not_trained_and_not_lost() -> None:
    ledger = make(records=20)
    held = taken(ledger, A)
    ledger.advance(held, 20, 3)
    ledger.finish(held)
    count = ledger.counts[0]
    assert (count.trained, count.bad, count.lost) == (17, 3, 0)


def test_more_bad_records_than_were_read_are_not_believed() -> None:
    ledger = make(records=20)
    held = taken(ledger, A)
    ledger.advance(held, 8, 99)
    ledger.advance(held, 12, -5)
    assert (ledger.counts[0].trained, ledger.counts[0].bad) == (4, 8)


def test_bad_validation_records_are_not_among_those_that_metrics_were_made_of() -> None:
    ledger = make(records=20, task=Task.EVALUATION)
    held = taken(ledger, A)
    ledger.advance(held, 20, 3)
    ledger.finish(held)
    assert (ledger.counts[0].trained, ledger.counts[0].bad, ledger.counts[0].lost) == (17, 3, 0)


def test_reports_of_anybody_but_the_holder_of_that_attempt_find_nothing() -> None:
    ledger = make()
    held = taken(ledger, A)
    shard = held.piece.shard.id
    assert ledger.find(A, shard, 0) is held
    assert ledger.find(B, shard, 0) is None
    assert ledger.find(A, shard, 1) is None
    ledger.give_back(held)
    assert ledger.find(A, shard, 0) is None
    again = taken(ledger, B)
    assert (again.piece.shard.id, again.piece.attempt) == (shard, 1)
    assert ledger.find(A, shard, 0) is None
    again.stage = Stage.SETTLING
    assert ledger.find(B, shard, 1) is None


def test_the_rest_of_a_shard_is_leased_again_with_its_offset_before_anything_fresh() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.advance(held, 8, 0)
    ledger.give_back(held)
    lease = ledger.lease(taken(ledger, B))
    assert (lease.shard, lease.attempt, lease.offset) == (held.piece.shard, 1, 8)


def test_no_shard_id_is_used_twice_over_epochs() -> None:
    ledger, ids = make(epochs=3), set()
    while (held := ledger.take(A, 0.0)) is not None:
        ids.add(held.piece.shard.id)
        ledger.advance(held, 20, 0)
        ledger.finish(held)
    assert len(ids) == 6
    assert ledger.finished
    assert [count.lost for count in ledger.counts] == [0, 0, 0]


def test_an_epoch_begins_while_shards_of_the_last_one_are_still_held() -> None:
    ledger = make(epochs=2)
    first = taken(ledger, A)
    ledger.take(A, 0.0)
    third = taken(ledger, B)
    assert (first.piece.epoch, third.piece.epoch) == (0, 1)
    assert not ledger.finished


def test_nothing_is_booked_in_a_new_ledger() -> None:
    ledger = make()
    assert (ledger.booked, ledger.resumed, ledger.undone, ledger.partly_pushed) == (0, 0, 0, 0)
    assert (ledger.first_id, ledger.cursor, ledger.done_shards) == (0, 0, 0)
    assert not ledger.repeated_at_least
    again = make()
    again.replaces(ledger, A)
    assert taken(again, A).piece.attempt == 1, "the attempt after the only one before"


def test_what_remains_is_neither_done_nor_given_up_in_all_epochs() -> None:
    ledger = make(epochs=3)
    assert ledger.remaining == 120
    held = taken(ledger, A)
    assert ledger.remaining == 120
    ledger.advance(held, 8, 3)
    assert ledger.remaining == 112
    for _ in range(2):
        held.piece.failures.append("no")
    assert ledger.fail(held, "no")
    assert ledger.remaining == 100
    ledger.stop()
    assert ledger.remaining == 0


def test_ids_are_given_once_and_in_order() -> None:
    ids = ShardIds()
    assert not ids.given(ShardId(0))
    assert [ids.reserve(3), ids.reserve(2)] == [0, 3]
    assert [ids.given(ShardId(id)) for id in (-1, 0, 4, 5)] == [False, True, True, False]


def test_the_order_of_an_epoch_is_that_of_the_plan() -> None:
    ledger = make(epochs=2)
    assert list(ledger.order) == []
    for _ in range(3):
        taken(ledger, A)
    assert list(ledger.order) == list(ledger.plan.order(1))
    assert (ledger.first_id, ledger.cursor, ledger.fresh, ledger.holders) == (2, 1, 1, 1)


def test_an_early_stop_knows_the_begun_shards_of_the_epoch_that_are_not_expected() -> None:
    ledger = make(epochs=2)
    of_before, also = taken(ledger, A), taken(ledger, B)
    begun = taken(ledger, A)
    for held in (of_before, begun):
        ledger.give_back(held)
    ledger.stop()
    assert ledger.stopped_at == 1
    assert ledger.forgone == {begun.piece.number}
    ledger.stop()
    assert ledger.stopped_at == 1
    ledger.give_back(also)
    assert ledger.forgone == {begun.piece.number}
    assert ledger.finished
    assert [(count.expected, count.unfinished) for count in ledger.counts] == [(0, 0), (0, 0)]
    assert [count.forgone for count in ledger.counts] == [40, 40]


# Settling


def applied(held: HeldShard, offset: int) -> Applied:
    return Applied(held.piece.shard.id, held.piece.attempt, offset)


def test_what_every_server_has_is_trained_and_what_only_some_have_is_repeated() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.settle(A, (applied(held, 16), applied(held, 8), applied(held, 16)))
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (8, 8)
    assert ledger.partly_pushed == 8
    assert taken(ledger, B).piece.offset == 8


def test_a_server_that_saw_a_later_lease_has_all_of_the_earlier_one() -> None:
    ledger = make()
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.settle(A, (applied(second, 8), applied(second, 8)))
    assert ledger.counts[0].trained == 28
    assert ledger.counts[0].repeated == 0
    assert first.piece.rest == 0
    assert taken(ledger, B).piece is second.piece
    assert ledger.take(B, 0.0) is None


def test_a_push_torn_at_the_border_of_two_leases_is_repeated_only_once() -> None:
    ledger = make()
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.settle(A, (applied(first, 20), applied(second, 8)))
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (20, 8)
    assert adds_up(ledger)


def test_what_was_reported_is_settled_even_where_a_server_has_forgotten_it() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.advance(held, 16, 0)
    ledger.settle(A, (None, Applied(ShardId(99), 0, 3)))
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (16, 0)
    assert taken(ledger, B).piece.offset == 16


def test_a_server_that_has_less_than_was_reported_takes_nothing_back() -> None:
    """It came back from a checkpoint of before: nothing is repeated less than never."""
    ledger = make()
    held = taken(ledger, A)
    ledger.advance(held, 16, 0)
    ledger.settle(A, (applied(held, 8),))
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (16, 0)
    assert taken(ledger, B).piece.offset == 16


def test_a_servers_records_of_an_earlier_attempt_say_nothing_of_this_one() -> None:
    ledger = make()
    held = taken(ledger, A)
    before = applied(held, 16)
    ledger.give_back(held)
    assert taken(ledger, A).piece is held.piece
    ledger.settle(A, (before,))
    assert ledger.counts[0].trained == 0
    assert taken(ledger, B).piece.offset == 0


def test_with_no_server_to_ask_the_reports_stand() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.advance(held, 8, 0)
    ledger.settle(A, ())
    assert (ledger.counts[0].trained, taken(ledger, B).piece.offset) == (8, 8)


def test_a_batch_that_a_server_that_is_away_may_lack_is_trained_again() -> None:
    ledger = make(records=64, size=32)
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.advance(first, 8, 0)
    # Reported: 8. The other server was away: of batches of 8, the last that this one has is in
    # doubt, those before are not.
    ledger.settle(A, [Applied(second.piece.shard.id, 0, 16), None], batch=8)
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (32 + 8, 8)
    assert [piece.offset for piece in ledger.returned] == [8]


def test_a_piece_that_is_given_back_without_a_rest_is_done() -> None:
    ledger = make()
    held = taken(ledger, A)
    before = ledger.counts[0].unfinished
    ledger.advance(held, held.piece.shard.records, 0)
    ledger.give_back(held)
    assert (ledger.counts[0].unfinished, ledger.done_shards) == (before - 1, 1)
    assert not ledger.returned


def test_a_piece_blamed_too_often_while_nobody_has_it_is_never_leased_again() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.give_back(held)
    blame = Blame("it ended", held.piece.shard.id)
    assert [ledger.blame(blame) for _ in range(3)] == [None, None, held.piece]
    assert ledger.parked == [held.piece] and not ledger.returned
    assert adds_up(ledger)


def test_a_piece_that_is_blamed_while_it_is_held_again_is_parked_by_its_next_failure() -> None:
    ledger = make()
    held = taken(ledger, A)
    blame = Blame("it ended", held.piece.shard.id)
    assert [ledger.blame(blame) for _ in range(2)] == [None, None]
    assert held.piece.failures == ["it ended"] * 2 and not ledger.parked
    assert ledger.fail(held, "again")
    assert ledger.parked == [held.piece]
    assert ledger.blame(blame) is None, "nobody has it any more"
    assert ledger.blame(Blame("no shard", None)) is None


def test_a_lease_behind_the_one_in_doubt_is_given_back_as_it_is() -> None:
    ledger = make(records=96, size=32)
    _, second, _ = (taken(ledger, A) for _ in range(3))
    ledger.settle(A, [applied(second, 16), None], batch=8)
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (32 + 8, 8)
    assert [piece.offset for piece in ledger.returned] == [8, 0]


def test_a_server_that_came_back_without_its_memory_costs_no_more_than_one_batch() -> None:
    ledger = make(records=64, size=64)
    held = present(ledger.take(A, 0))
    ledger.settle(
        A, [Applied(held.piece.shard.id, 0, 60), Applied(held.piece.shard.id, 0, 8)], batch=8
    )
    assert (ledger.counts[0].trained, ledger.counts[0].repeated) == (56, 4)


def test_bad_records_of_a_torn_push_are_not_repeated_though_it_begins_with_a_bad_batch() -> None:
    ledger = make(records=64, size=64)
    held = present(ledger.take(A, 0))
    ledger.advance(held, 8, 0)
    # One push has the records 8 to 24, of which 11 are bad: all 8 of the first batch, then 3.
    ledger.foretell(held, 8, 11)
    ledger.settle(A, [applied(held, 24), applied(held, 8)], batch=8)
    count = ledger.counts[0]
    assert (count.trained, count.bad, count.repeated) == (8, 8, 5)
    assert taken(ledger, B).piece.offset == 16


def test_leases_of_a_lost_worker_come_back_in_their_order() -> None:
    ledger = make()
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.settle(A, (None,))
    assert taken(ledger, B).piece is first.piece
    assert taken(ledger, B).piece is second.piece


def test_only_the_shard_that_the_worker_was_at_is_blamed() -> None:
    ledger = make()
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.settle(A, (applied(first, 20),), Blame("segfault"))
    assert (first.piece.failures, second.piece.failures) == ([], ["segfault"])


def test_a_failure_that_names_its_shard_blames_that_one() -> None:
    ledger = make()
    first, second = taken(ledger, A), taken(ledger, A)
    ledger.settle(A, (None,), Blame("boom", second.piece.shard.id))
    assert (first.piece.failures, second.piece.failures) == ([], ["boom"])
    assert taken(ledger, B).piece is first.piece


def test_the_third_failure_parks_a_shard_and_its_rest_is_lost() -> None:
    ledger = make(records=20)
    for reason in "abc":
        held = taken(ledger, A)
        ledger.advance(held, 8, 0)
        parked = ledger.settle(A, (), Blame(reason))
    assert present(parked).failures == ["a", "b", "c"]
    assert ledger.finished
    count = ledger.counts[0]
    assert (count.trained, count.parked, count.lost, count.unfinished) == (8, 12, 12, 0)


def test_a_shard_of_which_nothing_is_left_is_done_however_often_it_failed() -> None:
    ledger = make(records=20)
    for reason in "abc":
        held = taken(ledger, A)
        ledger.advance(held, 20 if reason == "c" else 8, 0)
        assert not ledger.fail(held, reason)
    assert (ledger.done_shards, ledger.parked, ledger.counts[0].lost) == (1, [], 0)


# The end before the end


def test_stopping_early_lowers_what_is_expected_and_loses_nothing() -> None:
    ledger = make(epochs=5)
    held = taken(ledger, A)
    returned = taken(ledger, B)
    ledger.advance(returned, 8, 0)
    ledger.give_back(returned)
    ledger.stop()
    ledger.advance(held, 16, 0)
    ledger.give_back(held)
    assert ledger.finished
    (count,) = ledger.counts
    assert (count.expected, count.trained, count.lost, count.unfinished) == (24, 24, 0, 0)


def test_a_shard_that_fails_again_after_training_was_stopped_is_neither_expected_nor_lost() -> None:
    ledger = make(records=20)
    for _ in range(2):
        ledger.fail(taken(ledger, A), "no")
    held = taken(ledger, A)
    ledger.stop()
    assert not ledger.fail(held, "no")
    assert (ledger.counts[0].expected, ledger.counts[0].lost, ledger.parked) == (0, 0, [])


def test_an_evaluation_shard_starts_again_from_its_beginning() -> None:
    ledger = make(records=20, task=Task.EVALUATION)
    held = taken(ledger, A)
    ledger.advance(held, 16, 0)
    ledger.settle(A, ())
    again = taken(ledger, B)
    assert (again.piece.offset, ledger.counts[0].trained) == (0, 0)
    ledger.advance(again, 20, 0)
    assert ledger.finish(again)
    assert ledger.counts[0].trained == 20


def test_giving_a_lease_back_twice_is_a_bug_that_shows() -> None:
    ledger = make()
    held = taken(ledger, A)
    ledger.give_back(held)
    with pytest.raises(ImpossibleTransition, match="not held"):
        ledger.give_back(held)


def test_a_ledger_that_takes_the_place_of_a_lost_one_uses_no_attempt_again() -> None:
    lost = make()
    lost.give_back(taken(lost, A))
    assert taken(lost, A).piece.attempt == 1
    again = make()
    again.replaces(lost, A)
    assert {taken(again, A).piece.attempt, taken(again, A).piece.attempt} == {2}


def test_shards_returned_before_a_checkpoint_reuse_no_attempt_of_a_lost_ledger() -> None:
    lost, again = make(), make()
    for _ in range(3):
        lost.give_back(taken(lost, A))
    again.give_back(taken(again, A))
    again.replaces(lost, A)
    assert taken(again, A).piece.attempt == 3


def test_what_workers_did_comes_to_what_is_trained_and_undone_after_weights_were_lost() -> None:
    lost, again = make(epochs=3), make(epochs=3)
    lost.done_by[A], lost.undone, lost.partly_pushed = 55, 7, 3
    lost.counts = [EpochCount(0, 40, 0, trained=40), EpochCount(1, 40, 2, trained=8, repeated=5)]
    # The checkpoint has less of the first epoch than was reported, and more of the second.
    again.counts = [EpochCount(0, 40, 1, trained=30), EpochCount(1, 40, 1, trained=20)]
    assert again.replaces(lost, B) == 10
    assert (again.undone, again.partly_pushed) == (17, 3)
    assert again.done_by == {A: 55, B: 12}
    assert [count.repeated for count in again.counts] == [10, 5]
    assert sum(again.done_by.values()) == again.totals().trained + again.undone


def test_epochs_that_a_lost_ledger_had_begun_and_its_checkpoint_had_not_are_repeated() -> None:
    lost, again = make(epochs=4), make(epochs=4)
    lost.counts = [EpochCount(0, 40, 0, trained=40), EpochCount(1, 40, 2, trained=8, repeated=5)]
    lost.repeated_before = {0: 99, 1: 98, 2: 4}
    again.counts = [EpochCount(0, 40, 0, trained=40)]
    assert again.replaces(lost, B) == 8
    assert again.repeated_before == {1: 13, 2: 4}
    again._open_epoch()
    assert (again.counts[1].repeated, again.repeated_before) == (13, {2: 4})
    assert not again.repeated_at_least
    lost.repeated_at_least = True
    again.replaces(lost, B)
    assert again.repeated_at_least
