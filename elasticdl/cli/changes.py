"""A job that is watched into a file or a pipe: a line when something has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, final

from elasticdl.cli import progress
from elasticdl.cli.found import Report
from elasticdl.cli.telling import plain

EVERY_S = 10.0
"""Records come in all the time: so often they are told, and whatever else changes at once."""


@final
class Changes:
    """Takes one report after the other and gives the lines that say what is new."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, wall: Callable[[], str] | None = None) -> None:
        """`wall`: the time of day that a line begins with."""
        self._now_s = now_s
        self._wall = wall or (lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
        self._before: Mapping[str, Any] | None = None
        self._standing: tuple[object, ...] = ()
        self._waits: tuple[str, ...] = ()
        self._head, self._told_s = "", float("-inf")

    def lines(self, report: Report) -> list[str]:
        """What is new: ends of processes, reasons to wait, how the job stands."""
        status, found = report.status, []
        found += [progress.event_line(event) for event in progress.ends(self._before, status)]
        waits = tuple(status.get("waiting") or ())
        found += [plain(f"waiting: {reason}") for reason in waits if reason not in self._waits]
        self._before, self._waits = status, waits
        standing = _standing(report)
        head = plain(progress.head(status))
        due = self._now_s() - self._told_s >= EVERY_S
        if standing != self._standing or (due and head != self._head):
            self._standing, self._head, self._told_s = standing, head, self._now_s()
            found.append(head)
        stamp = self._wall()
        return [f"{stamp}  {line}" for line in found]


def _standing(report: Report) -> tuple[object, ...]:
    """What is worth a line of its own."""
    status = report.status
    processes = tuple((one["name"], one["state"]) for one in progress.processes(status))
    metrics = str(status.get("metrics"))  # as text: NaN is never equal to itself
    checkpoints = len(status.get("checkpoints") or ())
    return (report.state, status["message"], status["epoch"], processes, metrics, checkpoints)
