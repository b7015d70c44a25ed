"""Append a job's events to events.jsonl and keep the newest in memory.

A master that resumes a job continues its record. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, final

from elasticdl.history.compaction import HISTORY, ParsedLine, Policy, Row, left_out, parsed
from elasticdl.history.diagnosis import Story
from elasticdl.history.job_event import EventStep, JobEvent, job_event
from elasticdl.history.lines import JsonLines, read_lines, read_text
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
        or details.get("step") in (EventStep.ENDED, EventStep.LOST)
    )


EVENTS_POLICY = Policy(EVENTS_BYTES, _notable)
METRICS_POLICY = Policy(METRICS_BYTES, lambda row: row.get("kind") == "evaluation", sparse=True)


@final
class EventLog:
    """A job's events, newest last.

    `began_s` is the job's time when this master starts; `last_s` is the time of the newest event.
    """

    def __init__(self, path: Path, wall_s: float, policy: Policy = EVENTS_POLICY) -> None:
        """Read the newest events of the existing file; `catch_up` reads the others.

        An unreadable file counts as empty.
        """
        self._lines = JsonLines(path, policy)
        self._newest: deque[JobEvent] = deque(maxlen=KEPT)
        self._timeline = Timeline()
        self._story = Story()
        self._unread: deque[bytes] = deque()
        """Older lines, which are not parsed yet."""
        self._unread_seq = 0
        """The least `seq` of the next unread line."""
        self._later: list[JobEvent] = []
        """Events that timeline and story get after the unread ones."""
        self.next_seq = 0
        self.began_s = self.last_s = 0.0
        self.started_at = wall_s
        self.ended_before = False
        """The job had ended before this master resumed it."""
        before = self._begin(path)
        for event in before:
            self._take(event)
        if before:
            last = before[-1]
            self.started_at = last.at - last.at_s
            # The job's time is wall-clock time since its start, including time without a master.
            self.ended_before = last.kind == "job" and last.step == EventStep.ENDED
            self.began_s = last.at_s + max(0.0, wall_s - last.at)
            self.started_at = wall_s - self.began_s

    @property
    def dropped(self) -> int:
        """Number of events that are no longer in memory."""
        return self.next_seq - len(self._newest)

    @property
    def timeline(self) -> Timeline:
        """Bars and marks of all events."""
        self.catch_up()
        return self._timeline

    @property
    def story(self) -> Story:
        """The diagnosis from all events."""
        self.catch_up()
        return self._story

    def catch_up(self, most: int | None = None) -> bool:
        """Read up to `most` older lines, or all; return whether some are left.

        A job with thousands of processes has tens of thousands, which take half a second.
        """
        count = len(self._unread) if most is None else min(most, len(self._unread))
        lines = parsed(b"\n".join(self._unread.popleft() for _ in range(count)))
        for event in _in_order(lines, self._unread_seq):
            self._unread_seq = event.seq + 1
            self._tell(event)
        if not self._unread:
            later, self._later = self._later, []
            for event in later:
                self._tell(event)
        return bool(self._unread)

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
        self._lines.close()

    def _take(self, event: JobEvent) -> None:
        self._newest.append(event)
        self.last_s = event.at_s
        self.next_seq = event.seq + 1
        if self._unread:
            self._later.append(event)
        else:
            self._tell(event)

    def _tell(self, event: JobEvent) -> None:
        self._timeline.add(event)
        self._story.add(event)

    def _begin(self, path: Path) -> list[JobEvent]:
        """Return the newest events of the file, and keep the other lines for `catch_up`."""
        try:
            lines = read_text(path).removesuffix(b"\n").split(b"\n")
        except OSError:
            return []
        older, newest = lines[:-KEPT], parsed(b"\n".join(lines[-KEPT:]))
        if not all("seq" in line.row for line in newest):
            # Such a line has the number after the one before it.
            older, newest = [], parsed(b"\n".join(lines))
        self._unread.extend(older)
        return list(_in_order(newest, 0))


def read_events(path: Path) -> tuple[list[JobEvent], int]:
    """Return all events of a file in order, and the number of omitted ones.

    Raises OSError if the file exists but cannot be read.
    """
    lines = read_lines(path)
    return list(_in_order(lines, 0)), left_out(lines).lines


def _in_order(lines: Sequence[ParsedLine], seq: int) -> Iterator[JobEvent]:
    """Yield the valid events of lines whose numbers grow from `seq` on."""
    for line in lines:
        try:
            event = job_event(line.row, seq)
        except ValueError:
            continue
        if event.seq >= seq:
            yield event
            seq = event.seq + 1


__all__ = ["EVENTS_POLICY", "HISTORY", "METRICS_POLICY", "EventLog", "read_events"]
