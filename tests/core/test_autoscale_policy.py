"""The number of workers that a job settles at, for jobs that scale well, badly, or not at all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from elasticdl.flag_values import WorkerRange
from elasticdl.master.core.processes.autoscale_decision import Decision, Kind
from elasticdl.master.core.processes.autoscale_gains import LEAST_GAIN, needed_gain
from elasticdl.master.core.processes.autoscale_policy import (
    CHANGES_S,
    FEWEST,
    MOST_CHANGES,
    PENDING_S,
    TRIAL_S,
    AutoscalePolicy,
)
from elasticdl.master.core.processes.throughput_windows import Interval, Pause
from tests.present import present

pytestmark = pytest.mark.core

Curve = Callable[[int], float]
"""Records per second of so many workers."""
LENGTH_S = 2.0
AHEAD = 10**9


def linear(workers: int) -> float:
    return 1000.0 * workers


def limited_to(most: int) -> Curve:
    """Something that all workers share holds no more than this many."""
    return lambda workers: 1000.0 * min(workers, most)


def falling_after(most: int) -> Curve:
    """Each worker beyond this many takes more from the others than it adds."""
    return lambda workers: 1000.0 * (min(workers, most) - 0.15 * max(0, workers - most))


def scaled(factor: float, curve: Curve) -> Curve:
    return lambda workers: factor * curve(workers)


def root(workers: int) -> float:
    return float(1000.0 * workers**0.5)


@dataclass
class Job:
    """A job of one policy: its workers need a while to come and to leave."""

    curve: Curve
    low: int = 1
    high: int = 8
    noise: float = 0.05
    seed: int = 0
    start_s: float = 8.0
    leave_s: float = 2.0
    granted: int = 10**6
    """Workers that the cluster has room for."""
    cost: float = 0.3
    """Share of the rate that is lost while workers come or leave."""
    evaluates: tuple[float, float] | None = None
    """Every so many seconds, for so long."""
    left: int = AHEAD
    at_s: float = 0.0
    at_work: int = 0
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    joined: dict[int, float] = field(default_factory=dict)
    """When that many workers trained first since the last decision."""

    def __post_init__(self) -> None:
        self.limits = WorkerRange(low=self.low, high=self.high)
        self.policy = AutoscalePolicy(self.limits, "worker", (Pause.MEMBERS,))
        self.random = random.Random(self.seed)
        self.at_work = self.low
        self.moves_at_s = 0.0
        self.settles = True

    def run(self, seconds: float) -> Job:
        end_s = self.at_s + seconds
        while self.at_s < end_s:
            self.at_s += LENGTH_S
            self._interval()
        return self

    def _interval(self) -> None:
        target = min(self.policy.wanted, self.granted)
        pause, share = None, 1.0
        if target != self.at_work:
            pause, share = Pause.MEMBERS, 1.0 - self.cost
            if self.at_s >= self.moves_at_s:
                self.at_work = target
                self.joined.setdefault(target, self.at_s)
        elif self.evaluates and self.at_s % self.evaluates[0] < self.evaluates[1]:
            pause, share = Pause.EVALUATION, 0.3
        elif self.settles:
            pause = Pause.SETTLING
        self.settles = pause not in (None, Pause.SETTLING)
        rate = max(0.0, self.curve(self.at_work) * share * self.random.gauss(1.0, self.noise))
        records = round(rate * LENGTH_S)
        self.left = max(0, self.left - records)
        interval = Interval(self.at_s, LENGTH_S, records, self.at_work, self.left, pause)
        decision = self.policy.observe(interval, self.limits)
        assert self.limits.low <= self.policy.wanted <= self.limits.high
        if decision is not None:
            assert decision.processes == self.policy.wanted
            self.decisions.append((self.at_s, decision))
            self.joined.clear()
            more = decision.processes > self.at_work
            self.moves_at_s = self.at_s + (self.start_s if more else self.leave_s)

    @property
    def changes(self) -> list[tuple[float, Decision]]:
        confirmed = (Kind.KEEP, Kind.STAY_FEWER)
        return [decision for decision in self.decisions if decision[1].kind not in confirmed]

    @property
    def settled(self) -> int:
        """The number that the newest finished trial ended with."""
        open_kinds = (Kind.TRY_MORE, Kind.TRY_FEWER)
        done = [one.processes for _, one in self.decisions if one.kind not in open_kinds]
        return done[-1] if done else self.low

    def reached_s(self, workers: int) -> float:
        """When the number was first confirmed."""
        return next(at_s for at_s, one in self.decisions if one.processes == workers)


SEEDS = range(10)
"""Jobs that differ by chance only."""


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1, 0.2])
def test_a_job_that_scales_takes_all_the_workers_that_it_may_have(noise: float) -> None:
    jobs = [Job(linear, high=16, noise=noise, seed=seed).run(400.0) for seed in SEEDS]
    whole = [job for job in jobs if job.settled == 16]
    assert all(job.reached_s(16) < 240.0 and len(job.changes) == 4 for job in whole)
    assert len(whole) >= len(jobs) - (noise == 0.2), "one in ten may not be sure enough"


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_a_job_with_a_limit_settles_at_it(most: int, noise: float) -> None:
    jobs = [Job(limited_to(most), high=16, noise=noise, seed=seed).run(420.0) for seed in SEEDS]
    assert all(abs(job.settled - most) <= 1 and len(job.changes) <= 13 for job in jobs)
    assert sum(job.settled != most for job in jobs) <= (1 if noise else 0), "one in ten"


@pytest.mark.parametrize("curve", [limited_to(2), falling_after(2)])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_a_worker_that_adds_nothing_is_given_back_within_a_minute(
    curve: Curve, noise: float
) -> None:
    late = [job for seed in range(20) if (job := Job(curve, noise=noise, seed=seed)) and _late(job)]
    assert len(late) <= (1 if noise < 0.2 else 3), "by chance one may look useful"


def _late(job: Job) -> bool:
    """Whether a third worker was kept, or stayed for more than a minute."""
    for _ in range(300):
        job.run(LENGTH_S)
        if job.at_work > 2 and job.at_s - job.joined.get(job.at_work, job.at_s) > 60.0:
            return True
        if any(one.kind is Kind.KEEP and one.processes > 2 for _, one in job.decisions):
            return True
    return not job.decisions


def test_a_job_that_gets_slower_with_more_workers_settles_at_its_best() -> None:
    for seed in SEEDS:
        assert Job(falling_after(3), noise=0.1, seed=seed).run(300.0).settled == 3


def test_every_further_worker_of_a_job_that_scales_badly_has_to_add_five_percent() -> None:
    job = Job(root, high=30, noise=0.01).run(1200.0)
    # The square roots of 10 and 11 differ by 4.9 %, of 8 and 9 by 6.1 %.
    assert 8 <= job.settled <= 10
    kept = [one.numbers["gain"] for _, one in job.decisions if one.kind is Kind.KEEP]
    assert min(kept) > LEAST_GAIN


def test_one_slow_worker_does_not_keep_the_others_from_coming() -> None:
    for seed in SEEDS:
        job = Job(lambda n: 1000.0 * (n if n < 3 else n - 0.5), noise=0.05, seed=seed).run(400.0)
        assert job.settled == 8, [one.text for _, one in job.decisions]


def test_an_evaluation_is_read_as_neither_gain_nor_loss() -> None:
    jobs = [
        Job(limited_to(3), noise=0.05, seed=seed, evaluates=(40.0, 12.0)).run(600.0)
        for seed in SEEDS
    ]
    assert sum(job.settled != 3 for job in jobs) <= 1


def test_a_worker_that_does_not_come_is_not_judged() -> None:
    job = Job(linear, granted=1).run(PENDING_S)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE]
    job.granted = 2
    job.run(60.0)
    assert [one.kind for _, one in job.decisions][1] is Kind.KEEP


def test_those_that_came_are_judged_without_those_that_are_pending() -> None:
    job = Job(limited_to(8), granted=3).run(300.0)
    kinds = [(one.kind, one.processes) for _, one in job.decisions]
    assert kinds == [(Kind.TRY_MORE, 2), (Kind.KEEP, 2), (Kind.TRY_MORE, 4), (Kind.KEEP, 4)]
    job.granted = 4
    job.run(60.0)
    assert job.decisions[4][1].kind is Kind.KEEP
    assert job.decisions[4][1].numbers["after"] == 4


def test_removed_workers_that_do_not_leave_end_a_trial() -> None:
    """Where a number cannot be lowered, no trial waits for ever."""
    job = Job(limited_to(1), low=1, high=2, noise=0.0)
    job.policy.settle(2, 0.0)
    job.at_work = 2
    while not job.decisions:
        job.run(LENGTH_S)
    assert job.decisions[0][1].kind is Kind.TRY_FEWER
    job.moves_at_s = math.inf
    job.run(PENDING_S + 2 * LENGTH_S)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_FEWER, Kind.RESTORE]
    assert "none left within 600 s" in job.decisions[1][1].text


def test_a_change_that_is_given_up_ends_its_trial_and_is_tried_later() -> None:
    job = Job(linear, high=2, noise=0.0)
    while not job.decisions:
        job.run(LENGTH_S)
    job.policy.settle(1, job.at_s)
    assert not job.policy.in_trial and job.policy.wanted == 1
    job.run(100.0)
    assert len(job.decisions) == 1, "not at once"
    job.run(60.0)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE, Kind.TRY_MORE, Kind.KEEP]


def test_workers_that_do_not_come_are_given_back_and_tried_again_later() -> None:
    job = Job(linear, low=2, granted=2).run(PENDING_S)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE]
    job.run(100.0)
    given_back = job.decisions[1][1]
    assert (given_back.kind, given_back.processes) == (Kind.GIVE_BACK, 2)
    assert "none came within 600 s" in given_back.text
    job.run(PENDING_S)
    assert [one.kind for _, one in job.decisions[2:]] == [Kind.TRY_MORE], "after a pause"
    job.granted = 8
    job.run(300.0)
    assert job.settled == 8


def test_a_preempted_worker_is_no_loss_and_its_successor_no_gain() -> None:
    job = Job(linear, low=1, high=4).run(200.0)
    assert job.settled == 4
    told = len(job.decisions)
    for _ in range(5):
        job.granted = 2
        job.run(30.0)
        job.granted = 4
        job.run(30.0)
    assert len(job.decisions) == told


def test_a_worker_that_is_preempted_in_its_trial_is_judged_when_it_is_back() -> None:
    job = Job(limited_to(1))
    while job.at_work < 2:
        job.run(LENGTH_S)
    job.run(6.0)
    job.granted = 1
    job.run(120.0)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE]
    job.granted = 2
    job.run(70.0)
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE, Kind.GIVE_BACK]


def test_a_trial_that_cannot_be_measured_ends() -> None:
    job = Job(linear)
    while job.at_work < 2:
        job.run(LENGTH_S)
    job.evaluates = (1e9, 1e9)
    job.run(310.0)
    assert job.decisions[-1][1].kind is Kind.GIVE_BACK
    assert "too few undisturbed intervals" in job.decisions[-1][1].text


def test_no_trial_begins_near_the_end_of_the_data() -> None:
    assert not Job(linear, left=70_000).run(300.0).decisions
    assert Job(linear, left=200_000).run(300.0).decisions


def test_a_trial_that_costs_much_needs_a_longer_rest_of_the_job() -> None:
    """A ring that stands still while members come loses all of that time."""
    rest = 400 * 1000
    cheap = Job(limited_to(1), left=rest, cost=0.0).run(390.0)
    dear = Job(limited_to(1), left=rest, cost=1.0, start_s=20.0).run(390.0)
    assert len(cheap.changes) > len(dear.changes) == 2


def test_a_gain_that_was_hardly_shown_is_checked_again_soon() -> None:
    job = Job(lambda n: 1000.0 * n**0.1, high=2, noise=0.01).run(120.0)
    assert (job.settled, job.decisions[-1][1].kind) == (2, Kind.KEEP)
    assert job.decisions[-1][1].numbers["gain"] < 0.1
    job.curve = limited_to(1)
    job.run(500.0)
    assert job.settled == 1


def test_tries_without_success_become_rarer() -> None:
    job = Job(limited_to(1), noise=0.05).run(4 * 3600.0)
    tries = [at_s for at_s, one in job.decisions if one.kind is Kind.TRY_MORE]
    pauses = [later - before for before, later in pairwise(tries)]
    assert pauses == sorted(pauses) or pauses[-1] >= 1800.0
    assert 6 <= len(tries) <= 12


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_workers_are_given_back_when_something_else_begins_to_limit_the_job(noise: float) -> None:
    jobs = [Job(linear, noise=noise, seed=seed).run(300.0) for seed in SEEDS]
    for job in jobs:
        assert job.settled == 8
        job.curve = limited_to(3)
        job.run(600.0 if noise < 0.1 else 1200.0)
    assert sum(job.settled > 4 for job in jobs) <= (0 if noise < 0.1 else 2)


def test_more_are_tried_soon_after_the_same_workers_became_faster() -> None:
    job = Job(limited_to(2), high=4).run(1500.0)
    assert job.settled == 2
    job.curve = lambda workers: 3000.0 * workers
    job.run(240.0)
    assert job.settled == 4


def test_a_worker_that_proves_useful_returns() -> None:
    job = Job(linear, high=4, noise=0.05).run(2200.0)
    kinds = [one.kind for _, one in job.decisions]
    assert kinds[-2:] == [Kind.TRY_FEWER, Kind.RESTORE]
    assert job.policy.wanted == 4


def test_another_range_is_followed_at_once_and_what_failed_may_be_tried_again() -> None:
    job = Job(limited_to(3), high=6).run(400.0)
    assert job.settled == 3
    job.limits = WorkerRange(low=1, high=2)
    job.run(LENGTH_S)
    assert (job.decisions[-1][1].kind, job.policy.wanted) == (Kind.FOLLOW, 2)
    job.limits = WorkerRange(low=5, high=8)
    job.run(LENGTH_S)
    assert (job.decisions[-1][1].kind, job.policy.wanted) == (Kind.FOLLOW, 5)
    job.curve = linear
    job.run(120.0)
    assert job.settled == 8


def test_a_trial_whose_way_back_is_out_of_the_range_is_over() -> None:
    job = Job(limited_to(1))
    while job.at_work < 2:
        job.run(LENGTH_S)
    job.limits = WorkerRange(low=2, high=2)
    job.run(300.0)
    assert job.policy.wanted == 2
    assert [one.kind for _, one in job.decisions] == [Kind.TRY_MORE]


def test_a_fixed_number_is_kept() -> None:
    assert not Job(linear, low=3, high=3, noise=0.2).run(7200.0).decisions


def test_whatever_happens_the_number_changes_at_most_so_often() -> None:
    for seed in range(8):
        draw = random.Random(seed)
        job = Job(linear, high=draw.choice([2, 5, 40]), noise=0.3, seed=seed, start_s=0.0)
        for _ in range(50):
            most, slope = draw.randint(1, 40), draw.uniform(0.2, 5.0)
            job.curve = scaled(slope, falling_after(most))
            job.granted = draw.choice([10**6, draw.randint(1, 40)])
            job.run(draw.uniform(5.0, 200.0))
        times = [at_s for at_s, _ in job.changes]
        for first, last in zip(times, times[MOST_CHANGES:], strict=False):
            assert last - first > CHANGES_S


@pytest.mark.parametrize(
    ("workers", "more", "need"),
    [(1, 1, 0.05), (10, 1, 0.05), (20, 1, 0.025), (2, 2, 0.5), (4, 4, 0.5), (100, 10, 0.05)],
)
def test_the_needed_gain(workers: int, more: int, need: float) -> None:
    assert needed_gain(workers, more) == pytest.approx(need)


def test_a_decision_says_what_was_measured() -> None:
    job = Job(limited_to(1), noise=0.02).run(100.0)
    first, second = (one for _, one in job.decisions)
    assert first.text.startswith("autoscale: trying 2 workers: 1 worker does ")
    assert second.text.startswith("autoscale: giving back 1 worker: the last one added ")
    assert "less than the 5 % that it needs" in second.text
    assert abs(second.numbers["gain"]) < LEAST_GAIN
    assert second.numbers["before"] == 1
    assert second.numbers["after"] == 2
    assert present(second.numbers["after_error"]) > 0


def test_a_verdict_needs_some_intervals_and_does_not_take_all() -> None:
    job = Job(linear, noise=0.01).run(60.0)
    (tried_s, _), (kept_s, kept) = job.decisions[:2]
    assert kept.kind is Kind.KEEP
    assert FEWEST * LENGTH_S <= kept_s - tried_s - job.start_s < TRIAL_S


def test_a_policy_says_why_it_waits() -> None:
    limits, at_s = WorkerRange(low=1, high=4), 0.0
    policy = AutoscalePolicy(limits, "worker", ())

    def measure(processes: int) -> str:
        nonlocal at_s
        at_s += 2.0
        policy.observe(Interval(at_s, 2.0, 2000, processes, 10**9), limits)
        return policy.holds_back

    assert measure(1) == "1 worker: being measured"
    policy.forget(at_s)
    assert policy.holds_back == "1 worker: not measured yet"
    while not policy.in_trial:
        assert at_s < 60.0
        measure(1)
    while policy.in_trial:
        assert at_s < 2 * PENDING_S
        measure(1)
    assert policy.holds_back == "1 worker: not measured yet"
    for _ in range(FEWEST):
        why = measure(1)
    assert why == "1 worker: one more was tried and did not start, so the next trial is later"
    policy.settle(3, at_s)
    assert policy.holds_back == "3 workers: not measured yet"
    for _ in range(30):
        why = measure(2)
    assert why == "2 of 3 wanted workers run, so no more are tried"
