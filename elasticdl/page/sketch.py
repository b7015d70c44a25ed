"""Drawings without scripts: SVG with widths in percent, which fits any screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl.page import formatting
from elasticdl.page.markup import Html, el

_POINTS = 240
_LINES = 12
TICKS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    28800,
    86400,
    172800,
    432000,
)


def percent(value: float, span: float) -> str:
    """Return the position of `value` within `span` as an SVG length."""
    return f"{max(0.0, min(100.0, 100 * value / span if span else 0.0)):.2f}%"


def ticks(span_s: float) -> list[float]:
    """Return at most seven round times within a span."""
    step = next((step for step in TICKS_S if span_s / step <= 7), TICKS_S[-1])
    return [step * index for index in range(math.floor(span_s / step) + 1)]


def lines(series: Sequence[Mapping[str, Any]], axis: str) -> Html:
    """Draw curves in a box of 100 by 100, which the page stretches.

    The largest value is at the top, zero or the smallest at the bottom. If there is a curve of the
    whole job, those of single workers are omitted. A single value is a dot, or text if there is
    nothing else.
    """
    drawn = [one for one in series if not one["label"]] or series
    found = [points for one in drawn[:_LINES] if (points := _points(one, axis))]
    if not found:
        return el("p", "no values", class_="empty")
    if all(len(points) == 1 for points in found):
        return el(
            "p",
            [
                _dot(one, axis, *_points(one, axis)[0])
                for one in drawn[:_LINES]
                if _points(one, axis)
            ],
            class_="empty",
        )
    xs, ys = [x for points in found for x, _ in points], [y for points in found for _, y in points]
    left, right, low, high = min(xs), max(xs), min(0.0, *ys), max(ys)
    across, up = (right - left) or 1.0, (high - low) or 1.0
    paths = [
        " ".join(
            f"{100 * (x - left) / across:.2f},{100 - 96 * (y - low) / up:.2f}" for x, y in points
        )
        for points in found
    ]
    shapes = [
        # A line of zero length with round ends: a dot in any stretched box.
        el(
            "polyline",
            points=path if " " in path else f"{path} {path}",
            vector_effect="non-scaling-stroke",
            class_=f"{kind}c{index}",
        )
        for index, path in enumerate(paths)
        for kind in ("" if " " in path else "dot ",)
    ]
    return el(
        "svg",
        shapes,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        class_="sketch",
        aria_hidden="true",
    )


def _dot(series: Mapping[str, Any], axis: str, at: float, value: float) -> Html:
    where = f"{formatting.count(at)} records" if axis == "records" else formatting.clock(at)
    said = f" {series['label']} one value: {formatting.number(value)} at {where}".replace("  ", " ")
    return el("span", el("i", "●", class_="dot", aria_hidden="true"), said)


def _points(series: Mapping[str, Any], axis: str) -> list[tuple[float, float]]:
    pairs = [
        (x, y)
        for x, y in zip(series[axis], series["values"], strict=True)
        if x is not None and y is not None and math.isfinite(y)
    ]
    step = max(1, math.ceil(len(pairs) / _POINTS))
    return pairs[::step]
