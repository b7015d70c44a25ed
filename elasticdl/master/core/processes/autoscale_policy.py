"""How many workers a job wants, from what its last workers added to its records per second.

The number changes in trials. A trial compares intervals before and after a change of the number of
workers with Welch's t (B. L. Welch, The generalization of "Student's" problem when several
different population variances are involved, Biometrika 34, 1947). The present number is the null
hypothesis: a change stays only if the data show that it pays, and otherwise it is undone.

- Added workers stay if they are shown to add the gain that is needed within `TRIAL_S`.
- Removed workers stay away if they are shown to have added less than that.

A trial is looked at after each interval. So that many looks do not make a chance finding likely, an
early one must show more (P. C. O'Brien and T. R. Fleming, A multiple testing procedure for clinical
trials, Biometrics 35, 1979). Undoing a change early is cheap and needs no such caution.

Time comes from the intervals, so a replay decides the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from elasticdl.flag_values import WorkerRange
from elasticdl.formatting import amount
from elasticdl.master.core.processes.throughput_windows import (
    Interval,
    Pause,
    Window,
    evidence,
    gain,
    gain_words,
    numbers_of,
    percent_words,
    rate_words,
)

LEAST_GAIN = 0.05
"""What a worker must add to the records per second of up to ten workers to stay."""
_LEAST_SHARE = 0.5
"""What it must add of an average worker's part, if that is less; steps of several need it, too."""
CONFIDENCE = 2.0
"""Welch's t that counts as shown: about 97 % on one side."""
FEWEST = 5
"""Intervals that a side of a comparison has at least."""
_ENOUGH = 15
"""Intervals before a trial that are enough, however noisy."""
_QUIET = 0.03
"""Relative error of a rate with which fewer intervals are enough, to try more workers."""
TRIAL_S = 30.0
"""Measured time after which added workers that did not show their gain are given back."""
_FEWER_TRIAL_S = 90.0
"""The same for removed workers: if they add little, a longer trial costs little."""
_UNDISTURBED_S = 300.0
"""A trial with too few undisturbed intervals ends after this time."""
PENDING_S = 600.0
"""Added workers of which none has come after this time are given back: the cluster has no room."""
_WORTH_S = 60.0
"""No trial begins if the job ends sooner than this."""
_RETRY_S, _LONGEST_RETRY_S = 120.0, 1800.0
"""Pause after one more worker was tried in vain, or one fewer without a finding.

It doubles each time.
"""
_REVIEW_S, _LONGEST_REVIEW_S = 1800.0, 7200.0
"""Pause before one fewer is tried; it doubles each time that the worker proves useful."""
_DOUBT_S = 300.0
"""The first such pause after one worker added less than twice what was needed."""
_SHIFT = 0.25
"""A change of the rate of the same workers by more than this ends the pause."""
MOST_CHANGES, CHANGES_S = 20, 600.0
"""Changes of the number of workers in so many seconds."""


