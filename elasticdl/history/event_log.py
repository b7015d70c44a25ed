"""Append a job's events to events.jsonl and keep the newest in memory.

A master that resumes a job continues its record. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, final

from elasticdl.history.compaction import HISTORY, Policy, Row, left_out
from elasticdl.history.diagnosis import Story
from elasticdl.history.job_event import EventKind, JobEvent, job_event
from elasticdl.history.lines import JsonLines, read_lines
from elasticdl.history.timeline import Timeline

EVENTS_BYTES = 16 << 20
METRICS_BYTES = 16 << 20
KEPT = 1_000
"""Number of events in memory."""


def _notable(row: Row) -> bool:
    """Return whether a row is an end with its cause, or a problem."""
    details = row.get("details") or {}
    return (
        bool(row.get("cause"))
        or row.get("level") in ("warning", "error")
        or details.get("step") in (EventKind.ENDED, EventKind.LOST)
    )


EVENTS_POLICY = Policy(EVENTS_BYTES, _notable)
METRICS_POLICY = Policy(METRICS_BYTES, lambda row: row.get("kind") == "evaluation", sparse=True)


@final
class EventLog:
    """A job's events, newest last.

    `began_s` is the job's time when this master starts; `last_s` is the time of the newest event.
    """

    def __init__(self, path: Path, wall_s: float, policy: Policy = EVENTS_POLICY) -> None:
        """Read the existing file. An unreadable file counts as empty."""
        self._lines = JsonLines(path, policy)
        self._newest: deque[JobEvent] = deque(maxlen=KEPT)
        self.timeline = Timeline()
        self.story = Story()
        self.next_seq = 0
        self.began_s = self.last_s = 0.0
        self.started_at = wall_s
        self.ended_before = False
        """The job had ended before this master resumed it."""
        try:
            before = read_events(path)[0]
        except OSError:
            before = []
        for event in before:
            self._take(event)
        if before:
            last = before[-1]
            self.started_at = last.at - last.at_s
            # The job's time is wall-clock time since its start, including time without a master.
            self.ended_before = last.kind == "job" and last.step == EventKind.ENDED
            self.began_s = last.at_s + max(0.0, wall_s - last.at)
            self.started_at = wall_s - self.began_s

    @property
    def dropped(self) -> int:
        """Number of events that are no longer in memory."""
        return self.next_seq - len(self._newest)

    def append(self, stamp: Mapping[str, float], fields: Mapping[str, Any]) -> JobEvent:
        """Append one event.

        `stamp` has `at` and `at_s`; `fields` has the other fields of a JobEvent.
        """
        event = job_event({**fields, **stamp}, self.next_seq)
        self._take(event)
        self._lines.append(event.as_dict())
        return event

    def after(self, seq: int = -1, limit: int = KEPT) -> list[JobEvent]:
        """Return events with a higher `seq`, oldest first; only the newest 1,000 are in memory."""
        skip = max(0, seq + 1 - self.next_seq + len(self._newest))
        return list(islice(self._newest, skip, skip + limit))

    def __iter__(self) -> Iterator[JobEvent]:
        return iter(tuple(self._newest))

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _take(self, event: JobEvent) -> None:
        self._newest.append(event)
        self.last_s = event.at_s
        self.next_seq = event.seq + 1
        self.timeline.add(event)
        self.story.add(event)


def read_events(path: Path) -> tuple[list[JobEvent], int]:
    """Return all events of a file in order, and the number of omitted ones.

    Raises OSError if the file exists but cannot be read.
    """
    lines, events = read_lines(path), []
    seq = 0
    for line in lines:
        try:
            event = job_event(line.row, seq)
        except ValueError:
            continue
        if event.seq >= seq:
            events.append(event)
            seq = event.seq + 1
    left = left_out(lines).lines
    return events, left


__all__ = ["EVENTS_POLICY", "HISTORY", "METRICS_POLICY", "EventLog", "read_events"]
