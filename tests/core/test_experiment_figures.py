"""The figures of experiments, from spans of time with known numbers of workers."""

from __future__ import annotations

import math

import pytest

from experiments.figures import JobTimes, Span, figures, jain

pytestmark = pytest.mark.core


def test_jains_index_is_one_for_equal_shares_and_a_share_for_who_has_all() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([6, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 1 and jain([]) == 1


def test_fairness_and_utilisation_are_of_the_contended_time_and_weigh_shares() -> None:
    spans = [
        Span(0, 10, {"a": 4}, 4, contended=False),
        Span(10, 12, {"a": 8, "b": 0}, 8, contended=True),
        Span(12, 18, {"a": 2, "b": 4}, 6, contended=True),
    ]
    times = {"a": JobTimes(0, 0.5, 1, 18), "b": JobTimes(10, 11, 13, 20)}
    found = figures(spans, times, {"a": 1, "b": 2}, slots=8, ideal_s=9, fair_s=10, preemptions=3)
    assert found.jain == pytest.approx((2 * 0.5 + 6 * 1) / 8)
    assert found.utilisation == pytest.approx((2 * 8 + 6 * 6) / (8 * 8))
    assert found.first_worker_s == {"a": 1, "b": 3} and found.waiting_s == 2
    assert (found.master_s, found.training_s) == (0.75, 19.5)
    assert (found.makespan_s, found.preemptions, found.ended) == (20, 3, 2)


def test_fairness_once_settled_leaves_out_the_time_after_a_job_came() -> None:
    spans = [
        Span(0, 12, {"a": 4}, 4, contended=True),
        Span(12, 20, {"a": 4, "b": 0}, 4, contended=True),
        Span(20, 22, {"a": 4, "b": 0}, 4, contended=True),
        Span(22, 30, {"a": 2, "b": 2}, 4, contended=True),
    ]
    times = dict.fromkeys("ab", JobTimes(0, 0, 0, 30))
    found = figures(
        spans, times, {"a": 1, "b": 1}, slots=4, ideal_s=None, fair_s=None, preemptions=0
    )
    assert found.jain_settled == 1
    assert found.jain is not None and found.jain < 1


def test_utilisation_leaves_out_the_time_in_which_workers_give_way() -> None:
    spans = [
        Span(0, 4, {"a": 4}, 8, contended=True, services=4, slots_held=8),
        Span(4, 6, {"a": 2}, 4, contended=True, services=4, yielding=True, slots_held=5),
        Span(6, 8, {"a": 0}, 6, contended=True, services=6, slots_held=7),
    ]
    times = {"a": JobTimes(0, 0.5, 1, math.inf), "late": JobTimes(2, 3, math.inf, math.inf)}
    found = figures(spans, times, {"a": 1}, slots=8, ideal_s=None, fair_s=None, preemptions=2)
    assert found.utilisation == pytest.approx((4 * 8 + 2 * 6) / (6 * 8))
    assert found.utilisation_with_waits == pytest.approx((4 * 8 + 2 * 4 + 2 * 6) / (8 * 8))
    assert found.held == pytest.approx((4 * 8 + 2 * 7) / (6 * 8))
    assert found.makespan_s is None and found.ended == 0
    assert found.first_worker_s == {"a": 1} and found.waiting_s == 1
    assert "ideal_s" not in found.as_row() and found.as_row()["preemptions"] == 2
