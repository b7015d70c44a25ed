"""Statistics of one column over some of its records, which merge."""

from __future__ import annotations

from collections import Counter
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.analysis.moments import Moments
from elasticdl.data.analysis.quantile_sketch import QuantileSketch
from elasticdl.data.analysis.value_counts import ValueCounts

LONGEST_BYTES = 256
"""Longer texts are not counted in the vocabulary: they would fill the memory."""
_LONGEST_NUMBER_BYTES = 64


@final
class ColumnSummary:
    """Text has a vocabulary, and is also numbers if every value is one. Integers have both.

    Missing are the empty text and NaN. Infinite numbers are counted, and otherwise left out. Of
    records with several values (lists, images) each value counts.
    """

    def __init__(self) -> None:
        self._values = self._missing = self._infinite = self._long = 0
        self._moments = Moments()
        self._quantiles = QuantileSketch()
        self._counts: ValueCounts | None = ValueCounts()
        self._numeric = True

    def add(self, column: NDArray[Any]) -> None:
        """Add values [n, ...]: bytes, numbers or booleans."""
        values = column.reshape(-1)
        if values.dtype.kind == "b":
            values = values.astype(np.int64)
        if values.dtype.kind in "OSU":
            self._add_text(values)
        else:
            self._add_numbers(values)

    def merge(self, other: ColumnSummary) -> None:
        """Add what another one has of other records."""
        self._values += other._values
        self._missing += other._missing
        self._infinite += other._infinite
        self._long += other._long
        self._moments = self._moments.merged(other._moments)
        self._quantiles.merge(other._quantiles)
        self._numeric &= other._numeric
        if self._counts is None or other._counts is None:
            self._counts = None
        else:
            self._counts.merge(other._counts)

    def as_json(self, vocabulary_size: int, quantiles: int) -> dict[str, Any]:
        """The statistics; what a column does not have is None.

        `quantiles` is the number of parts of equal size that the boundaries cut.
        """
        numbers = self._numeric and self._moments.count > 0
        moments = self._moments if numbers else Moments()
        variance = moments.variance
        shares = [part / quantiles for part in range(1, quantiles)]
        return {
            "count": self._values - self._missing,
            "missing": self._missing,
            "infinite": self._infinite if numbers else None,
            "min": moments.low,
            "max": moments.high,
            "mean": moments.mean if numbers else None,
            "variance": variance,
            "std": None if variance is None else variance**0.5,
            "quantiles": self._quantiles.quantiles(shares) if numbers else None,
            "quantile_rank_error": self._quantiles.rank_error if numbers else None,
            "vocabulary": self._vocabulary(vocabulary_size),
        }

    def _vocabulary(self, size: int) -> dict[str, Any] | None:
        if self._counts is None:
            return None
        common = self._counts.most_common(size)
        try:
            values = [value.decode() if isinstance(value, bytes) else value for value, _ in common]
        except UnicodeDecodeError:
            return None  # bytes of images, for example
        return {
            "values": values,
            "counts": [count for _, count in common],
            "distinct": self._counts.distinct,
            "undercount": self._counts.undercount,
            "too_long": self._long,
        }

    def _add_numbers(self, values: NDArray[Any]) -> None:
        self._values += len(values)
        if values.dtype.kind not in "iu":
            self._counts = None
            values = values.astype(np.float64)
        elif self._counts is not None:
            distinct, counts = np.unique(values, return_counts=True)
            self._counts.add(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        self._add_finite(values)

    def _add_finite(self, values: NDArray[Any]) -> None:
        missing = np.isnan(values)
        finite = values[np.isfinite(values)]
        self._missing += int(np.count_nonzero(missing))
        self._infinite += len(values) - len(finite) - int(np.count_nonzero(missing))
        self._moments = self._moments.merged(Moments.of(finite))
        self._quantiles.add(finite)

    def _add_text(self, values: NDArray[Any]) -> None:
        texts = [value for value in values.tolist() if value]
        self._values += len(values)
        self._missing += len(values) - len(texts)
        if self._counts is not None:
            short = [value for value in texts if len(value) <= LONGEST_BYTES]
            self._long += len(texts) - len(short)
            self._counts.add(Counter(short))
        if self._numeric:
            numbers = _numbers(texts)
            self._numeric = numbers is not None
            if numbers is not None:
                self._add_finite(numbers)


def _numbers(texts: list[bytes]) -> NDArray[np.float64] | None:
    """The numbers that texts are; None if one is none."""
    # NumPy takes 1_000 for a number, TensorFlow does not.
    if max(map(len, texts), default=0) > _LONGEST_NUMBER_BYTES or b"_" in b"".join(texts):
        return None
    try:
        return np.array(texts, "S").astype(np.float64)
    except ValueError:
        return None
