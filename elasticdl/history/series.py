"""Bounded curves of a job: a curve with too many points merges each pair of neighbours.

The newest value stays as measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

MOST_POINTS = 1_024
MOST_LABELS = 64
LABELLED_POINTS = 256
"""Limit for each of several curves, such as one per worker."""
_SAMPLED_S, _TOLD_S = 1.0, 2.0**-10
"""Initial seconds per point of sampled values, and of evaluations, which must not merge."""
_JOINED_S = 5.0
"""Join points of two masters that are this close: one took over from the other."""
_QUIET_S = 30.0
"""A label without values for this long may give its place to another."""


@dataclass(slots=True)
class _Point:
    """The mean of the finite values within one bucket of time.

    `at_s`, `records` and `newest` are those of the last value.
    """

    bucket: int
    at_s: float
    records: int
    total: float
    count: int
    newest: float

    def merge(self, other: _Point) -> None:
        self.at_s, self.records = other.at_s, other.records
        self.newest = other.newest if other.count else self.newest
        self.total += other.total
        self.count += other.count

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@final
@dataclass(slots=True)
class Series:
    """One curve of at most `most` points.

    Each point covers `width_s` seconds. The width doubles when there are too many points.
    """

    name: str
    label: str
    unit: str
    most: int = MOST_POINTS
    width_s: float = _SAMPLED_S
    points: list[_Point] = field(default_factory=list)

    def add(self, at_s: float, records: int, value: float | None) -> None:
        """Add a value; times must not decrease. None, NaN and infinity are gaps."""
        known = value is not None and math.isfinite(value)
        number = float(value or 0.0) if known else 0.0
        self._put(_Point(int(at_s // self.width_s), at_s, records, number, int(known), number))
        while len(self.points) > self.most:
            self._halve()

    def break_off(self, at_s: float) -> None:
        """Add a gap after the newest point, if there is room for one before `at_s`."""
        last = self.points[-1] if self.points else None
        if last is not None and at_s - last.at_s > 2 * max(_JOINED_S, self.width_s):
            self.add(last.at_s + self.width_s, last.records, None)

    def as_dict(self) -> dict[str, Any]:
        """Return columns of times and values for JSON; null marks a gap."""
        values = [point.value for point in self.points]
        if self.points and self.points[-1].count:
            # The newest value must be exact, not a mean.
            values[-1] = self.points[-1].newest
        return {
            "name": self.name,
            "label": self.label,
            "unit": self.unit,
            "width_s": self.width_s,
            "at_s": [round(point.at_s, 3) for point in self.points],
            "records": [point.records for point in self.points],
            "values": [None if value is None else float(f"{value:.7g}") for value in values],
        }

    def _put(self, point: _Point) -> None:
        if self.points and point.bucket <= self.points[-1].bucket:
            self.points[-1].merge(point)
        else:
            self.points.append(point)

    def _halve(self) -> None:
        self.width_s *= 2
        points, self.points = self.points, []
        for point in points:
            point.bucket //= 2
            self._put(point)


@final
class SeriesStore:
    """All curves of a job.

    A name has at most 64 labels. Quiet labels give their place to new ones; further labels are
    left out.
    """

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {}
        self._full_s: dict[str, float] = {}
        """When a name last had no room for a label, to avoid a second search at the same time."""

    def add(
        self, series: tuple[str, str, str], at_s: float, records: int, value: float | None
    ) -> bool:
        """Add a value; `series` is name, label and unit.

        Return False if the name has too many labels.
        """
        curve = self._find(*series, at_s)
        if curve is not None:
            curve.add(at_s, records, value)
        return curve is not None

    def as_list(self) -> list[dict[str, Any]]:
        """Return all curves by name and label, in order of arrival."""
        return [series.as_dict() for labels in self._series.values() for series in labels.values()]

    def break_off(self, at_s: float) -> None:
        """Record a pause of measurement: do not join points from `at_s` on with earlier ones."""
        for labels in self._series.values():
            for series in labels.values():
                series.break_off(at_s)

    def load(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Continue saved curves; ignore invalid ones."""
        for row in saved:
            try:
                loaded = _loaded(row)
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            labels = self._series.setdefault(loaded.name, {})
            if len(labels) < MOST_LABELS:
                labels[loaded.label] = loaded

    def _find(self, name: str, label: str, unit: str, at_s: float) -> Series | None:
        labels = self._series.setdefault(name, {})
        series = labels.get(label)
        if series is None:
            if len(labels) >= MOST_LABELS and (
                self._full_s.get(name) == at_s or not _make_room(labels, at_s)
            ):
                self._full_s[name] = at_s
                return None
            series = labels[label] = _begun(name, label, unit)
        return series


def _begun(name: str, label: str, unit: str) -> Series:
    evaluated = name == "metric"
    most = LABELLED_POINTS if label and not evaluated else MOST_POINTS
    return Series(name, label, unit, most, _TOLD_S if evaluated else _SAMPLED_S)


def _make_room(labels: dict[str, Series], at_s: float) -> bool:
    quiet = min(
        labels.values(), key=lambda curve: curve.points[-1].at_s if curve.points else -math.inf
    )
    if quiet.points and at_s - quiet.points[-1].at_s < _QUIET_S:
        return False
    del labels[quiet.label]
    return True


def _loaded(row: Mapping[str, Any]) -> Series:
    series = _begun(str(row["name"]), str(row["label"]), str(row["unit"]))
    series.width_s = float(row.get("width_s", series.width_s))
    if not series.width_s > 0:
        raise ValueError(f"series {series.name}: {series.width_s} s a point")
    numbers: Sequence[tuple[Any, Any, Any]] = list(
        zip(row["at_s"], row["records"], row["values"], strict=True)
    )
    for at_s, records, value in numbers:
        series.add(float(at_s), int(records), None if value is None else float(value))
    return series
