"""What a job does in intervals of time, and how surely two numbers of processes differ in it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from elasticdl.formatting import number, spoken

_KEPT = 45
"""Intervals that a window keeps."""
_FLOOR = 0.005
"""Least relative error of a rate: reports come in lumps, so few intervals may agree by chance."""


class Pause(StrEnum):
    """Why an interval does not show what its workers can do."""

    MEMBERS = "workers join or leave"
    EVALUATION = "evaluation"
    CHECKPOINT = "a checkpoint"
    EXPORT = "an export"
    OTHERS = "processes of the other kind join or leave"
    SERVERS = "parameter servers are away or change"
    DATA = "the data ends"
    SETTLING = "the first interval after a pause"


@dataclass(frozen=True, slots=True)
class Interval:
    """What the job did in `seconds` until `at_s`."""

    at_s: float
    seconds: float
    records: int
    processes: int
    """Workers that trained during all of it, or servers; of no meaning in a pause."""
    left: int
    """Records that the job still has to do."""
    pause: Pause | None = None
    waiting: float | None = None
    """The share of their time that workers waited for servers; None if that is unknown."""


@dataclass(slots=True)
class Window:
    """The newest intervals with the same number of processes."""

    processes: int
    intervals: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """Seconds and records."""
    waited: deque[float | None] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """`Interval.waiting` of each."""

    def add(self, interval: Interval) -> None:
        """Add an undisturbed interval."""
        self.intervals.append((interval.seconds, interval.records))
        self.waited.append(interval.waiting)

    def newest(self, count: int) -> Window | None:
        """The newest so many intervals; None if there are fewer."""
        if self.count < count:
            return None
        window = Window(self.processes)
        window.intervals.extend(list(self.intervals)[-count:])
        window.waited.extend(list(self.waited)[-count:])
        return window

    @property
    def count(self) -> int:
        """How many intervals it has."""
        return len(self.intervals)

    @property
    def seconds(self) -> float:
        """Measured time."""
        return sum(seconds for seconds, _ in self.intervals)

    @property
    def rate(self) -> float:
        """Records per second."""
        return sum(records for _, records in self.intervals) / self.seconds

    @property
    def waiting(self) -> float | None:
        """The median of `Interval.waiting`; None if none is known."""
        known = [share for share in self.waited if share is not None]
        return median(known) if known else None

    @property
    def error(self) -> float:
        """Standard error of the rate, in records per second. Of two intervals or more."""
        rate, length_s = self.rate, self.seconds / self.count
        # Of a ratio: an interval of another length deviates by what its time does not explain.
        squares = sum((records - rate * seconds) ** 2 for seconds, records in self.intervals)
        spread = math.sqrt(squares / (self.count - 1)) / length_s
        return max(_FLOOR * rate, spread / math.sqrt(self.count))


def evidence(few: Window, many: Window, needed: float) -> float:
    """Welch's t of the claim that `many` has at least (1 + `needed`) times the rate of `few`.

    Above 0 the data speak for it, below 0 against it.
    """
    claimed = few.rate * (1.0 + needed)
    error = math.hypot(many.error, few.error * (1.0 + needed))
    return (many.rate - claimed) / error if error else 0.0


def numbers_of(before: Window, after: Window | None = None) -> dict[str, float]:
    """Rates with their standard errors, for programs."""
    numbers: dict[str, float] = {
        "before": before.processes,
        "before_records_per_s": before.rate,
        "before_error": before.error,
    }
    if after is not None and after.count > 1:
        numbers |= {
            "after": after.processes,
            "after_records_per_s": after.rate,
            "after_error": after.error,
            "gain": gain(before, after),
        }
    return numbers


def rate_words(window: Window) -> str:
    """`do 1,203 ± 12 records/s`."""
    verb = "does" if window.processes == 1 else "do"
    return f"{verb} {number(window.rate)} ± {number(window.error)} records/s"


def gain(few: Window, many: Window) -> float:
    """What `many` has more than `few`, as a share of the rate of `few`; 0 if that is unknown."""
    return many.rate / few.rate - 1.0 if few.rate else 0.0


def gain_words(few: Window, many: Window) -> str:
    """`the last one added 3.1 ± 1.2 % (1,203 to 1,240 records/s, measured for 20 s)`."""
    count = many.processes - few.processes
    last = "the last one" if count == 1 else f"the last {count}"
    if min(few.count, many.count) < 2 or not few.rate:
        return f"{last} could not be measured"
    error = math.hypot(many.error / few.rate, few.error * many.rate / few.rate**2)
    return (
        f"{last} added {100 * gain(few, many):.1f} ± {100 * error:.1f} %"
        f" ({number(few.rate)} to {number(many.rate)} records/s, measured for"
        f" {spoken(min(few.seconds, many.seconds))})"
    )


def percent_words(share: float) -> str:
    """`5 %`, `12.5 %`."""
    return f"{100 * share:.3g} %"
