"""How many workers or servers a job wants, from what the last ones added to its records per second.

The number changes in trials. A trial compares intervals before and after a change of the number of
processes with Welch's t (B. L. Welch, The generalization of "Student's" problem when several
different population variances are involved, Biometrika 34, 1947). The present number is the null
hypothesis: a change stays only if the data show that it pays, and otherwise it is undone.

- Added processes stay if they are shown to add the gain that is needed within `TRIAL_S`.
- Removed processes stay away if they are shown to have added less than that.
- If the intervals say how long workers waited for these processes, only numbers that may pay are
  tried: more processes can save no more than that time.

A trial is looked at after each interval. So that many looks do not make a chance finding likely, an
early one must show more (P. C. O'Brien and T. R. Fleming, A multiple testing procedure for clinical
trials, Biometrics 35, 1979). Undoing a change early is cheap and needs no such caution.

Time comes from the intervals, so a replay decides the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from elasticdl.flag_values import CountRange
from elasticdl.formatting import amount
from elasticdl.master.core.processes.autoscale_decision import Decision, Kind
from elasticdl.master.core.processes.autoscale_gains import (
    CONFIDENCE,
    LEAST_GAIN,
    bound,
    hopeful,
    may_gain,
    may_lose_little,
    needed_gain,
    needed_to_return,
)
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

FEWEST = 5
"""Intervals that a side of a comparison has at least."""
_ENOUGH = 15
"""Intervals before a trial that are enough, however noisy."""
_QUIET = 0.03
"""Relative error of a rate with which fewer intervals are enough, to try more."""
TRIAL_S = 30.0
"""Measured time after which added processes that did not show their gain are given back."""
_FEWER_TRIAL_S = 90.0
"""The same for removed ones: if they add little, a longer trial costs little."""
_UNDISTURBED_S = 300.0
"""A trial with too few undisturbed intervals ends after this time."""
PENDING_S = 600.0
"""Added processes of which none came in this time are given back: the cluster has no room."""
_WORTH_S = 60.0
"""No trial begins if the job ends sooner than this."""
_RETRY_S, _LONGEST_RETRY_S = 120.0, 1800.0
"""Pause after one more process was tried in vain, or one fewer without a finding.

