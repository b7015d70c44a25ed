"""Compares how long parameter servers take to answer this worker's pulls."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import final

from elasticdl.worker.process.gauges import Gauges

_NEWEST = 0.1
"""Weight of the newest pull in the mean of a server."""
_EVERY = 10
"""Pulls between two comparisons."""


@final
class ServerTimes:
    """Reports the slowest server beside the others, as gauges. Use it from one thread at a time."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self._means_s: list[float] = []
        self._pulls = 0

    def saw(self, seconds: Sequence[float]) -> None:
        """A pull took each server so long. One server alone has nothing to be compared with."""
        if len(seconds) < 2:
            return
        if len(self._means_s) != len(seconds):
            self._means_s = list(seconds)
        for server, one in enumerate(seconds):
            self._means_s[server] += _NEWEST * (one - self._means_s[server])
        self._pulls += 1
        if self._pulls % _EVERY == 0:
            self._compare()

    def _compare(self) -> None:
        slowest = max(range(len(self._means_s)), key=self._means_s.__getitem__)
        others = [one for server, one in enumerate(self._means_s) if server != slowest]
        self._gauges.level("slowest_ps", float(slowest))
        self._gauges.level("slowest_ps_ms", self._means_s[slowest] * 1e3)
        self._gauges.level("other_ps_ms", median_low(others) * 1e3)
