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
        self._slowest: int | None = None
        self._since_s = 0.0
        self._named: int | None = None

    def reported(
        self, worker: ProcessName, gauges: Mapping[str, float], at_s: float, first: int = 0
    ) -> None:
        """A worker reported its gauges; it counts the servers from 0, and `first` is its first."""
        values = [gauges.get(name) for name in ("slowest_ps", "slowest_ps_ms", "other_ps_ms")]
        server, took_ms, others_ms = (
            value if value is not None and value >= 0.0 else None for value in values
        )
        if server is None or took_ms is None or others_ms is None or server > 1e6:
            return
        step_ms = max(0.0, gauges.get("step_ms", 0.0))
        self._claims[worker] = _Claim(at_s, first + int(server), took_ms, others_ms, step_ms)

    def forget(self, worker: ProcessName) -> None:
        self._claims.pop(worker, None)

    def tick(self, at_s: float) -> ServerDelayed | None:
        """Return the server that most workers have waited for since ten seconds, if that is new."""
        fresh = [claim for claim in self._claims.values() if at_s - claim.at_s < _FRESH_S]
        votes = Counter(claim.server for claim in fresh if claim.slow)
        server, count = votes.most_common(1)[0] if votes else (None, 0)
        slowest = server if 2 * count > len(fresh) else None
        if slowest != self._slowest:
            self._slowest, self._since_s = slowest, at_s
        if slowest == self._named or at_s - self._since_s < _LASTS_S:
            return None
        self._named = slowest
        if slowest is None:
            return ServerDelayed(at_s)
        of_it = [claim for claim in fresh if claim.slow and claim.server == slowest]
        took_ms, others_ms = (
            median_low(claim.took_ms for claim in of_it),
            median_low(claim.others_ms for claim in of_it),
        )
        return ServerDelayed(at_s, slowest, took_ms, others_ms)
