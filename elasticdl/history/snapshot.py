"""A job as page and report show it, in one JSON value.

A running job's value comes from the master's memory, an ended job's from its directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from elasticdl.formatting import finite
from elasticdl.history.diagnosis import Story
from elasticdl.history.event_log import KEPT, EventLog, read_events
from elasticdl.history.job_event import EventStep, JobEvent, meaning
from elasticdl.history.lines import read_lines
from elasticdl.history.series import SeriesStore
from elasticdl.history.timeline import Timeline
from elasticdl.job_status import JobStatus
from elasticdl.jobdir.outcome import Outcome

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

EVENTS, METRICS, SERIES = "events.jsonl", "metrics.jsonl", "series.json"
LOSS, METRIC = ("loss", "", ""), "metric"
Point: TypeAlias = tuple[str, str, str, float, int, float | None]
"""A point of a curve: its name, label and unit; seconds, records and value."""


@final
@dataclass(frozen=True, slots=True)
class About:
    """The fixed facts about a job.

    `started_at` is unix time. `resume_command` is the command that resumes the job after a stop.
    """

    name: str
    action: str
    strategy: str
    started_at: float
    version_of_elasticdl: str
    namespace: str = ""
    resume_command: str = ""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """The newest events, the number of earlier ones, and the timeline and story of all."""

    events: Sequence[JobEvent]
    dropped: int
    timeline: Mapping[str, Any]
    story: Mapping[str, Any]
    started_at: float


def about(spec: JobSpec, started_at: float, namespace: str = "", resume_command: str = "") -> About:
    """Return the facts of a spec's job."""
    strategy = str(spec.training.distribution_strategy)
    return About(
        spec.cluster.job_name,
        str(spec.action),
        strategy,
        started_at,
        installed_version(),
        namespace,
        resume_command,
    )


def installed_version() -> str:
    """Return this package's version, or 'unknown' if it was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("elasticdl")
    except PackageNotFoundError:
        return "unknown"


@final
@dataclass(frozen=True, slots=True)
class StatusReading:
    """A status with an observer's additions: /api/v1/status.

    `state` is one or two words. `now` is unix time. `view_age_s` is the age of what is known of the
    cluster.
    """

    about: About
    status: JobStatus
    state: str
    now: float
    view_age_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the fields of status and observer in one flat object."""
        age_s, started_at = self.view_age_s, self.about.started_at
        return {
            **self.status.to_json(),
            "job": self.about.name,
            "state": self.state,
            "strategy": self.about.strategy,
            "started_at": started_at,
            "now": round(self.now, 3),
            "uptime_s": round(max(0.0, self.now - started_at), 3),
            "eta_s": self.status.eta_s,
            "cluster_view_age_s": None if age_s is None else round(age_s, 3),
        }


def snapshot(
    reading: StatusReading,
    record: Record,
    series: Iterable[Mapping[str, Any]],
    outcome: Outcome | None = None,
    logs: Iterable[Mapping[str, Any]] = (),
) -> dict[str, object]:
    """Return the JSON value of page and report; see the module.

    `outcome` is None for a running job. NaN and infinity become null. `logs` are the ends of logs,
    `{"process", "text"}`, for a report. The live page reads logs separately.
    """
    ended = outcome and {
        "exit_code": int(outcome.exit_code),
        "message": outcome.message,
        "hint": outcome.hint,
    }
    whole = {
        "job": asdict(reading.about),
        "status": reading.to_json(),
        "events": [event.as_dict() for event in record.events],
        "events_dropped": record.dropped,
        "timeline": record.timeline,
        "story": record.story,
        "series": list(series),
        "outcome": ended,
        "logs": list(logs),
    }
    return {key: finite(value) for key, value in whole.items()}


def record_of(event_log: EventLog, status: JobStatus) -> Record:
    """Return the record in a master's memory."""
    rows = {process.name: process for process in status.processes}
    timeline = event_log.timeline.as_dict(status.at_s, rows)
    story = event_log.story.as_dict(status.at_s)
    return Record(tuple(event_log), event_log.dropped, timeline, story, event_log.started_at)


def record_in(
    directory: Path, now_s: float | None = None, killed: str = "", heard_s: float = 0.0
) -> Record:
    """Return the record in the directory of a running or an ended job.

    `now_s` defaults to the time of the last event. A non-empty `killed` says that the master was
    killed, and all processes with it. The master showed signs of life until the last event or
    `heard_s`, whichever is later.

    Raises OSError if the directory cannot be read.
    """
    events, left_out = read_events(directory / EVENTS)
    timeline, story = Timeline(), Story()
    for event in events:
        timeline.add(event)
        story.add(event)
    if killed and events and not (events[-1].kind == "job" and events[-1].step == EventStep.ENDED):
        last = events[-1]
        since_s = max(0.0, heard_s - last.at_s)
        end = JobEvent(
            last.seq + 1,
            last.at + since_s,
            last.at_s + since_s,
            "job",
            killed,
            level="error",
            details=meaning(EventStep.ENDED),
        )
        events.append(end)
        timeline.cut_off(end)
        story.cut_off(end)
    kept = events[-KEPT:]
    started_at = events[-1].at - events[-1].at_s if events else 0.0
    dropped = left_out + len(events) - len(kept)
    return Record(kept, dropped, timeline.as_dict(now_s), story.as_dict(now_s), started_at)


def series_in(directory: Path) -> list[dict[str, Any]]:
    """Return the saved curves, or else loss and metrics from metrics.jsonl.

    Raises OSError.
    """
    book = SeriesStore()
    with suppress(FileNotFoundError, ValueError, RecursionError):
        saved = json.loads((directory / SERIES).read_text(encoding="utf-8"))
        if isinstance(saved, list):
            book.load(saved)
            return book.as_list()
    for line in read_lines(directory / METRICS):
        note_metrics(book, line.row)
    return book.as_list()


def note_metrics(book: SeriesStore, row: Mapping[str, Any]) -> list[Point]:
    """Add a row of metrics.jsonl to the curves `loss` and `metric`, and return its points."""
    values, at_s, records = row.get("values"), row.get("at_s"), row.get("records")
    if (
        not isinstance(values, Mapping)
        or not isinstance(at_s, int | float)
        or not isinstance(records, int)
    ):
        return []
    points: list[Point] = []
    if row.get("kind") == "training" and "loss" in values:
        points = [(*LOSS, at_s, records, values["loss"])]
    elif row.get("kind") == "evaluation":
        points = [(METRIC, str(name), "", at_s, records, value) for name, value in values.items()]
    for name, label, unit, _, _, value in points:
        book.add((name, label, unit), at_s, records, value)
    return points
