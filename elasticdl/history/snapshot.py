"""A job as page and report show it, in one JSON value: live out of the master's memory, later out
of the job's directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from elasticdl.formatting import characters
from elasticdl.history.diagnosis import Story
from elasticdl.history.event_log import KEPT, EventLog, read_occurrences
from elasticdl.history.job_event import EventKind, JobEvent, meaning
from elasticdl.history.lines import read_lines
from elasticdl.history.series import SeriesBook
from elasticdl.history.timeline import Timeline

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

EVENTS, METRICS, SERIES = "events.jsonl", "metrics.jsonl", "series.json"
LOSS, METRIC = ("loss", "", ""), "metric"
Point: TypeAlias = tuple[str, str, str, float, int, float | None]
"""Of a curve: its name, label and unit; seconds, records, value."""


@final
@dataclass(frozen=True, slots=True)
class About:
    """What a job is, from its beginning to its end.

    `started_at` is unix time; `way_on`: how it is gone on with once it was stopped.
    """

    name: str
    action: str
    strategy: str
    started_at: float
    version_of_elasticdl: str
    namespace: str = ""
    way_on: str = ""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """What happened: the newest occurrences, how many there were before them, and timeline and
    story of all.
    """

    occurrences: Sequence[JobEvent]
    dropped: int
    timeline: Mapping[str, Any]
    story: Mapping[str, Any]
    started_at: float


def about(spec: JobSpec, started_at: float, namespace: str = "", way_on: str = "") -> About:
    """Of the job of a spec."""
    strategy = str(spec.training.distribution_strategy)
    return About(
        spec.cluster.job_name,
        str(spec.action),
        strategy,
        started_at,
        installed_version(),
        namespace,
        way_on,
    )


def installed_version() -> str:
    """Of this package; 'unknown' for one that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("elasticdl")
    except PackageNotFoundError:
        return "unknown"


def snapshot(
    of: About,
    status: Mapping[str, Any],
    record: Record,
    series: Iterable[Mapping[str, Any]],
    outcome: Mapping[str, Any] | None = None,
    logs: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """See the module.

    `outcome` has exit_code, message and hint of a job that has ended. NaN and infinity become null.

    `logs` are the ends of logs, `{"process", "text"}`, for a report; the live page reads them by
    itself.
    """
    ended = (
        None
        if outcome is None
        else {key: outcome.get(key) for key in ("exit_code", "message", "hint")}
    )
    whole = {
        "job": asdict(of),
        "status": status,
        "occurrences": [one.as_dict() for one in record.occurrences],
        "occurrences_dropped": record.dropped,
        "timeline": record.timeline,
        "story": record.story,
        "series": list(series),
        "outcome": ended,
        "logs": list(logs),
    }
    return {key: finite(value) for key, value in whole.items()}


def shown_status(
    of: About, status: Mapping[str, Any], *, now: float, state: str, view_age_s: float | None = None
) -> dict[str, Any]:
    """A master's status with what /api/v1/status adds. `state` in words; `now` is unix time."""
    added = {
        "job": of.name,
        "state": state,
        "strategy": of.strategy,
        "started_at": of.started_at,
        "now": round(now, 3),
        "uptime_s": round(max(0.0, now - of.started_at), 3),
        "eta_s": eta_s(status),
        "cluster_view_age_s": None if view_age_s is None else round(view_age_s, 3),
    }
    return {**status, **added}


def eta_s(status: Mapping[str, Any]) -> float | None:
    """Seconds to the last record at the present rate; None while nothing moves, and when no more is
    to come.
    """
    records, rate = status["records"], float(status.get("records_per_s") or 0)
    left = records.get("left", records["expected"] - records["trained"])
    to_come = status.get("exit_code") is None and not (status.get("receipt") or {}).get("why_left")
    return left / rate if rate > 0 and left > 0 and to_come else None


def finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The same without NaN and infinity, which JSON has not: null; and without halves of
    characters.
    """
    match value:
        case float():
            return value if value - value == 0.0 else None
        case str():
            return characters(value)
        case Mapping():
            return {characters(str(key)): finite(one) for key, one in value.items()}
        case list() | tuple():
            return [finite(one) for one in value]
        case _:
            return value


def record_of(event_log: EventLog, status: Mapping[str, Any]) -> Record:
    """Out of a master's memory."""
    rows = {str(row["name"]): row for row in status.get("processes") or ()}
    now_s = float(status.get("at_s") or 0.0)
    timeline, story = event_log.timeline.as_dict(now_s, rows), event_log.story.as_dict(now_s)
    return Record(tuple(event_log), event_log.dropped, timeline, story, event_log.started_at)


def record_in(
    directory: Path, now_s: float | None = None, killed: str = "", heard_s: float = 0.0
) -> Record:
    """Out of a job's directory, live or ended.

    Raises OSError if it cannot be read. `now_s`: default, the last occurrence's.

    `killed`: whoever wrote it was, in these words, and all processes with it; it was heard of until
    then, and until `heard_s`.
    """
    occurrences, left_out = read_occurrences(directory / EVENTS)
    timeline, story = Timeline(), Story()
    for one in occurrences:
        timeline.add(one)
        story.add(one)
    if (
        killed
        and occurrences
        and not (occurrences[-1].kind == "job" and occurrences[-1].step == EventKind.ENDED)
    ):
        last = occurrences[-1]
        since_s = max(0.0, heard_s - last.at_s)
        end = JobEvent(
            last.seq + 1,
            last.at + since_s,
            last.at_s + since_s,
            "job",
            killed,
            level="error",
            details=meaning(EventKind.ENDED),
        )
        occurrences.append(end)
        timeline.cut_off(end)
        story.cut_off(end)
    kept = occurrences[-KEPT:]
    started_at = occurrences[-1].at - occurrences[-1].at_s if occurrences else 0.0
    dropped = left_out + len(occurrences) - len(kept)
    return Record(kept, dropped, timeline.as_dict(now_s), story.as_dict(now_s), started_at)


def series_in(directory: Path) -> list[dict[str, Any]]:
    """The curves that were saved; where there are none, loss and metrics as metrics.jsonl has them.

    Raises OSError.
    """
    book = SeriesBook()
    with suppress(FileNotFoundError, ValueError, RecursionError):
        saved = json.loads((directory / SERIES).read_text(encoding="utf-8"))
        if isinstance(saved, list):
            book.load(saved)
            return book.as_list()
    for line in read_lines(directory / METRICS):
        note_metrics(book, line.row)
    return book.as_list()


def note_metrics(book: SeriesBook, row: Mapping[str, Any]) -> list[Point]:
    """A row of metrics.jsonl as points of the curves `loss` and `metric`; those points."""
    values, at_s, records = row.get("values"), row.get("at_s"), row.get("records")
    if (
        not isinstance(values, Mapping)
        or not isinstance(at_s, int | float)
        or not isinstance(records, int)
    ):
        return []
    found: list[Point] = []
    if row.get("kind") == "training" and "loss" in values:
        found = [(*LOSS, at_s, records, values["loss"])]
    elif row.get("kind") == "evaluation":
        found = [(METRIC, str(name), "", at_s, records, value) for name, value in values.items()]
    for name, label, unit, _, _, value in found:
        book.add((name, label, unit), at_s, records, value)
    return found
