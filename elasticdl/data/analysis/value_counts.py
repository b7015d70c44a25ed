"""How often each value occurs, in bounded memory, which merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias, final

CAPACITY = 1 << 16
"""Up to twice as many different values counts are exact."""
Value: TypeAlias = bytes | int


@final
class ValueCounts:
    """Counts of values; the rarest are dropped when there are more than twice CAPACITY.

    That is the summary of Misra and Gries (1982): a count is at most `undercount` too low, which is
    below the number of all values divided by CAPACITY, and never too high.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: Counter[Value] = Counter()
        self.undercount = 0

    @property
    def distinct(self) -> int | None:
        """The number of different values; None if some were dropped."""
        return None if self.undercount else len(self._counts)

    def add(self, counts: Mapping[Value, int]) -> None:
        """Add values that occur so often."""
        self._counts.update(counts)
        if len(self._counts) <= 2 * self._capacity:
            return
        # What is at most as frequent as the first that has no place goes; others lose as much.
        cut = sorted(self._counts.values(), reverse=True)[self._capacity]
        self._counts = Counter(
            {value: count - cut for value, count in self._counts.items() if count > cut}
        )
        self.undercount += cut

    def merge(self, other: ValueCounts) -> None:
        """Add what another one has counted."""
        self.undercount += other.undercount
        self.add(other._counts)

    def most_common(self, size: int) -> list[tuple[Value, int]]:
        """The most frequent values, and of those of one count the lowest first."""
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:size]
