"""How long jobs take that share slots without any delay, against sums by hand."""

from __future__ import annotations

import pytest

from experiments.fair_share import Demand, fair_makespan_s

pytestmark = pytest.mark.core


def test_jobs_that_come_together_and_can_use_all_slots_take_their_work_over_the_slots() -> None:
    jobs = [Demand(0, 60, 10, 0), Demand(0, 40, 10, 0)]
    assert fair_makespan_s(jobs, 10) == pytest.approx(10)


def test_a_job_alone_uses_no_more_than_its_limit_before_another_comes_and_after_it_ended() -> None:
    # 13 workers for 10 s, then 12 each; the second job ends with 13.
    jobs = [Demand(0, 13 * 120, 13, 0), Demand(10, 13 * 120, 13, 0)]
    together_s = (13 * 120 - 130) / 12
    alone_s = (13 * 120 - 12 * together_s) / 13
    assert fair_makespan_s(jobs, 24) == pytest.approx(10 + together_s + alone_s)


def test_what_a_small_job_leaves_goes_to_the_others_and_servers_take_slots() -> None:
    # 12 slots less 3 servers: 1 worker for the first job, 4 for each of the others.
    jobs = [Demand(0, 10, 1, 1), Demand(0, 40, 9, 1), Demand(0, 40, 9, 1)]
    assert fair_makespan_s(jobs, 12) == pytest.approx(10)


def test_slots_are_idle_until_a_job_comes() -> None:
    assert fair_makespan_s([Demand(5, 10, 2, 0), Demand(20, 2, 2, 0)], 4) == pytest.approx(21)
