"""Sample the master's status once a second into bounded curves, in memory and on disk.

Use it from one event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from elasticdl.clock import Clock
from elasticdl.history.lines import JsonLines
from elasticdl.history.series import SeriesStore
from elasticdl.history.snapshot import note_metrics
from elasticdl.job_status import JobStatus
from elasticdl.master.tensorboard_scalars import ScalarRuns
from elasticdl.private_file import replace_atomically

_LOG = logging.getLogger(__name__)
_RATE_WINDOW_S = 10.0
_FIRST_SAVE_S = 1.0
"""By then the master has removed the previous run's files."""
_SAVE_EVERY_S = 5.0
_SAVE_SHARE = 0.005
"""Maximum share of the time for saving: slower saves are rarer."""

Name: TypeAlias = tuple[str, str, str]
"""Name, label and unit of a curve."""
_BY_WORKER = (
    ("records_per_s", "records_per_s", "records/s", 1.0),
    ("staleness", "staleness_mean", "updates", 1.0),
    ("pull_s", "pull_ms", "s", 1e-3),
    ("push_s", "push_ms", "s", 1e-3),
)
"""Name of the curve, of the worker's gauge, unit and factor."""


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One new point of a curve, as measured."""

    name: str
    label: str
    unit: str
    at_s: float
    records: int
    value: float | None

    def as_dict(self) -> dict[str, Any]:
        # NaN and infinity are not JSON: their difference from themselves is not 0.
        value = self.value if self.value is not None and self.value - self.value == 0.0 else None
        return {
            "name": self.name,
            "label": self.label,
            "unit": self.unit,
            "at_s": round(self.at_s, 3),
            "records": self.records,
            "value": value,
        }


@final
class Collector:
    """Keeps the curves.

    `newest` holds the points of the last sample and the rows of metrics.jsonl since the one before.
    `looks` counts the samples.
    """

    def __init__(self, path: Path, clock: Clock, newest: Path | None = None) -> None:
        """Continue the curves in `path`, which is series.json.

        `newest` is the file of the current status, which is saved as often.
        """
        self._path = path
        self._newest_path = newest
        self._status: JobStatus | None = None
        self._clock = clock
        self._series = SeriesStore()
        self._versions: deque[tuple[float, int]] = deque()
        self._recorded: list[Sample] = []
        self._save_at_s = clock.now_s() + _FIRST_SAVE_S
        self._affordable_at_s = self._save_at_s
        """The earliest time of the next save."""
        self.newest: list[Sample] = []
        self.looks = 0
        self.paused = False
        """Whether to sample and write nothing: an earlier run's files stay until the job begins."""
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            self._series.load(saved if isinstance(saved, list) else ())
        except (OSError, ValueError):
            pass

    def as_list(self) -> list[dict[str, Any]]:
        """Return all curves, as the snapshot has them."""
        return self._series.as_list()

    def recorded(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics.jsonl to the curves of loss and metrics."""
        self._recorded += [Sample(*point) for point in note_metrics(self._series, row)]

    def look(self, status: JobStatus) -> list[Sample]:
        """Sample a status and return the new points.

        Takes about a millisecond for a thousand workers.
        """
        if self.paused:
            return []
        at_s, records = status.at_s, status.records.trained
        # A gap, so that the curve does not connect two runs of the job.
        if not self.looks:
            self._series.break_off(at_s)
        samples, self._recorded = self._recorded, []
        if self._status is not None and status.checkpoints[-1:] != self._status.checkpoints[-1:]:
            # After a kill, the saved counts are then rarely behind the newest checkpoint: a save
            # comes soon after it, within the share of the time that saving may take.
            self._save_at_s = min(self._save_at_s, self._affordable_at_s)
        self._status = status
        for (name, label, unit), value in self._values(status):
            if self._series.add((name, label, unit), at_s, records, value):
                samples.append(Sample(name, label, unit, at_s, records, value))
        self.newest, self.looks = samples, self.looks + 1
        return samples

    async def save_if_due(self) -> None:
        """Save the curves when a save is due; only the encoding runs on the loop."""
        begin_s = self._clock.now_s()
        if begin_s < self._save_at_s:
            return
        text, status = self._text(), ""
        curves_s = self._clock.now_s() - begin_s
        # Let tasks that are waiting run between the two.
        await asyncio.sleep(0)
        again_s = self._clock.now_s()
        if self._newest_path is not None and self._status is not None:
            status = json.dumps({"status": self._status.to_json()})
        status_s = self._clock.now_s() - again_s
        # Save less often when encoding is slow: it blocks the event loop.
        self._affordable_at_s = begin_s + (curves_s + status_s) / _SAVE_SHARE
        self._save_at_s = max(begin_s + _SAVE_EVERY_S, self._affordable_at_s)
        await asyncio.to_thread(self._write, text, status)

    def save(self) -> None:
        """Save the curves now."""
        self._write(self._text())

    def _text(self) -> str:
        return json.dumps(self._series.as_list(), allow_nan=False, separators=(",", ":"))

    def _write(self, text: str, status: str = "") -> None:
        if self.paused:
            return
        try:
            replace_atomically(self._path, text.encode(), durable=False)
            if status and self._newest_path is not None:
                replace_atomically(self._newest_path, status.encode(), durable=False)
        except OSError as error:
            _LOG.warning("cannot save the curves in %s: %s", self._path, error)

    def _values(self, status: JobStatus) -> Iterator[tuple[Name, float]]:
        yield ("records_per_s", "", "records/s"), status.records_per_s
        yield ("workers", "", "workers"), float(status.scale.observed)
        yield ("updates_per_s", "", "updates/s"), self._updates_per_s(status.at_s, status.version)
        for process, gauges in status.gauges.items():
            if process.startswith("worker-"):
                for name, gauge, unit, factor in _BY_WORKER:
                    if gauge in gauges:
                        yield (name, process, unit), gauges[gauge] * factor

    def _updates_per_s(self, at_s: float, version: int) -> float:
        """Return the mean rate over ten seconds, since heartbeats report versions in jumps.

        A decreasing version counts as no updates.
        """
        self._versions.append((at_s, version))
        # Keep one sample from before the window, so that the rate covers all of it.
        while len(self._versions) > 2 and self._versions[1][0] <= at_s - _RATE_WINDOW_S:
            self._versions.popleft()
        first_s, first = self._versions[0]
        return max(0, version - first) / (at_s - first_s) if at_s > first_s else 0.0


@final
class MetricsLog:
    """Writes metrics.jsonl and the curves made from it."""

    def __init__(
        self, lines: JsonLines, collector: Collector, scalars: ScalarRuns | None = None
    ) -> None:
        self._lines = lines
        self._collector = collector
        self._scalars = scalars

    def append(self, value: Mapping[str, Any]) -> None:
        self._lines.append(value)
        self._collector.recorded(value)
        if self._scalars is not None:
            self._scalars.append(value)

    def close(self) -> None:
        self._lines.close()
        if self._scalars is not None:
            self._scalars.close()
