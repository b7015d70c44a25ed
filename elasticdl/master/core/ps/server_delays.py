"""Finds the parameter server that workers wait for, from the times of their pulls and pushes.

Like `steps.py` it is fed by the gateway, and nothing of it is journaled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events import ServerDelayed

_TIMES = 5.0
"""A server is slow that takes so many times as long as the others,"""
_LEAST_MS = 20.0
_OF_STEP = 0.5
"""at least this long, and this share of a worker's step: shorter delays cost little."""
_LASTS_S = 10.0
_FRESH_S = 10.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a worker reported: the slowest server, and the time of the others."""

    at_s: float
    server: int
    took_ms: float
    others_ms: float
    step_ms: float

    @property
    def slow(self) -> bool:
        least_ms = max(_TIMES * self.others_ms, _LEAST_MS, _OF_STEP * self.step_ms)
        return self.took_ms > least_ms


@final
class ServerDelays:
    """Takes in the gauges of workers, and yields an event when most agree on another server."""

    def __init__(self) -> None:
        self._claims: dict[ProcessName, _Claim] = {}
        self._found: int | None = None
        self._since_s = 0.0
        self._told: int | None = None

    def reported(
        self, worker: ProcessName, gauges: Mapping[str, float], at_s: float, first: int = 0
    ) -> None:
        """A worker reported its gauges; it counts the servers from 0, and `first` is its first."""
        values = [gauges.get(name) for name in ("slowest_ps", "slowest_ps_ms", "other_ps_ms")]
        server, took_ms, others_ms = (
            one if one is not None and one >= 0.0 else None for one in values
        )
        if server is None or took_ms is None or others_ms is None or server > 1e6:
            return
        step_ms = max(0.0, gauges.get("step_ms", 0.0))
        self._claims[worker] = _Claim(at_s, first + int(server), took_ms, others_ms, step_ms)

    def forget(self, worker: ProcessName) -> None:
        self._claims.pop(worker, None)

    def tick(self, at_s: float) -> ServerDelayed | None:
        """Return the server that most workers have waited for since ten seconds, if that is new."""
        fresh = [one for one in self._claims.values() if at_s - one.at_s < _FRESH_S]
        votes = Counter(one.server for one in fresh if one.slow)
        server, count = votes.most_common(1)[0] if votes else (None, 0)
        found = server if 2 * count > len(fresh) else None
        if found != self._found:
            self._found, self._since_s = found, at_s
        if found == self._told or at_s - self._since_s < _LASTS_S:
            return None
        self._told = found
        if found is None:
            return ServerDelayed(at_s)
        of_it = [one for one in fresh if one.slow and one.server == found]
        took_ms, others_ms = (
            median_low(one.took_ms for one in of_it),
            median_low(one.others_ms for one in of_it),
        )
        return ServerDelayed(at_s, found, took_ms, others_ms)
