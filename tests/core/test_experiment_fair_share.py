"""How long jobs take that share slots without any delay, against sums by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fair_share import Demand, fair_makespan_s, ideal_makespan_s

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


def test_the_ideal_counts_servers_for_as_long_as_their_job_takes_with_all_workers() -> None:
    # Each job takes 10 s with 4 workers and 2 servers, so one after the other they take 20 s.
    jobs = [Demand(0, 40, 4, 2), Demand(10, 40, 4, 2)]
    assert ideal_makespan_s(jobs, 6) == fair_makespan_s(jobs, 6) == pytest.approx(20)
    # On 8 slots the bound is lower, but no job can use the two more.
    assert ideal_makespan_s(jobs, 8) == pytest.approx(15)


def test_a_job_that_may_use_more_workers_than_fit_has_those_that_fit() -> None:
    assert ideal_makespan_s([Demand(0, 40, 9, 2)], 6) == pytest.approx(10)


DEMANDS = st.builds(
    Demand, st.integers(0, 200), st.integers(1, 5000), st.integers(1, 70), st.integers(0, 9)
)


@given(st.lists(DEMANDS, min_size=1, max_size=10), st.integers(1, 200))
def test_fair_shares_never_take_less_than_the_ideal(jobs: list[Demand], free: int) -> None:
    slots = free + sum(job.servers for job in jobs)
    assert ideal_makespan_s(jobs, slots) <= fair_makespan_s(jobs, slots) * (1 + 1e-6)
