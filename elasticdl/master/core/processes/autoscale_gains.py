"""What processes must add to a job's records per second, and whether a trial may show it."""

from __future__ import annotations

import math
from collections.abc import Callable

from elasticdl.master.core.processes.throughput_windows import Window

LEAST_GAIN = 0.05
"""What a process must add to the rate of up to ten processes of its kind, to stay."""
_LEAST_SHARE = 0.5
"""What it must add of an average one's part, if that is less; steps of several need it, too."""
CONFIDENCE = 2.0
"""Welch's t that counts as shown: about 97 % on one side."""


def needed_gain(processes: int, more: int) -> float:
    """The relative gain that `more` beside `processes` must show to stay."""
    share = _LEAST_SHARE * more / processes
    return min(LEAST_GAIN, share) if more == 1 else share


def needed_to_return(processes: int, fewer: int) -> float:
    """The relative gain of `fewer` processes over `processes` that brings them back."""
    return fewer * min(LEAST_GAIN, _LEAST_SHARE / processes)


def may_gain(base: Window, more: int) -> bool:
    """Whether `more` processes may gain what is needed: they can save waits for them at most."""
    if base.waiting is None:
        return True
    saved = base.waiting * more / (base.processes + more)
    return saved >= needed_gain(base.processes, more) * (1.0 - saved)


def may_lose_little(base: Window, fewer: int) -> bool:
    """Whether `fewer` processes less may cost so little that they need not come back."""
    if base.waiting is None:
        return True
    rest = base.processes - fewer
    return base.waiting * fewer / rest < needed_to_return(rest, fewer)


def hopeful(step: int, base: Window, may: Callable[[Window, int], bool]) -> int:
    """The step, or a half, a quarter, … of it that may end well; 0 if none may."""
    while step > 0 and not may(base, step):
        step //= 2
    return step


def bound(after: Window, trial_s: float) -> float:
    """The t that makes a change final after so much of a trial, by O'Brien and Fleming."""
    return CONFIDENCE / math.sqrt(min(1.0, after.seconds / trial_s))
