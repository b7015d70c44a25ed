"""Sample the job once a second: always for its curves, and for changes while anyone watches.

The job of thousands of workers is sampled less often: see `_TIMES`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias, final

from elasticdl.history.snapshot import StatusReading
from elasticdl.job_status import ProcessStatus
from elasticdl.master.status.event_frames import EventFrames, event_bytes
from elasticdl.master.status.job_view import JobView

_LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
_LOOK_ON_S = 30.0
"""Keep publishing for this long after the last browser left, since browsers reconnect."""
_TIMES, _TIMES_WATCHED = 100.0, 20.0
"""A look is due after so many times what the last one took: unwatched, and watched."""
_MOST_EVENTS = 200
"""Limit per frame; further events come with the next frame."""
_FIELDS = tuple(field.name for field in fields(ProcessStatus))
Event: TypeAlias = tuple[str, object]
"""The name of a server-sent event, and its JSON value."""


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A process with its gauges."""

    process: ProcessStatus
    gauges: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """Return one flat object."""
        # Not `asdict`, which copies each value: there may be a thousand rows a second.
        return {**self.gauges, **{name: getattr(self.process, name) for name in _FIELDS}}


def head_of(reading: StatusReading) -> dict[str, object]:
    """Return a reading without the processes."""
    without = replace(reading.status, processes=(), gauges={})
    head = replace(reading, status=without).to_json()
    del head["processes"], head["gauges"]
    return head


@final
class ChangeFeed:
    """Publishes changes of the job. Use it from one event loop."""

    def __init__(self, view: JobView, feed: EventFrames) -> None:
        self._view = view
        self.feed = feed
        self._head: dict[str, object] = {}
        self._rows: dict[str, Row] = {}
        self._seq, self._looks = -1, -1
        self._whole: tuple[int, bytes] = (-1, b"")
        self._watchers = 0
        self._idle_s = _LOOK_ON_S
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Future[None] | None = None

    @property
    def watchers(self) -> int:
        """Number of watching browsers."""
        return self._watchers

    def join(self) -> None:
        """Add a watcher."""
        self._watchers += 1
        self.heed()

    def leave(self) -> None:
        """Remove a watcher."""
        self._watchers -= 1

    def heed(self) -> None:
        """Publish changes from here on: a client reads the job and may start to watch it."""
        if self._idle_s >= _LOOK_ON_S and not self.feed.closed:
            if self._head:
                # A browser may return to frames from before the pause.
                self._publish(self._view.reading(), [])
            else:
                self._seq = self._view.event_log.next_seq - 1
                self._look(self._view.reading())
        self._idle_s = 0.0

    def start(self) -> None:
        """Start to sample the job once a second."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="looks at the job for onlookers"
        )

    def whole(self) -> bytes:
        """Return the state as of the newest frame, for a new browser."""
        # Encode once per frame, not per browser: many may reconnect at the same time.
        if self._whole[0] != self.feed.newest:
            rows = {"rows": [row.to_json() for row in self._rows.values()], "gone": [], "all": True}
            data = event_bytes("status", self._head) + event_bytes(
                "processes", rows, self.feed.id(self.feed.newest)
            )
            self._whole = (self.feed.newest, data)
        return self._whole[1]

    async def close(self, ended: Mapping[str, object] | None) -> None:
        """Publish the last changes and the end of the job.

        `ended` is None if the job continues with another master.
        """
        for task in (self._task, self._saving):
            if task is not None:
                task.cancel()
                # Wait until it is cancelled: it must not publish after the end.
                await asyncio.gather(task, return_exceptions=True)
        # Cached readings may be from before the end.
        self._view.expire()
        reading = self._view.reading()
        self._view.collector.look(reading.status)
        self._view.collector.save()
        if self._idle_s < _LOOK_ON_S:
            self._publish(reading, [("ended", dict(ended))] if ended is not None else [])
        self.feed.close()

    async def _run(self) -> None:
        took_s = 0.0
        while True:
            # With thousands of workers a look takes a tenth of a second.
            pause_s = took_s * (_TIMES_WATCHED if self._watchers else _TIMES)
            await asyncio.sleep(max(LOOK_EVERY_S, pause_s))
            begun_s = time.monotonic()
            try:
                reading = self._view.reading()
                read_s = time.monotonic() - begun_s
                # Let tasks that are waiting run first.
                await asyncio.sleep(0)
                begun_s = time.monotonic() - read_s
                self._tick(reading, max(LOOK_EVERY_S, pause_s))
            except Exception:  # noqa: BLE001 - the top of a task: an error in the page must not reach the job
                _LOG.exception("the page is no longer updated")
            took_s = time.monotonic() - begun_s

    def _tick(self, reading: StatusReading, since_s: float) -> None:
        collector = self._view.collector
        collector.look(reading.status)
        self._idle_s = 0.0 if self._watchers else self._idle_s + since_s
        if self._idle_s < _LOOK_ON_S:
            self._publish(reading, [])
        if self._saving is None or self._saving.done():
            # In the background, since a volume may be slow.
            self._saving = asyncio.ensure_future(collector.save_if_due())

    def _publish(self, reading: StatusReading, last: list[Event]) -> None:
        self.feed.publish([*self._look(reading), *last])

    def _look(self, reading: StatusReading) -> list[Event]:
        """Return the changes since the last sample."""
        return [
            *self._status_changes(reading),
            *self._row_changes(reading),
            *self._news(),
            *self._samples(),
        ]

    def _status_changes(self, reading: StatusReading) -> Iterator[Event]:
        # Send changed fields only: most of the head stays equal from second to second.
        before, self._head = self._head, head_of(reading)
        changed = {
            key: value
            for key, value in self._head.items()
            if key not in before or before[key] != value
        }
        if changed:
            yield "status", changed

    def _row_changes(self, reading: StatusReading) -> Iterator[Event]:
        status, before = reading.status, self._rows
        self._rows = {
            process.name: Row(process, status.gauges.get(process.name, {}))
            for process in status.processes
        }
        changed = [row.to_json() for name, row in self._rows.items() if before.get(name) != row]
        gone = [name for name in before if name not in self._rows]
        if changed or gone:
            yield "processes", {"rows": changed, "gone": gone}

    def _news(self) -> Iterator[Event]:
        events = self._view.event_log.after(self._seq, _MOST_EVENTS)
        if events:
            self._seq = events[-1].seq
            yield "events", [event.as_dict() for event in events]

    def _samples(self) -> Iterator[Event]:
        collector = self._view.collector
        if collector.newest and collector.looks != self._looks:
            yield "samples", [sample.as_dict() for sample in collector.newest]
        self._looks = collector.looks
