"""Format a status for the views. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from elasticdl.cli.views.console import one_line, plain
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.formatting import amount, duration, exchange_words, number, percent
from elasticdl.job_status import ClusterShare, JobStatus, ProcessStatus, UpdateCounts


@dataclass(frozen=True, slots=True)
class Share:
    """A number of records out of a total."""

    done: int
    expected: int

    @property
    def fraction(self) -> float:
        """0 to 1; 0 when nothing is expected yet."""
        return min(1.0, self.done / self.expected) if self.expected else 0.0

    @property
    def percent(self) -> str:
        """The share as text, such as `55 %`."""
        return percent(self.done, self.expected)


def job_share(status: JobStatus) -> Share:
    """Return the share of all epochs."""
    return Share(status.records.trained, status.records.expected)


def epoch_share(status: JobStatus) -> Share:
    """Return the share of the current epoch."""
    if status.receipt is None or not status.receipt.epochs:
        return Share(0, 0)
    newest = status.receipt.epochs[-1]
    return Share(newest.trained, newest.expected)


def age(seconds: float) -> str:
    """Format an age with one unit, as `kubectl` does: `40s`, `12m`, `3h`, `5d`."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns, each on one line; the last column has no width limit."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    cells = [
        [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1]]
        for row in rows
    ]
    return ["  ".join(row).rstrip() for row in cells]


def named_values(loss: float | None, metrics: Mapping[str, float | None], digits: int) -> list[str]:
    """Return loss and metrics with their names: `training loss 0.5`, `validation auc nan`.

    A metric of the last evaluation that is None was no finite number.
    """
    named = {} if loss is None else {"training loss": loss}
    validation = {
        f"validation {name}": math.nan if value is None else value
        for name, value in metrics.items()
    }
    return [
        f"{one_line(name)} {value:.{digits}g}" for name, value in {**named, **validation}.items()
    ]


def measures(status: JobStatus) -> list[str]:
    """Return training loss, metrics of the last evaluation, staleness and its limit if above 0."""
    shown = named_values(status.loss, status.metrics, 4)
    workers = [gauges for name, gauges in status.gauges.items() if name.startswith("worker-")]
    stale = [gauges["staleness_mean"] for gauges in workers if "staleness_mean" in gauges]
    if stale:
        shown.append(f"staleness {sum(stale) / len(stale):.2g}")
    if limit := int(max((gauges.get("staleness_limit", 0.0) for gauges in workers), default=0.0)):
        last = "last update is" if limit == 1 else f"last {limit} updates are"
        shown.append(f"steps begin before a worker's {last} applied{_reason(workers)}")
    if status.updates is not None and status.updates.lost:
        shown.append(f"updates lost {bound(status.updates)}{status.updates.lost:,}")
    return shown


def bound(updates: UpdateCounts) -> str:
    """Return what precedes updates that are lost or repeated: `at least ` for a lower bound."""
    return "at least " if updates.at_least else ""


def update_words(updates: UpdateCounts) -> str:
    """Format the account of updates: `applied 1200  lost at least 20`; repeated ones if any."""
    text = f"applied {updates.applied}  lost {bound(updates) if updates.lost else ''}{updates.lost}"
    if updates.repeated:
        text += f"  repeated {bound(updates)}{updates.repeated}"
    return text


def _reason(workers: Sequence[Mapping[str, float]]) -> str:
    """Return what an automatic limit of staleness depends on; '' for an explicit limit."""
    shares = [worker["exchange_share"] for worker in workers if "exchange_share" in worker]
    return f" ({exchange_words(median(shares))})" if shares else ""


def version(status: JobStatus) -> list[str]:
    """Return the model's version; nothing if a restored one is not loaded yet."""
    return (
        [f"version {status.version}"]
        if status.version or status.action not in ("evaluate", "predict")
        else []
    )


def processes(status: JobStatus) -> list[ProcessStatus]:
    """Return the processes that have not ended, in the order of their names."""
    return [process for process in in_order(status.processes) if process.state != "ended"]


def in_order(processes: Iterable[ProcessStatus]) -> list[ProcessStatus]:
    """Sort processes by name: servers first, then by index. A status has them by their starts."""

    def place(process: ProcessStatus) -> tuple[bool, ProcessName]:
        return process.role != Role.PS, ProcessName.parse(process.name)

    return sorted(processes, key=place)


def facts(status: JobStatus) -> str:
    """Return what a picture of the job shows below its bars."""
    eta = [] if status.eta_s is None else [f"ETA {duration(status.eta_s)}"]
    rate = f"{number(status.records_per_s)} records/s"
    return " · ".join([*eta, rate, *version(status), *measures(status)])


def head(status: JobStatus) -> str:
    """Describe the job in one line."""
    share = job_share(status)
    # The list of processes is bounded. Without a master there is nothing else.
    states: Mapping[str, int] = status.states.get("worker") or Counter(
        process.state for process in processes(status) if process.role == "worker"
    )
    workers, ready = sum(states.values()), states.get("ready", 0)
    parts = [status.message]
    if share.expected:
        parts.append(f"{share.done:,}/{amount(share.expected, 'record')} ({share.percent})")
    if status.records_per_s:
        parts.append(f"{number(status.records_per_s)}/s")
    if status.eta_s is not None:
        parts.append(f"ETA {duration(status.eta_s)}")
    if status.version or workers:
        parts += version(status)
    if workers:
        parts.append(f"{ready}/{amount(workers, 'worker')}")
    parts += measures(status)
    return ", ".join(parts)


def cluster_share(share: ClusterShare) -> str:
    """Describe what a job has of a shared cluster."""
    asked = str(share.high) if share.low == share.high else f"{share.low}:{share.high}"
    parts = [f"{share.placed} of {asked} workers have a node"]
    if share.guaranteed is None:
        return f"{parts[0]}, without a priority ladder"
    parts.append(f"{share.guaranteed} guaranteed")
    if share.rung is not None:
        parts.append(f"the last on rung {share.rung}")
    return ", ".join([*parts, f"weight {share.weight}"])


_QUIET_ENDS = ("finished", "drained")


def ends(before: JobStatus | None, now: JobStatus) -> list[Mapping[str, Any]]:
    """Return events for processes that ended between two statuses; none for the first status."""
    if before is None:
        return []
    over = {process.name for process in before.processes if process.state == "ended"}
    return [
        {
            "text": f"{process.name}: {process.message or 'ended'}",
            "cause": process.cause,
            "level": "info" if process.cause in _QUIET_ENDS else "warning",
        }
        for process in now.processes
        if process.state == "ended" and process.name not in over
    ]


def event_line(event: Mapping[str, Any]) -> str:
    """Format one event, with its cause if that adds information; safe for a terminal."""
    text, cause = str(event.get("text", "")), str(event.get("cause") or "").replace("_", " ")
    shows_cause = cause and cause not in _QUIET_ENDS and cause not in text.lower()
    return plain(f"{text} [{cause}]" if shows_cause else text)
