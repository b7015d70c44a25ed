"""Rows of metrics.jsonl as trackers get them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elasticdl.tracking.tracker import MetricRow

_PREFIXES = {"training": "train", "evaluation": "validation"}
"""As the runs of TensorBoard are named."""


def metric_row(row: Mapping[str, Any]) -> MetricRow | None:
    """Return a row's values by name, such as `train/loss`; None if it has no metrics."""
    kind, version, reported = row.get("kind"), row.get("version"), row.get("values")
    if kind not in _PREFIXES or not isinstance(version, int) or not isinstance(reported, Mapping):
        return None
    prefix, records = _PREFIXES[kind], row.get("records")
    values = numbers({f"{prefix}/{name}": value for name, value in reported.items()})
    if isinstance(records, int):
        values["records"] = float(records)
    return MetricRow(version, float(row.get("at") or 0.0), values)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def flat(value: object, prefix: str) -> Iterable[tuple[str, float]]:
    """Return the numbers of nested objects, by names with slashes."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flat(item, f"{prefix}/{name}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
