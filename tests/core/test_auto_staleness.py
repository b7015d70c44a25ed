"""When a worker's own updates overlap its steps."""

from __future__ import annotations

import pytest

from elasticdl.worker.ps.auto_staleness import (
    GROW,
    OVERLAPPED,
    SHRINK,
    WINDOW,
    AutoStaleness,
    Decision,
)

pytestmark = pytest.mark.core


def steps(auto: AutoStaleness, count: int, share: float) -> list[Decision]:
    """Steps of 10 ms, whose pull and push together take this share of it."""
    decisions = []
    for _ in range(count):
        auto.pulled(0.004 * share)
        auto.computed(0.010)
        decision = auto.pushed(0.006 * share)
        decisions += [decision] if decision else []
    return decisions


def test_overlap_begins_only_when_pull_and_push_cost_enough() -> None:
    auto = AutoStaleness(1)
    assert auto.limit == 0
    assert [step.limit for step in steps(auto, 3 * WINDOW, GROW - 0.01)] == [0, 0, 0]
    (decision,) = steps(auto, WINDOW, GROW + 0.01)
    assert (decision.limit, auto.limit) == (1, 1)
    assert decision.share == pytest.approx(GROW + 0.01)


def test_between_the_two_bounds_the_limit_stays_as_it_was() -> None:
    auto = AutoStaleness(1)
    between = (GROW + SHRINK) / 2
    steps(auto, 2 * WINDOW, between)
    assert auto.limit == 0
    steps(auto, WINDOW, GROW + 0.1)
    steps(auto, OVERLAPPED, between)
    assert auto.limit == 0, "it measures without overlap"
    (decision,) = steps(auto, WINDOW, between)
    assert (decision.limit, auto.limit, decision.changed) == (1, 1, False)
    steps(auto, OVERLAPPED, SHRINK - 0.01)
    (decision,) = steps(auto, WINDOW, SHRINK - 0.01)
    assert (decision.limit, auto.limit, decision.changed) == (0, 0, True)


def test_costs_with_overlap_do_not_count() -> None:
    auto = AutoStaleness(1)
    steps(auto, WINDOW, 1.0)
    assert steps(auto, OVERLAPPED - 1, 9.0) == []
    assert auto.limit == 1
    steps(auto, 1, 9.0)
    (decision,) = steps(auto, WINDOW, 0.5)
    assert decision.share == pytest.approx(0.5)


def test_single_slow_pulls_and_steps_decide_nothing() -> None:
    """A wait for a server, and a step that traces."""
    auto = AutoStaleness(1)
    for number in range(WINDOW):
        auto.pulled(10.0 if number < WINDOW // 3 else 0.0001)
        auto.computed(5.0 if number == 0 else 0.010)
        auto.pushed(10.0 if number > WINDOW - WINDOW // 3 else 0.0001)
    assert auto.limit == 0


def test_pulls_of_steps_that_were_dropped_do_not_pile_up() -> None:
    auto = AutoStaleness(1)
    for _ in range(100 * WINDOW):
        auto.pulled(1.0)
    steps(auto, WINDOW, 0.01)
    assert auto.limit == 0


def test_without_a_limit_to_grow_to_it_only_measures() -> None:
    auto = AutoStaleness(0)
    assert [step.limit for step in steps(auto, 3 * WINDOW, 2.0)] == [0, 0, 0]
