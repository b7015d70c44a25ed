"""Time as an injectable value.

Durations are monotonic: a jump of the wall clock changes no lease.
"""

from __future__ import annotations

import time
from typing import Protocol, final


class Clock(Protocol):
    """The source of time."""

    def now_s(self) -> float:
        """Monotonic seconds since an arbitrary origin."""

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC, for people only: never for a duration."""


@final
class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


@final
class ManualClock:
    """A clock that moves only by `advance`, for tests and simulations."""

    def __init__(self, now_s: float = 0.0, wall_s: float = 1_700_000_000.0) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._wall_s

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds` >= 0."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now_s += seconds
        self._wall_s += seconds
