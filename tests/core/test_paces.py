"""Deadlines and comparisons come from observed durations."""

from __future__ import annotations

import pytest

from elasticdl.master.core.data.paces import LONGEST_S, SHORTEST_S, Paces
from elasticdl.shard import Task
from tests.core.conftest import worker

pytestmark = pytest.mark.core


def paces(*reports: tuple[int, float, int]) -> Paces:
    """Of reports (worker, seconds, records); the first of each worker compiles."""
    found = Paces()
    for index, seconds, records in reports:
        found.saw(worker(index), Task.TRAINING, seconds, records)
    return found


def test_the_first_report_of_each_worker_is_no_measure() -> None:
    found = paces((0, 100.0, 8), (1, 50.0, 8), (0, 8.0, 8))
    assert found.limit_s(Task.TRAINING, 8, warm=True) == 80.0
    # A worker that has yet to compile may take five times what the slowest took for that.
    assert found.limit_s(Task.TRAINING, 8, warm=False) == 500.0


def test_a_deadline_has_a_floor_and_a_cap() -> None:
    found = paces((0, 1.0, 8), (0, 0.01, 8))
    assert found.limit_s(Task.TRAINING, 8, warm=True) == SHORTEST_S
    found = paces((0, 1.0, 8), (0, 5000.0, 8))
    assert found.limit_s(Task.TRAINING, 8, warm=True) == LONGEST_S


def test_one_report_in_ten_that_took_far_longer_does_not_stretch_the_deadline() -> None:
    usual = [(0, 8.0, 8)] * 19
    found = paces((0, 1.0, 8), *usual, (0, 1000.0, 8))
    assert found.limit_s(Task.TRAINING, 8, warm=True) == 80.0


def test_a_deadline_grows_with_the_records_until_the_next_report() -> None:
    found = paces((0, 1.0, 8), (0, 8.0, 8))
    assert found.limit_s(Task.TRAINING, 80, warm=True) == 800.0


def test_a_worker_is_judged_after_enough_reports_over_enough_time() -> None:
    found = paces((0, 1.0, 8), (0, 10.0, 10), (0, 10.0, 10))
    assert found.of(worker(0), Task.TRAINING) is None
    found.saw(worker(0), Task.TRAINING, 10.0, 10)
    assert found.of(worker(0), Task.TRAINING) == pytest.approx(1.0)


def test_a_worker_that_recovers_is_soon_as_fast_as_its_newest_reports() -> None:
    slow, fast = [(0, 10.0, 1)] * 10, [(0, 10.0, 10)] * 12
    found = paces((0, 1.0, 8), *slow)
    assert found.of(worker(0), Task.TRAINING) == pytest.approx(10.0)
    found = paces((0, 1.0, 8), *slow, *fast)
    assert found.of(worker(0), Task.TRAINING) == pytest.approx(1.0, rel=0.1)


def test_the_usual_pace_is_the_median_of_the_workers() -> None:
    reports = [(index, 1.0, 8) for index in range(3)]
    reports += [(0, 1.0, 1), (1, 2.0, 1), (2, 100.0, 1)]
    found = paces(*reports)
    assert found.usual(Task.TRAINING, map(worker, range(3))) == pytest.approx(2.0)
    found.forget(worker(2))
    assert found.usual(Task.TRAINING, map(worker, range(3))) == pytest.approx(1.5)
