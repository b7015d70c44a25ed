"""Quantiles of any number of values in bounded memory, which merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

CAPACITY = 1 << 15
"""Up to so many values quantiles are exact."""


@final
class QuantileSketch:
    """Levels of values: one of level h stands for 2^h. A full level keeps every second value.

    That is the sketch of Manku, Rajagopalan and Lindsay (1998). Each such step moves the rank of
    any value by 2^h at most; `rank_error` sums these bounds. Of n values it is below
    n / CAPACITY · log2(n / CAPACITY): 0.05 % of a billion.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._levels: list[list[NDArray[np.float64]]] = [[]]
        self._takes_first: list[bool] = [False]
        self.rank_error = 0

    def add(self, numbers: NDArray[Any]) -> None:
        """Add finite numbers [n]."""
        self._levels[0].append(numbers.astype(np.float64))
        self._compact()

    def merge(self, other: QuantileSketch) -> None:
        """Add what another one has seen."""
        for level, parts in enumerate(other._levels):
            self._level(level).extend(parts)
        self.rank_error += other.rank_error
        self._compact()

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """For each share the lowest value with that share of all values at or below it.

        [] if there are no values. Differs from the exact one by `rank_error` ranks at most.
        """
        values = np.concatenate([np.concatenate([*parts, []]) for parts in self._levels])
        if not len(values):
            return []
        sizes = [sum(map(len, parts)) for parts in self._levels]
        weights = np.repeat([1 << level for level in range(len(sizes))], sizes)
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        # Rounding must not ask for a rank above that of an exact share, such as 0.1 of 30.
        wanted = np.ceil(np.asarray(shares) * ranks[-1] - 1e-9 * ranks[-1])
        at = np.searchsorted(ranks, wanted).clip(0, len(values) - 1)
        return [float(value) for value in values[order][at]]

    def _level(self, level: int) -> list[NDArray[np.float64]]:
        while len(self._levels) <= level:
            self._levels.append([])
            self._takes_first.append(False)
        return self._levels[level]

    def _compact(self) -> None:
        level = 0
        while level < len(self._levels):
            if sum(map(len, self._levels[level])) > self._capacity:
                values = np.sort(np.concatenate(self._levels[level]))
                pairs = len(values) // 2 * 2
                first = 0 if self._takes_first[level] else 1
                # Alternating, so that the errors of two steps cancel rather than add up.
                self._takes_first[level] = not self._takes_first[level]
                self._levels[level] = [values[pairs:]]
                self._level(level + 1).append(values[first:pairs:2].copy())
                self.rank_error += 1 << level
            level += 1
