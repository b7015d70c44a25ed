"""Who is in the ring: the decision with plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.ring.next_generation import (
    QUORUM_S,
    SETTLE_S,
    UNHEARD_S,
    Generation,
    MemberState,
    RingTarget,
    decide,
)

pytestmark = pytest.mark.core


def name(index: int) -> ProcessName:
    return ProcessName(Role.WORKER, index)


def member(index: int, generation: int = 1, **more: Any) -> MemberState:
    return MemberState(
        name(index), more.pop("heard_s", 100.0), entered=generation, holds_state=True, **more
    )


def joiner(index: int, since_s: float = 100.0, **more: Any) -> MemberState:
    return MemberState(name(index), 100.0, free_since_s=since_s, **more)


ONE_TO_FOUR = RingTarget(1, 4, coming=0)
PAIR = Generation(1, (name(0), name(1)), 50.0)


def test_nobody_ready_is_no_ring() -> None:
    decision = decide(0.0, None, [], ONE_TO_FOUR)
    assert decision.members == ()
    assert decision.generation == 0


def test_all_that_are_wanted_begin_at_once() -> None:
    decision = decide(100.0, None, [joiner(0), joiner(1)], RingTarget(2, 2, coming=3))
    assert decision.members == (name(0), name(1))
    assert decision.generation == 1


def test_fewer_than_the_fewest_wait_for_those_who_are_coming_but_not_for_ever() -> None:
    wanted = RingTarget(3, 4, coming=2)
    early = decide(101.0, None, [joiner(0)], wanted)
    assert early.members == ()
    assert early.look_again_s == 100.0 + QUORUM_S
    assert "waiting for the others" in early.reason
    late = decide(100.0 + QUORUM_S, None, [joiner(0)], wanted)
    assert late.members == (name(0),)
    assert "though 3 are wanted" in late.reason


def test_fewer_than_the_fewest_begin_at_once_when_nobody_else_is_coming() -> None:
    assert decide(100.0, None, [joiner(0)], RingTarget(3, 4, coming=0)).members == (name(0),)


def test_enough_ready_members_wait_a_moment_for_others_and_say_no_more_than_that() -> None:
    decision = decide(100.1, None, [joiner(0), joiner(1)], RingTarget(1, 3, coming=1))
    assert (decision.members, decision.look_again_s) == ((), 100.0 + SETTLE_S)
    assert decision.reason == "2 workers ready; waiting briefly for others"


def test_joiners_that_come_together_join_together() -> None:
    workers = [member(0), member(1), joiner(2, 100.0)]
    wanted = RingTarget(1, 4, coming=1)
    decision = decide(100.1, PAIR, workers, wanted)
    assert decision.generation == 1
    assert decision.look_again_s == 100.0 + SETTLE_S
    decision = decide(100.2, PAIR, [*workers, joiner(3, 100.2)], RingTarget(1, 4, coming=0))
    assert decision.members == (name(0), name(1), name(2), name(3))
    assert decision.generation == 2


def test_a_joiner_waits_until_the_generation_before_is_complete() -> None:
    workers = [member(0), member(1, generation=0, free_since_s=99.0), joiner(2)]
    assert decide(100.5, PAIR, workers, ONE_TO_FOUR).generation == 1


def test_no_more_than_the_most_are_let_in() -> None:
    workers = [member(0), member(1), joiner(2), joiner(3)]
    assert decide(101.0, PAIR, workers, RingTarget(1, 3, coming=0)).members == (
        name(0),
        name(1),
        name(2),
    )


def test_a_loss_waits_for_nobody() -> None:
    decision = decide(100.0, PAIR, [member(1)], RingTarget(2, 4, coming=2))
    assert decision.members == (name(1),)
    assert decision.generation == 2
    assert "worker-0 ended" in decision.reason


def test_a_member_that_broke_and_one_that_is_heard_of_afterwards_continue_together() -> None:
    broken = member(0, broken=1, free_since_s=100.0)
    assert decide(100.5, PAIR, [broken, member(1, heard_s=99.0)], ONE_TO_FOUR).generation == 1
    again = decide(100.5, PAIR, [broken, member(1, heard_s=100.4)], ONE_TO_FOUR)
    assert again.members == PAIR.members
    assert again.generation == 2


def test_a_member_that_is_not_heard_of_is_left_out_after_its_time() -> None:
    broken = member(0, broken=1, free_since_s=100.0)
    quiet = member(1, heard_s=98.0)
    early = decide(100.5, PAIR, [broken, quiet], ONE_TO_FOUR)
    assert early.generation == 1
    assert early.look_again_s == 98.0 + UNHEARD_S
    assert decide(98.0 + UNHEARD_S, PAIR, [broken, quiet], ONE_TO_FOUR).members == (name(0),)


def test_a_member_whose_connection_broke_is_left_out_at_once() -> None:
    broken = member(0, broken=1, free_since_s=100.0)
    assert decide(100.0, PAIR, [broken, member(1, cut_off=True)], ONE_TO_FOUR).members == (name(0),)


@pytest.mark.parametrize("gone", [{"heard_s": 50.0}, {"cut_off": True}])
def test_the_last_that_has_the_weights_is_never_left_out_for_silence(gone: dict[str, Any]) -> None:
    """Time alone changes nothing then: the cluster, or the worker itself, has to say more."""
    second = Generation(2, (name(1), name(0)), 95.0)
    torn = MemberState(name(0), 99.5, broken=2, free_since_s=99.0)
    quiet = member(1, generation=1, **{"heard_s": 96.0} | gone)
    decision = decide(100.0, second, [torn, quiet], ONE_TO_FOUR)
    assert (decision.generation, decision.members) == (2, second.members)
    assert decide(110.0, second, [torn, quiet], ONE_TO_FOUR) == replace(decision, look_again_s=None)
    trio = Generation(2, (name(1), name(0), name(2)), 95.0)
    assert decide(110.0, trio, [torn, quiet, MemberState(name(2), 50.0)], ONE_TO_FOUR).members == (
        name(1),
        name(0),
    )
    assert decide(
        110.0, trio, [torn, quiet, member(2, generation=2, heard_s=109.0)], ONE_TO_FOUR
    ).members == (name(0), name(2))


def test_a_possibly_dead_member_is_left_out_of_a_due_generation_if_that_costs_no_weights() -> None:
    trio = Generation(2, (name(0), name(1), name(2)), 50.0)
    cut_off, other = member(1, generation=2, cut_off=True), member(2, generation=2)
    assert decide(100.0, trio, [cut_off, other], ONE_TO_FOUR).members == (name(2),)
    without = replace(other, entered=0, holds_state=False)
    assert decide(100.0, trio, [cut_off, without], ONE_TO_FOUR).members == (name(1), name(2))
    assert decide(
        100.0, trio, [replace(cut_off, holds_state=False), without], ONE_TO_FOUR
    ).members == (name(2),)


def test_who_has_waited_longest_comes_in_first_in_whatever_order_they_are_told_of() -> None:
    waiting = [joiner(4, 90.0), joiner(2, 95.0), joiner(3, 90.0)]
    for workers in (waiting, waiting[::-1]):
        assert decide(200.0, None, workers, RingTarget(1, 2, coming=0)).members == (
            name(3),
            name(4),
        )
        joined = decide(200.0, PAIR, [*workers, member(0), member(1)], RingTarget(1, 3, coming=0))
        assert joined.members == (name(0), name(1), name(3))


def test_one_that_leaves_stays_until_somebody_else_has_the_weights() -> None:
    only = Generation(1, (name(0),), 50.0)
    leaver = member(0, leaving=True)
    assert decide(100.0, only, [leaver], RingTarget(1, 1, coming=1)).generation == 1
    taking = decide(100.0, only, [leaver, joiner(1)], RingTarget(1, 1, coming=0))
    assert taking.members == (name(0), name(1))
    second = Generation(2, taking.members, 100.0)
    both = [member(0, generation=2, leaving=True), member(1, generation=2)]
    assert decide(100.1, second, both, RingTarget(1, 1, coming=0)).members == (name(1),)


@st.composite
def anything(draw: Callable[..., Any]) -> tuple[Any, ...] | None:
    workers = []
    for index in range(draw(st.integers(0, 5))):
        free = draw(st.none() | st.floats(0, 100))
        workers.append(
            MemberState(
                name(index),
                draw(st.floats(0, 100)),
                draw(st.integers(0, 3)),
                draw(st.integers(0, 3)),
                free,
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.booleans()),
            )
        )
    members = draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=4))
    present = draw(
        st.none() | st.just(Generation(draw(st.integers(1, 3)), tuple(map(name, members)), 0.0))
    )
    low = draw(st.integers(1, 3))
    return (
        draw(st.floats(100, 200)),
        present,
        workers,
        RingTarget(low, low + draw(st.integers(0, 2)), draw(st.integers(0, 3))),
    )


@given(anything())
def test_whatever_is_known_members_live_generations_grow_and_order_is_kept(
    case: tuple[Any, ...],
) -> None:
    now_s, present, workers, wanted = case
    decision = decide(now_s, present, workers, wanted)
    before = present.number if present else 0
    assert decision.generation in (before, before + 1)
    assert decision.reason
    if decision.look_again_s is not None and decision.generation == before:
        assert decision.look_again_s > now_s
    if decision.generation == before:
        return
    assert decision.members
    known = {worker.name: worker for worker in workers}
    assert set(decision.members) <= known.keys()
    assert len(set(decision.members)) == len(decision.members)
    old = [member for member in (present.members if present else ()) if member in decision.members]
    assert list(decision.members[: len(old)]) == old
    new = decision.members[len(old) :]
    assert all(known[one].free_since_s is not None and not known[one].leaving for one in new)
    assert not new or sum(not known[member].leaving for member in decision.members) <= wanted.high
    holders = [
        worker
        for worker in workers
        if worker.holds_state and present and worker.name in present.members
    ]
    if holders:
        assert any(known[member].holds_state for member in decision.members)
