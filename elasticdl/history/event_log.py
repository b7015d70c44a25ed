"""The record of a job while it is made: what is announced goes to events.jsonl, and stays in mind
for whoever looks.

A master that goes on with a job goes on with its record. Use it from one thread.
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
"""Occurrences in mind."""


def _notable(row: Row) -> bool:
    """Ends with their causes, and what went wrong."""
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
    """What happened, newest last.

    `began_s`: where the time of the job goes on for this master; `last_s`: of the newest.
    """

    def __init__(self, path: Path, wall_s: float, policy: Policy = EVENTS_POLICY) -> None:
        """Reads what is there already. A file that cannot be read counts as empty."""
        self._lines = JsonLines(path, policy)
        self._newest: deque[JobEvent] = deque(maxlen=KEPT)
        self.timeline = Timeline()
        self.story = Story()
        self.next_seq = 0
        self.began_s = self.last_s = 0.0
        self.started_at = wall_s
        self.ended_before = False
        """The job had ended, and is gone on with."""
        try:
            before = read_occurrences(path)[0]
        except OSError:
            before = []
        for one in before:
            self._take(one)
        if before:
            last = before[-1]
            self.started_at = last.at - last.at_s
            # Its time is that of the world since it began, with a master or without one: no gap is
            # folded away.
            self.ended_before = last.kind == "job" and last.step == EventKind.ENDED
            self.began_s = last.at_s + max(0.0, wall_s - last.at)
            self.started_at = wall_s - self.began_s

    @property
    def dropped(self) -> int:
        """Occurrences that are not in mind any more."""
        return self.next_seq - len(self._newest)

    def append(self, stamp: Mapping[str, float], told: Mapping[str, Any]) -> JobEvent:
        """Write one down. `stamp` has `at` and `at_s`, `told` the rest of a JobEvent."""
        one = job_event({**told, **stamp}, self.next_seq)
        self._take(one)
        self._lines.append(one.as_dict())
        return one

    def after(self, seq: int = -1, limit: int = KEPT) -> list[JobEvent]:
        """Those with a higher number, the oldest first; only the newest 1,000 are in mind."""
        skip = max(0, seq + 1 - self.next_seq + len(self._newest))
        return list(islice(self._newest, skip, skip + limit))

    def __iter__(self) -> Iterator[JobEvent]:
        return iter(tuple(self._newest))

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _take(self, one: JobEvent) -> None:
        self._newest.append(one)
        self.last_s = one.at_s
        self.next_seq = one.seq + 1
        self.timeline.add(one)
        self.story.add(one)


def read_occurrences(path: Path) -> tuple[list[JobEvent], int]:
    """All that a file has, in order, and how many more there were.

    Raises OSError if it is there and cannot be read.
    """
    lines, found = read_lines(path), []
    seq = 0
    for line in lines:
        try:
            one = job_event(line.row, seq)
        except ValueError:
            continue
        if one.seq >= seq:
            found.append(one)
            seq = one.seq + 1
    left = left_out(lines).lines
    return found, left


__all__ = ["EVENTS_POLICY", "HISTORY", "METRICS_POLICY", "EventLog", "read_occurrences"]
