"""The plots: sketches and tables, which the script replaces by interactive curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.page import formatting
from elasticdl.page.markup import Html, el
from elasticdl.page.sketch import lines

_ROWS = 30
_METRICS = 6


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the series `names`, of one `label` if given.

    `axis` is `records` if the user may choose the axis.
    """

    key: str
    title: str
    unit: str
    names: tuple[str, ...]
    label: str | None = None
    axis: str = "at_s"


PLOTS = (
    Plot("loss", "Training loss", "", ("loss",), axis="records"),
    Plot("rate", "Throughput", "records/s", ("records_per_s",)),
    Plot("workers", "Workers", "ready", ("workers",)),
    Plot("updates", "Updates", "per second", ("updates_per_s",)),
    Plot("staleness", "Staleness", "updates missed", ("staleness",)),
    Plot("latency", "Server latency", "ms, pull and push", ("pull_s", "push_s")),
)


def plots(snapshot: Mapping[str, Any]) -> Html:
    """Return all plots of this kind of job."""
    return el(
        "div", [_figure(plot, snapshot) for plot in wanted(snapshot)], id="plots", class_="plots"
    )


def wanted(snapshot: Mapping[str, Any]) -> Iterator[Plot]:
    """Yield the plots: loss, evaluated metrics, then the rest.

    Except for the first three, a plot without series is omitted.
    """
    series: Sequence[Mapping[str, Any]] = snapshot.get("series") or ()
    present = {one["name"] for one in series}
    metrics = sorted({str(one["label"]) for one in series if one["name"] == "metric"})
    yield PLOTS[0]
    for name in metrics[:_METRICS]:
        yield Plot(f"metric-{name}", f"Validation {name}", "", ("metric",), name, "records")
    yield from PLOTS[1:3]
    yield from (plot for plot in PLOTS[3:] if present.intersection(plot.names))


def _figure(plot: Plot, snapshot: Mapping[str, Any]) -> Html:
    series = [
        one
        for one in snapshot.get("series") or ()
        if one["name"] in plot.names and plot.label in (None, one["label"])
    ]
    return el(
        "figure",
        el("figcaption", el("h3", plot.title), " ", el("small", axes(plot))),
        el("div", lines(series, plot.axis), class_="canvas"),
        el("details", el("summary", "Table"), _table(series), class_="values"),
        id=f"plot-{plot.key}",
        data_key=plot.key,
    )


def axes(plot: Plot) -> str:
    """Return the labels of the axes."""
    against = "against records" if plot.axis == "records" else "over time"
    return f"{plot.unit}, {against}" if plot.unit else against


def _table(series: Sequence[Mapping[str, Any]]) -> Html:
    """Return a table of the main series; the script shows every value."""
    if not series:
        return el("p", "no values", class_="empty")
    one = next((one for one in series if not one["label"]), series[0])
    step = max(1, math.ceil(len(one["at_s"]) / _ROWS))
    rows = list(zip(one["at_s"], one["records"], one["values"], strict=True))[::-step]
    cells = [
        el(
            "tr",
            el("td", formatting.clock(at), class_="n"),
            el("td", formatting.count(records), class_="n"),
            el("td", formatting.number(value), class_="n"),
        )
        for at, records, value in rows
    ]
    heads = [
        el("th", word, scope="col", class_="n")
        for word in ("At", "Records", one["label"] or "Value")
    ]
    return el(
        "div",
        el("table", el("thead", el("tr", heads)), el("tbody", cells)),
        class_="scroll",
        tabindex=0,
    )
