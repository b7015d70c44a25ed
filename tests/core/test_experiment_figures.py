"""The figures of experiments, from spans of time with known numbers of workers."""

from __future__ import annotations

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
    times = {"a": JobTimes(0, 1, 18), "b": JobTimes(10, 13, 20)}
    found = figures(spans, times, {"a": 1, "b": 2}, slots=8, ideal_s=9, preemptions=3)
    assert found.jain == pytest.approx((2 * 0.5 + 6 * 1) / 8)
    assert found.utilisation == pytest.approx((2 * 8 + 6 * 6) / (8 * 8))
    assert found.first_worker_s == {"a": 1, "b": 3} and found.waiting_s == 2
    assert (found.makespan_s, found.preemptions) == (20, 3)
