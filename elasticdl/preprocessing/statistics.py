"""Statistics that `elasticdl analyze` wrote, as arguments of preprocessing layers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, final

from elasticdl.data.analysis import FORMAT
from elasticdl.errors import UserError


@final
@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The statistics of one column.

    `count` and `missing` are numbers of values. Properties raise UserError if the column does not
    have them: text has no mean, and floating-point numbers have no vocabulary.
    """

    name: str
    facts: dict[str, Any]
    """As they are in the file."""

    @property
    def count(self) -> int:
        """Values that are not missing."""
        return int(self.facts["count"])

    @property
    def missing(self) -> int:
        """Empty texts and NaN."""
        return int(self.facts["missing"])

    @property
    def min(self) -> float:
        """The lowest number."""
        return float(self._fact("min"))

    @property
    def max(self) -> float:
        """The highest number."""
        return float(self._fact("max"))

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self._fact("mean"))

    @property
    def variance(self) -> float:
        """The variance of the population, for `keras.layers.Normalization`."""
        return float(self._fact("variance"))

    @property
    def std(self) -> float:
        """The square root of the variance: the divisor of a `Normalizer`."""
        return float(self._fact("std"))

    def bin_boundaries(self, bins: int) -> list[float]:
        """Boundaries of bins with about equally many values, for `Discretization`.

        There are `bins` - 1, or fewer if a value is so frequent that bins would be empty. Raises
        UserError if the quantiles in the file do not include them.
        """
        quantiles = self._fact("quantiles")
        parts = len(quantiles) + 1
        if bins < 2 or parts % bins:
            raise UserError(
                f"column {self.name!r} has quantiles of {parts} parts, which do not make {bins}"
                " bins",
                hint=f"use a divisor of {parts}, or run elasticdl analyze --quantiles {bins}",
            )
        step = parts // bins
        return sorted({float(quantiles[at]) for at in range(step - 1, parts - 1, step)})

    def vocabulary(self, size: int | None = None, *, min_count: int = 1) -> list[Any]:
        """The most frequent values: texts for `IndexLookup`, integers for Keras' `IntegerLookup`.

        The most frequent is first. `size` takes the first ones, `min_count` those that occur so
        often.
        """
        facts = self._fact("vocabulary")
        chosen = [
            value
            for value, count in zip(facts["values"], facts["counts"], strict=True)
            if count >= min_count
        ]
        return chosen[:size]

    def _fact(self, key: str) -> Any:  # noqa: ANN401 - a value of JSON
        value = self.facts.get(key)
        if value is None:
            kind = "numbers" if key != "vocabulary" else "texts or integers"
            raise UserError(f"column {self.name!r} has no {key}: its values are not {kind}")
        return value


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of data; `statistics["age"]` are those of a column."""

    records: int
    columns: dict[str, ColumnStatistics]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Statistics:
        """Read a file of `elasticdl analyze`. Raises UserError if it is missing or another."""
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except OSError as error:
            raise UserError(
                f"{os.fspath(path)}: {error.strerror}",
                hint="write it with: elasticdl analyze DATA --output FILE",
            ) from error
        except ValueError as error:
            raise UserError(f"{os.fspath(path)} is not JSON: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(
                f"{os.fspath(path)} is not a file of this version of elasticdl analyze",
                hint="write it again with: elasticdl analyze DATA --output FILE",
            )
        columns = {
            name: ColumnStatistics(name, facts) for name, facts in content["columns"].items()
        }
        return cls(content["records"], columns)

    def __getitem__(self, name: str) -> ColumnStatistics:
        """The statistics of a column. Raises UserError if there is none of this name."""
        if name not in self.columns:
            raise UserError(
                f"the statistics have no column {name!r}; available: {', '.join(self.columns)}"
            )
        return self.columns[name]
