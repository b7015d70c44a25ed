"""Progress for a file or a pipe: a line per change."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import final

from elasticdl.cli.jobs.job import Report
from elasticdl.cli.views import progress
from elasticdl.cli.views.console import plain
from elasticdl.job_status import JobStatus

_AGES = re.compile(r"\d+ s\b")
EVERY_S = 10.0
"""Records change constantly, so they appear this often; other changes appear at once."""


@final
class LineProgress:
    """Takes successive reports and returns lines with the changes."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, wall: Callable[[], str] | None = None
    ) -> None:
        """`wall` returns the time of day for the start of a line."""
        self._now_s = now_s
        self._wall = wall or (lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
        self._before: JobStatus | None = None
        self._standing: tuple[object, ...] = ()
        self._waits: frozenset[str] = frozenset()
        self._head, self._told_s = "", float("-inf")

    def lines(self, report: Report) -> list[str]:
        """Return what is new: ends of processes, reasons to wait, the job's state."""
        status, lines = report.status, []
        lines += [progress.event_line(event) for event in progress.ends(self._before, status)]
        # A wait that only grew longer is no change.
        waits = {_AGES.sub("# s", reason): reason for reason in status.waiting}
        lines += [
            plain(f"waiting: {reason}")
            for shape, reason in waits.items()
            if shape not in self._waits
        ]
        self._before, self._waits = status, frozenset(waits)
        standing = _standing(report)
        head = plain(progress.head(status))
        due = self._now_s() - self._told_s >= EVERY_S
        if standing != self._standing or (due and head != self._head):
            self._standing, self._head, self._told_s = standing, head, self._now_s()
            lines.append(head)
        stamp = self._wall()
        return [f"{stamp}  {line}" for line in lines]


def _standing(report: Report) -> tuple[object, ...]:
    """Return the values whose change deserves a line."""
    status = report.status
    processes = tuple((process.name, process.state) for process in progress.processes(status))
    metrics = str(status.metrics)  # as text, since NaN never equals itself
    checkpoints = len(status.checkpoints)
    return (report.state, status.message, status.epoch, processes, metrics, checkpoints)