It doubles each time.
"""
_REVIEW_S, _LONGEST_REVIEW_S = 1800.0, 7200.0
"""Pause before one fewer is tried; it doubles each time that the process proves useful."""
_DOUBT_S = 300.0
"""The first such pause after one process added less than twice what was needed."""
_SHIFT = 0.25
"""A change of the rate of the same processes by more than this ends the pause."""
MOST_CHANGES, CHANGES_S = 20, 600.0
"""Changes of the number in so many seconds."""


@dataclass(slots=True)
class _Step:
    """How many processes the next trial adds or removes: doubled until one fails, then halved."""

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
    """A change of the number of processes that is to show its worth."""

    before: Window
    waits_s: float
    """Since when the job waits for the change; of interest until it took place."""
    after: Window | None = None
    changed_s: float | None = None
    """When added processes worked first, or the removed ones had left; None before that."""


@final
class AutoscalePolicy:
    """Decides how many processes of a kind a job has. Give it the intervals of the job in order.

    `noun` is one of them in words, and `costs` the pauses that a change of their number brings.
    """

    def __init__(self, limits: CountRange, noun: str, costs: tuple[Pause, ...]) -> None:
        self._low, self._high = limits.low, limits.high
        self._noun, self._costs = noun, costs
        self.wanted = limits.low
        self._base = Window(0)
        """Intervals with the present processes, while there is no trial."""
        self._trial: _Trial | None = None
        self._more, self._fewer = _Step(), _Step()
        self._in_vain = self._useful = self._unclear = 0
        """Trials in a row: of one more in vain, of one fewer that proved useful, or nothing."""
        self._more_at_s, self._fewer_at_s = 0.0, _REVIEW_S
        self._why_later = ""
        """Why no more are tried before `_more_at_s`, in words."""
        self._lost_s = 0.0
        """What the change of the newest trial cost, in seconds of work."""
        self._usual: tuple[int, float] | None = None
        """The processes, and their rate when they were first measured after the last change."""
        self._changes: deque[float] = deque(maxlen=MOST_CHANGES)
        self.holds_back = self._not_yet(limits.low)
        """Why no trial begins now, in words; of no meaning in a trial."""

    @property
    def in_trial(self) -> bool:
        """Whether a change is to show its worth."""
        return self._trial is not None

    def forget(self, at_s: float) -> None:
        """Restart the measurement: something other than the number of these processes has changed.

        A trial keeps what it measured before its change, so it then judges both changes.
        """
        if self._trial is None:
            self._base = Window(0)
            self.holds_back = self._not_yet(self.wanted)
        else:
            self._trial.after, self._trial.changed_s, self._trial.waits_s = None, None, at_s

    def settle(self, processes: int, at_s: float) -> None:
        """End a trial without a finding: the job has this number, whatever was wanted."""
        if self._trial is not None and self.wanted > self._trial.before.processes:
            self._put_off_more(1, at_s, "one more was tried, and was not measured to the end")
        elif self._trial is not None:
            self._put_off_fewer(1, at_s)
        self.wanted, self._trial, self._base, self._usual = processes, None, Window(0), None
        self.holds_back = self._not_yet(processes)

    def abandon(self, at_s: float, why: str) -> Decision:
        """Undo the present trial."""
        assert self._trial is not None
        return self._undo(self._trial, at_s, why)

    def would_try_more(self, waiting: float, at_s: float) -> bool:
        """Whether more processes may be tried now, if workers wait for them so long."""
        base = Window(self.wanted)
        base.waited.append(waiting)
        return self.wanted < self._high and at_s >= self._more_at_s and may_gain(base, 1)

    def observe(
        self, interval: Interval, limits: CountRange, *, held_back: bool = False
    ) -> Decision | None:
        """Take in the next interval; return a decision if one is due.

        `held_back`: something else limits added processes and may soon be raised, so they are not
        given back yet.
        """
        if (limits.low, limits.high) != (self._low, self._high) and (
            decision := self._follow(limits, interval.at_s)
        ):
            return decision
        trial = self._trial
        if trial is not None and self._lasts_too_long(trial, interval):
            return self._undo(trial, interval.at_s, "too few undisturbed intervals to measure it")
        if trial is not None and self._stays_away(trial, interval.at_s):
            none = "none came" if self.wanted > trial.before.processes else "none left"
            return self._undo(trial, interval.at_s, f"{none} within {PENDING_S:.0f} s")
        if interval.pause is not None:
            self._count_cost(interval)
            return None
        if trial is None:
            return self._settled(interval)
        return self._in_trial(trial, interval, held_back)

    # the range

    def _follow(self, limits: CountRange, at_s: float) -> Decision | None:
        """Take in another range of the user; what failed in the old one may be tried again."""
        self._low, self._high = limits.low, limits.high
        self._more, self._in_vain, self._more_at_s = _Step(), 0, at_s
        processes, trial = limits.nearest(self.wanted), self._trial
        if processes == self.wanted:
            before = trial.before.processes if trial is not None else processes
            if limits.nearest(before) != before:
                self._trial, self._base = None, Window(0)
            return None
        self._trial, self._base = None, Window(0)
        many = self._many(processes)
        text = f"autoscale: {many}, to stay within {limits.low}:{limits.high}"
        return self._change(Kind.FOLLOW, processes, at_s, text, {})

    # between trials

    def _settled(self, interval: Interval) -> Decision | None:
        if interval.processes != self._base.processes:
            self._base = Window(interval.processes)
        base, at_s = self._base, interval.at_s
        base.add(interval)
        self.holds_back = f"{self._many(base.processes)}: being measured"
        if interval.processes < self.wanted:
            # The cluster is the limit, and more would not come.
            wanted = amount(self.wanted, f"wanted {self._noun}")
            self.holds_back = f"{interval.processes} of {wanted} run, so no more are tried"
            return None
        if interval.processes != self.wanted or base.count < FEWEST or base.rate <= 0.0:
            return None
        if self._has_shifted(at_s):
            self._base = Window(base.processes)
            return None
        rest_s = interval.left / base.rate
        if rest_s < max(_WORTH_S, self._repaid_s) or not self._may_change(at_s):
            self.holds_back = f"{self._many(self.wanted)}: the job ends before a trial would pay"
            if rest_s >= max(_WORTH_S, self._repaid_s):
                self.holds_back = f"{self._many(self.wanted)}: their number has changed often"
            return None
        low, high, enough = self._low, self._high, base.count >= _ENOUGH
        quiet = enough or base.error <= _QUIET * base.rate
        self.holds_back = self._why_no_more(base, at_s)
        more = hopeful(min(high - self.wanted, self._more.size), base, may_gain)
        if more and at_s >= self._more_at_s and quiet:
            return self._begin(self.wanted + more, at_s)
        fewer = hopeful(min(self.wanted - low, self._fewer.size), base, may_lose_little)
        if fewer and at_s >= self._fewer_at_s and enough:
            return self._begin(self.wanted - fewer, at_s)
        return None

    def _why_no_more(self, base: Window, at_s: float) -> str:
        now = self._many(self.wanted)
        if self.wanted >= self._high:
            return f"{now}: the most that the range allows"
        if base.waiting is not None and not may_gain(base, 1):
            waits = percent_words(round(base.waiting, 3))
            return f"{now}: workers wait for servers {waits} of their time, too little for one more"
        if at_s < self._more_at_s:
            return f"{now}: {self._why_later}, so the next trial is later"
        return f"{now}: throughput still varies too much for a trial"

    def _has_shifted(self, at_s: float) -> bool:
        """Whether the same processes have become much faster or slower, which ends a pause."""
        base, newest = self._base, self._base.newest(2 * FEWEST)
        if newest is None:
            return False
        if self._usual is None or self._usual[0] != base.processes:
            self._usual = base.processes, base.rate
            return False
        before = self._usual[1]
        if abs(newest.rate - before) <= max(_SHIFT * before, 2.0 * CONFIDENCE * newest.error):
            return False
        self._usual = None
        if newest.rate > before:
            self._more_at_s = min(self._more_at_s, at_s)
        else:
            # Something that they share may limit them now, and then fewer are enough.
            self._fewer = _Step(max(1, base.processes // 4))
            self._fewer_at_s = min(self._fewer_at_s, at_s)
        return True

    def _may_change(self, at_s: float) -> bool:
        """Whether a trial may begin: it may be two changes."""
        return sum(changed_s > at_s - CHANGES_S for changed_s in self._changes) <= MOST_CHANGES - 2

    def _begin(self, processes: int, at_s: float) -> Decision:
        base, self._lost_s = self._base, 0.0
        self._trial = _Trial(base, at_s)
        kind = Kind.TRY_MORE if processes > base.processes else Kind.TRY_FEWER
        text = (
            f"autoscale: trying {self._many(processes)}: {self._many(base.processes)}"
            f" {rate_words(base)}"
        )
        if base.waiting is not None:
            text += f", and workers wait for servers {100 * base.waiting:.0f} % of their time"
        return self._change(kind, processes, at_s, text, numbers_of(base))

    # in a trial

    def _lasts_too_long(self, trial: _Trial, interval: Interval) -> bool:
        """Whether the change took place too long ago for a trial without a verdict."""
        if interval.pause not in (Pause.MEMBERS, Pause.OTHERS):
            if not self._has_changed(trial, interval.processes):
                if trial.changed_s is not None:
                    trial.changed_s, trial.waits_s = None, interval.at_s
            elif trial.changed_s is None:
                trial.changed_s = interval.at_s
        return trial.changed_s is not None and interval.at_s - trial.changed_s > _UNDISTURBED_S

    def _stays_away(self, trial: _Trial, at_s: float) -> bool:
        """Whether the change has not taken place for too long."""
        return trial.changed_s is None and at_s - trial.waits_s > PENDING_S

    def _has_changed(self, trial: _Trial, processes: int) -> bool:
        """Whether so many processes are those of the trial, or some of them."""
        before = trial.before.processes
        return processes > before if self.wanted > before else processes == self.wanted

    def _count_cost(self, interval: Interval) -> None:
        """Add the work that a change costs, for example while a ring re-forms."""
        trial = self._trial
        if trial is None or interval.pause not in self._costs:
            return
        if trial.changed_s is not None and interval.pause is not Pause.MEMBERS:
            # An ordinary checkpoint, or a server that was lost.
            return
        # Signed: the noise of many intervals must not add up.
        rate = trial.before.rate
        self._lost_s += interval.seconds - interval.records / rate if rate else 0.0

    @property
    def _repaid_s(self) -> float:
        """How long the least gain takes to repay a trial. The way back costs as much again."""
        return min(_LONGEST_RETRY_S, 2.0 * max(0.0, self._lost_s) / LEAST_GAIN)

    def _in_trial(self, trial: _Trial, interval: Interval, held_back: bool) -> Decision | None:
        before, processes = trial.before, interval.processes
        if processes == before.processes:
            # The change has not happened yet, or was undone by the cluster.
            before.add(interval)
        if not self._has_changed(trial, processes):
            trial.after = None
            return None
        if trial.after is None or trial.after.processes != processes:
            # Those that came are judged without those that are still pending.
            trial.after = Window(processes)
        trial.after.add(interval)
        if trial.after.count < FEWEST:
            return None
        if self.wanted > before.processes:
            return self._judge_more(trial, trial.after, interval.at_s, held_back)
        return self._judge_fewer(trial, trial.after, interval.at_s)

    def _judge_more(
        self, trial: _Trial, after: Window, at_s: float, held_back: bool
    ) -> Decision | None:
        before, added = trial.before, after.processes - trial.before.processes
        need = needed_gain(before.processes, added)
        shown = evidence(before, after, need)
        if shown >= bound(after, TRIAL_S):
            return self._keep(trial, after, at_s, need)
        if held_back:
            return None
        if shown <= -CONFIDENCE:
            return self._undo(trial, at_s, f"less than the {percent_words(need)} that it needs")
        if after.seconds >= TRIAL_S:
            return self._undo(trial, at_s, f"not clearly the {percent_words(need)} that it needs")
        return None

    def _keep(self, trial: _Trial, after: Window, at_s: float, need: float) -> Decision:
        before, added = trial.before, after.processes - trial.before.processes
        self._more.paid(added)
        self._in_vain, self._more_at_s = 0, at_s
        self._fewer, self._useful, self._unclear = _Step(), 0, 0
        doubtful = added == 1 and gain(before, after) < 2.0 * need
        self._fewer_at_s = at_s + (_DOUBT_S if doubtful else _REVIEW_S)
        if after.processes < self.wanted:
            # Others of this trial are pending: they are judged when they come.
            self._trial = _Trial(after, at_s)
        else:
            self._trial, self._base = None, after
        text = (
            f"autoscale: keeping {self._many(after.processes)}: {gain_words(before, after)};"
            f" at least {percent_words(need)} is needed"
        )
        return Decision(Kind.KEEP, self.wanted, text, numbers_of(before, after))

    def _judge_fewer(self, trial: _Trial, after: Window, at_s: float) -> Decision | None:
        before, removed = trial.before, trial.before.processes - after.processes
        need = needed_to_return(after.processes, removed)
        shown = evidence(after, before, need)
        if shown <= -bound(after, _FEWER_TRIAL_S):
            return self._stay_fewer(trial, after, at_s, need)
        if shown >= CONFIDENCE:
            self._useful, self._unclear = self._useful + 1, 0
            return self._undo(trial, at_s, f"more than the {percent_words(need)} that it needs")
        if after.seconds >= _FEWER_TRIAL_S:
            self._unclear += 1
            return self._undo(trial, at_s, f"not clearly less than {percent_words(need)}")
        return None

    def _stay_fewer(self, trial: _Trial, after: Window, at_s: float, need: float) -> Decision:
        removed = trial.before.processes - after.processes
        self._fewer.paid(removed)
        self._useful, self._unclear, self._fewer_at_s = 0, 0, at_s
        # One more was just shown to add nothing.
        self._more, self._in_vain = _Step(), 1
        self._more_at_s = at_s + self._pause_s(_RETRY_S, 0, _LONGEST_RETRY_S)
        self._why_later = "fewer were tried and were enough"
        text = (
            f"autoscale: staying at {self._many(after.processes)}:"
            f" {gain_words(after, trial.before)}, less than {percent_words(need)}"
        )
        numbers = numbers_of(trial.before, after)
        self._trial, self._base = None, after
        return Decision(Kind.STAY_FEWER, self.wanted, text, numbers)

    def _undo(self, trial: _Trial, at_s: float, why: str) -> Decision:
        """Return to the number of processes before the trial."""
        before, after = trial.before, trial.after or Window(self.wanted)
        self._trial, self._base = None, Window(before.processes)
        if self.wanted > before.processes:
            added, comparison = self.wanted - before.processes, gain_words(before, after)
            text = f"autoscale: giving back {self._many(added)}: {comparison}, {why}"
            # If none came, fewer would not have come either.
            came = 1 if trial.changed_s is None else after.processes - before.processes
            if trial.changed_s is None:
                why_later = "one more was tried and did not start"
            elif trial.after is None or trial.after.count < FEWEST:
                why_later = "one more was tried, and was not measured to the end"
            else:
                why_later = "one more was tried and did not pay"
            self._put_off_more(came, at_s, why_later)
            kind = Kind.GIVE_BACK
        else:
            comparison = gain_words(after, before)
            text = f"autoscale: back to {self._many(before.processes)}: {comparison}, {why}"
            self._put_off_fewer(before.processes - after.processes, at_s)
            kind = Kind.RESTORE
        return self._change(kind, before.processes, at_s, text, numbers_of(before, after))

    def _put_off_more(self, added: int, at_s: float, why: str) -> None:
        self._why_later = why
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
        self, kind: Kind, processes: int, at_s: float, text: str, numbers: Mapping[str, float]
    ) -> Decision:
        self.wanted = processes
        self.holds_back = self._not_yet(processes)
        self._usual = None
        self._changes.append(at_s)
        return Decision(kind, processes, text, numbers)

    def _not_yet(self, processes: int) -> str:
        return f"{self._many(processes)}: not measured yet"

    def _many(self, processes: int) -> str:
        return amount(processes, self._noun)