class Kind(StrEnum):
    """What a decision does."""

    TRY_MORE = "try_more"
    KEEP = "keep"
    GIVE_BACK = "give_back"
    TRY_FEWER = "try_fewer"
    STAY_FEWER = "stay_fewer"
    RESTORE = "restore"
    FOLLOW = "follow"
    """The user's range does not contain the number any more."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of workers to have from now on, and why."""

    kind: Kind
    workers: int
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Step:
    """How many workers the next trial adds or removes: doubled until a trial fails, then halved."""

    size: int = 1
    bisects: bool = False
    """The wanted number lies between the present one and one that failed."""

    def paid(self, size: int) -> None:
        """A trial of this size changed the number for good."""
        self.size = max(1, size // 2) if self.bisects else 2 * size

    def failed(self, size: int) -> None:
        """A trial of this size was undone."""
        self.size, self.bisects = max(1, size // 2), size > 1


@dataclass(slots=True)
class _Trial:
    """A change of the number of workers that is to show its worth."""

    before: Window
    waits_s: float
    """Since when the job waits for the change; of interest until it took place."""
    after: Window | None = None
    changed_s: float | None = None
    """When added workers trained first, or the removed ones had left; None before that."""


def needed_gain(workers: int, more: int) -> float:
    """The relative gain that `more` workers beside `workers` must show to stay."""
    share = _LEAST_SHARE * more / workers
    return min(LEAST_GAIN, share) if more == 1 else share


def _needed_to_return(workers: int, fewer: int) -> float:
    """The relative gain of `fewer` workers over `workers` that they return for."""
    return fewer * min(LEAST_GAIN, _LEAST_SHARE / workers)


def _bound(after: Window, trial_s: float) -> float:
    """The t that makes a change final after so much of a trial, by O'Brien and Fleming."""
    return CONFIDENCE / math.sqrt(min(1.0, after.seconds / trial_s))


@final
class AutoscalePolicy:
    """Decides how many workers a job has. Give it the intervals of the job in order."""

    def __init__(self, limits: WorkerRange) -> None:
        self._low, self._high = limits.low, limits.high
        self.wanted = limits.low
        self._base = Window(0)
        """Intervals with the present workers, while there is no trial."""
        self._trial: _Trial | None = None
        self._more, self._fewer = _Step(), _Step()
        self._in_vain = self._useful = self._unclear = 0
        """Trials in a row: of one more in vain, of one fewer that proved useful, or nothing."""
        self._more_at_s, self._fewer_at_s = 0.0, _REVIEW_S
        self._lost_s = 0.0
        """What the change of the newest trial cost, in seconds of work."""
        self._usual: tuple[int, float] | None = None
        """The workers, and their rate when they were first measured after the last change."""
        self._changes: deque[float] = deque(maxlen=MOST_CHANGES)

    def observe(self, interval: Interval, limits: WorkerRange) -> Decision | None:
        """Take in the next interval; return a decision if one is due."""
        if (limits.low, limits.high) != (self._low, self._high) and (
            decision := self._follow(limits, interval.at_s)
        ):
            return decision
        trial = self._trial
        if trial is not None and self._lasts_too_long(trial, interval):
            return self._undo(trial, interval.at_s, "too few undisturbed intervals to measure it")
        if trial is not None and self._stays_away(trial, interval.at_s):
            return self._undo(trial, interval.at_s, f"none came within {PENDING_S:.0f} s")
        if interval.pause is not None:
            self._count_cost(interval)
            return None
        if trial is None:
            return self._settled(interval)
        return self._in_trial(trial, interval)

    # the range

    def _follow(self, limits: WorkerRange, at_s: float) -> Decision | None:
        """Take in another range of the user; what failed in the old one may be tried again."""
        self._low, self._high = limits.low, limits.high
        self._more, self._in_vain, self._more_at_s = _Step(), 0, at_s
        workers, trial = _within(limits, self.wanted), self._trial
        if workers == self.wanted:
            if trial is not None and _within(limits, trial.before.workers) != trial.before.workers:
                self._trial, self._base = None, Window(0)
            return None
        self._trial, self._base = None, Window(0)
        text = f"autoscale: {amount(workers, 'worker')}, to stay within {limits.low}:{limits.high}"
        return self._change(Kind.FOLLOW, workers, at_s, text, {})

    # between trials

    def _settled(self, interval: Interval) -> Decision | None:
        if interval.workers != self._base.workers:
            self._base = Window(interval.workers)
        base, at_s = self._base, interval.at_s
        base.add(interval)
        # With fewer than wanted the cluster is the limit, and more would not come.
        if interval.workers != self.wanted or base.count < FEWEST or base.rate <= 0.0:
            return None
        if self._has_shifted(at_s):
            self._base = Window(base.workers)
            return None
        rest_s = interval.left / base.rate
        if rest_s < max(_WORTH_S, self._repaid_s) or not self._may_change(at_s):
            return None
        low, high, enough = self._low, self._high, base.count >= _ENOUGH
        quiet = enough or base.error <= _QUIET * base.rate
        if self.wanted < high and at_s >= self._more_at_s and quiet:
            return self._begin(min(high, self.wanted + self._more.size), at_s)
        if self.wanted > low and at_s >= self._fewer_at_s and enough:
            return self._begin(max(low, self.wanted - self._fewer.size), at_s)
        return None

    def _has_shifted(self, at_s: float) -> bool:
        """Whether the same workers have become much faster or slower, which ends a pause."""
        base, newest = self._base, self._base.newest(2 * FEWEST)
        if newest is None:
            return False
        if self._usual is None or self._usual[0] != base.workers:
            self._usual = base.workers, base.rate
            return False
        before = self._usual[1]
        if abs(newest.rate - before) <= max(_SHIFT * before, 2.0 * CONFIDENCE * newest.error):
            return False
        self._usual = None
        if newest.rate > before:
            self._more_at_s = min(self._more_at_s, at_s)
        else:
            # Something that they share may limit them now, and then fewer are enough.
            self._fewer = _Step(max(1, base.workers // 4))
            self._fewer_at_s = min(self._fewer_at_s, at_s)
        return True

    def _may_change(self, at_s: float) -> bool:
        """Whether a trial may begin: it may be two changes."""
        return sum(one > at_s - CHANGES_S for one in self._changes) <= MOST_CHANGES - 2

    def _begin(self, workers: int, at_s: float) -> Decision:
        base, self._lost_s = self._base, 0.0
        self._trial = _Trial(base, at_s)
        kind = Kind.TRY_MORE if workers > base.workers else Kind.TRY_FEWER
        text = (
            f"autoscale: trying {amount(workers, 'worker')}: {amount(base.workers, 'worker')}"
            f" {rate_words(base)}"
        )
        return self._change(kind, workers, at_s, text, numbers_of(base))

    # in a trial

    def _lasts_too_long(self, trial: _Trial, interval: Interval) -> bool:
        """Whether the change took place too long ago for a trial without a verdict."""
        if interval.pause is not Pause.MEMBERS:
            if not self._has_changed(trial, interval.workers):
                if trial.changed_s is not None:
                    trial.changed_s, trial.waits_s = None, interval.at_s
            elif trial.changed_s is None:
                trial.changed_s = interval.at_s
        return trial.changed_s is not None and interval.at_s - trial.changed_s > _UNDISTURBED_S

    def _stays_away(self, trial: _Trial, at_s: float) -> bool:
        """Whether none of the added workers came for too long."""
        waits = trial.changed_s is None and self.wanted > trial.before.workers
        return waits and at_s - trial.waits_s > PENDING_S

    def _has_changed(self, trial: _Trial, workers: int) -> bool:
        """Whether so many workers are those of the trial, or some of them."""
        before = trial.before.workers
        return workers > before if self.wanted > before else workers == self.wanted

    def _count_cost(self, interval: Interval) -> None:
        """Add the work that a change costs, for example while a ring forms anew."""
        if interval.pause is not Pause.MEMBERS or self._trial is None:
            return
        rate = self._trial.before.rate
        self._lost_s += max(0.0, interval.seconds - interval.records / rate) if rate else 0.0

    @property
    def _repaid_s(self) -> float:
        """How long the least gain takes to repay a trial. The way back costs as much again."""
        return min(_LONGEST_RETRY_S, 2.0 * self._lost_s / LEAST_GAIN)

    def _in_trial(self, trial: _Trial, interval: Interval) -> Decision | None:
        before, workers = trial.before, interval.workers
        if workers == before.workers:
            # The change has not happened yet, or was undone by the cluster.
            before.add(interval)
        if not self._has_changed(trial, workers):
            trial.after = None
            return None
        if trial.after is None or trial.after.workers != workers:
            # Those that came are judged without those that are still pending.
            trial.after = Window(workers)
        trial.after.add(interval)
        if trial.after.count < FEWEST:
            return None
        judge = self._judge_more if self.wanted > before.workers else self._judge_fewer
        return judge(trial, trial.after, interval.at_s)

    def _judge_more(self, trial: _Trial, after: Window, at_s: float) -> Decision | None:
        before, added = trial.before, after.workers - trial.before.workers
        need = needed_gain(before.workers, added)
        shown = evidence(before, after, need)
        if shown >= _bound(after, TRIAL_S):
            return self._keep(trial, after, at_s, need)
        if shown <= -CONFIDENCE:
            return self._undo(trial, at_s, f"less than the {percent_words(need)} that it needs")
        if after.seconds >= TRIAL_S:
            return self._undo(trial, at_s, f"not clearly the {percent_words(need)} that it needs")
        return None

    def _keep(self, trial: _Trial, after: Window, at_s: float, need: float) -> Decision:
        before, added = trial.before, after.workers - trial.before.workers
        self._more.paid(added)
        self._in_vain, self._more_at_s = 0, at_s
        self._fewer, self._useful, self._unclear = _Step(), 0, 0
        doubtful = added == 1 and gain(before, after) < 2.0 * need
        self._fewer_at_s = at_s + (_DOUBT_S if doubtful else _REVIEW_S)
        if after.workers < self.wanted:
            # Others of this trial are pending: they are judged when they come.
            self._trial = _Trial(after, at_s)
        else:
            self._trial, self._base = None, after
        text = (
            f"autoscale: keeping {amount(after.workers, 'worker')}: {gain_words(before, after)};"
            f" at least {percent_words(need)} is needed"
        )
        return Decision(Kind.KEEP, self.wanted, text, numbers_of(before, after))

    def _judge_fewer(self, trial: _Trial, after: Window, at_s: float) -> Decision | None:
        before, removed = trial.before, trial.before.workers - after.workers
        need = _needed_to_return(after.workers, removed)
        shown = evidence(after, before, need)
        if shown <= -_bound(after, _FEWER_TRIAL_S):
            return self._stay_fewer(trial, after, at_s, need)
        if shown >= CONFIDENCE:
            self._useful, self._unclear = self._useful + 1, 0
            return self._undo(trial, at_s, f"more than the {percent_words(need)} that it needs")
        if after.seconds >= _FEWER_TRIAL_S:
            self._unclear += 1
            return self._undo(trial, at_s, f"not clearly less than {percent_words(need)}")
        return None

    def _stay_fewer(self, trial: _Trial, after: Window, at_s: float, need: float) -> Decision:
        removed = trial.before.workers - after.workers
        self._fewer.paid(removed)
        self._useful, self._unclear, self._fewer_at_s = 0, 0, at_s
        # One more was just shown to add nothing.
        self._more, self._in_vain = _Step(), 1
        self._more_at_s = at_s + self._pause_s(_RETRY_S, 0, _LONGEST_RETRY_S)
        text = (
            f"autoscale: staying at {amount(after.workers, 'worker')}:"
            f" {gain_words(after, trial.before)}, less than {percent_words(need)}"
        )
        numbers = numbers_of(trial.before, after)
        self._trial, self._base = None, after
        return Decision(Kind.STAY_FEWER, self.wanted, text, numbers)

    def _undo(self, trial: _Trial, at_s: float, why: str) -> Decision:
        """Return to the number of workers before the trial."""
        before, after = trial.before, trial.after or Window(self.wanted)
        self._trial, self._base = None, Window(before.workers)
        if self.wanted > before.workers:
            added, found = self.wanted - before.workers, gain_words(before, after)
            text = f"autoscale: giving back {amount(added, 'worker')}: {found}, {why}"
            # If none came, fewer would not have come either.
            came = 1 if trial.changed_s is None else after.workers - before.workers
            self._put_off_more(came, at_s)
            kind = Kind.GIVE_BACK
        else:
            found = gain_words(after, before)
            text = f"autoscale: back to {amount(before.workers, 'worker')}: {found}, {why}"
            self._put_off_fewer(before.workers - after.workers, at_s)
            kind = Kind.RESTORE
        return self._change(kind, before.workers, at_s, text, numbers_of(before, after))

    def _put_off_more(self, added: int, at_s: float) -> None:
        self._more.failed(added)
        if added > 1:
            # Half as many may be worth it: the job may be limited somewhere between.
            self._more_at_s = at_s
            return
        self._more_at_s = at_s + self._pause_s(_RETRY_S, self._in_vain, _LONGEST_RETRY_S)
        self._in_vain += 1

    def _put_off_fewer(self, removed: int, at_s: float) -> None:
        self._fewer.failed(removed)
        if removed > 1:
            self._fewer_at_s = at_s
            return
        if self._unclear:
            pause_s = self._pause_s(_RETRY_S, self._unclear - 1, _LONGEST_RETRY_S)
        else:
            pause_s = self._pause_s(_REVIEW_S, self._useful, _LONGEST_REVIEW_S)
        self._fewer_at_s = at_s + pause_s

    def _pause_s(self, first_s: float, times: int, longest_s: float) -> float:
        """The pause before the next trial: trials may cost a twentieth of the time at most."""
        return max(min(longest_s, first_s * 2.0 ** min(times, 10)), self._repaid_s)

    def _change(
        self, kind: Kind, workers: int, at_s: float, text: str, numbers: Mapping[str, float]
    ) -> Decision:
        self.wanted = workers
        self._usual = None
        self._changes.append(at_s)
        return Decision(kind, workers, text, numbers)


def _within(limits: WorkerRange, workers: int) -> int:
    return min(limits.high, max(limits.low, workers))
