"""The reasons of one wait, and how long each held."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MOST_REASONS = 8
_OTHER = "other reasons"
_NUMBERS = re.compile(r"\d+")


@dataclass(slots=True)
class ReasonTimes:
    """The reasons of one wait and how long each held, at most eight of them.

    Reasons that differ only in their numbers count as one.
    """

    _durations: dict[str, tuple[str, float]] = field(default_factory=dict)

    def add(self, reason: str, seconds: float) -> None:
        shape = _NUMBERS.sub("#", reason)
        if shape not in self._durations and len(self._durations) >= _MOST_REASONS:
            shape = reason = _OTHER
        first, before_s = self._durations.get(shape, (reason, 0.0))
        self._durations[shape] = (first, before_s + seconds)

    def words(self) -> str:
        """The three longest reasons, with durations if there are several."""
        longest = sorted(self._durations.values(), key=lambda item: -item[1])[:3]
        if len(longest) <= 1:
            return "".join(reason for reason, _ in longest)
        return ", ".join(f"{reason} ({seconds:.0f} s)" for reason, seconds in longest)
