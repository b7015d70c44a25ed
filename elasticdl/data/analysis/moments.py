"""Count, extremes, mean and squared deviations of numbers, which merge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


@final
@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of `count` finite numbers; `squares` is the sum of squared deviations from the mean.

    `low` and `high` keep the type of the numbers; they are None if there are none.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float | int | None = None
    high: float | int | None = None

    @classmethod
    def of(cls, numbers: NDArray[Any]) -> Moments:
        """Those of finite numbers [n]."""
        if not len(numbers):
            return cls()
        exact = numbers.astype(np.float64)
        mean = float(exact.mean())
        squares = float(np.square(exact - mean).sum())
        return cls(len(numbers), mean, squares, numbers.min().item(), numbers.max().item())

    def merged(self, other: Moments) -> Moments:
        """Those of both. Chan, Golub and LeVeque, 1979: "Updating formulae ..."."""
        if not self.count or not other.count:
            return self if self.count else other
        assert self.low is not None and self.high is not None
        assert other.low is not None and other.high is not None
        count = self.count + other.count
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def variance(self) -> float | None:
        """The variance of a population, as Keras' `Normalization` has it; None without numbers.

        Also None if squares exceed the range of float64.
        """
        variance = self.squares / self.count if self.count else math.nan
        return variance if math.isfinite(variance) else None
