"""Compares how long parameter servers take to answer this worker's pulls and pushes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from statistics import median_low
from typing import final

from elasticdl.worker.process.gauges import Gauges

_NEWEST = 0.1
"""Weight of the newest answer in the mean of a server."""
_EVERY = 10
"""Pushes between two comparisons."""


@final
class ServerTimes:
    """Reports the slowest server beside the others, as gauges: of a step's pull and push together.

    A server that seldom runs delays whichever comes at the wrong moment. Thread-safe.
    """

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self._lock = threading.Lock()
        self._pull_s: list[float] = []
        self._push_s: list[float] = []
        self._pushes = 0

    def pulled(self, seconds: Sequence[float]) -> None:
        """A pull took each server so long."""
        with self._lock:
            _add(self._pull_s, seconds)

    def pushed(self, seconds: Sequence[float]) -> None:
        """A push took each server so long. One server alone has nothing to be compared with."""
        with self._lock:
            _add(self._push_s, seconds)
            self._pushes += 1
            if self._pushes % _EVERY == 0 and len(self._pull_s) == len(self._push_s) > 1:
                self._compare()

    def _compare(self) -> None:
        both_s = [pull + push for pull, push in zip(self._pull_s, self._push_s, strict=True)]
        slowest = max(range(len(both_s)), key=both_s.__getitem__)
        others = [time_s for server, time_s in enumerate(both_s) if server != slowest]
        self._gauges.level("slowest_ps", float(slowest))
        self._gauges.level("slowest_ps_ms", both_s[slowest] * 1e3)
        self._gauges.level("other_ps_ms", median_low(others) * 1e3)


def _add(means_s: list[float], seconds: Sequence[float]) -> None:
    if len(means_s) != len(seconds):
        means_s[:] = seconds
    for server, newest_s in enumerate(seconds):
        means_s[server] += _NEWEST * (newest_s - means_s[server])
