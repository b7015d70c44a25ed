"""Gauges of a server for people: rates, durations and staleness since the last reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from elasticdl.clock import Clock
from elasticdl.cpu_share import CpuShare
from elasticdl.native import _native

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """Milliseconds below which `share` of the durations are; 0 if there were none.

    `counts[i]` counts durations from 2^(i/2) to 2^((i+1)/2) microseconds; the answer is the middle
    of its bucket.
    """
    total, seen = sum(counts), 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen and seen >= share * total:
            return float(2.0 ** ((bucket + 0.5) / 2) / 1000)
    return 0.0


@final
class Gauges:
    """Computes differences of the server's counts. Use it from one thread."""

    def __init__(self, server: _native.Server, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._before = server.statistics()
        self._at_s = clock.now_s()
        self._cpu_s = sum(os.times()[:2])
        self._cpu_share = CpuShare()

    def read(self) -> dict[str, float]:
        """Values by name, with their units."""
        now, at_s = self._server.statistics(), self._clock.now_s()
        before, passed_s = self._before, max(at_s - self._at_s, 1e-3)
        cpu_s, used_s = sum(os.times()[:2]), self._cpu_s
        self._before, self._at_s, self._cpu_s = now, at_s, cpu_s
        pull_times, push_times = (
            _difference(now, before, "pull_times"),
            _difference(now, before, "push_times"),
        )
        staleness = _difference(now, before, "staleness")
        share = self._cpu_share.take()
        return {
            **({} if share is None else {"cpu_share": share}),
            "pulls_per_s": (now["pulls"] - before["pulls"]) / passed_s,
            "pushes_per_s": (now["pushes"] - before["pushes"]) / passed_s,
            "pull_ms": quantile_ms(pull_times, 0.5),
            "pull_p99_ms": quantile_ms(pull_times, 0.99),
            "push_ms": quantile_ms(push_times, 0.5),
            "push_p99_ms": quantile_ms(push_times, 0.99),
            "staleness_mean": sum(i * count for i, count in enumerate(staleness))
            / max(sum(staleness), 1),
            "repeated_pushes": float(now["repeated_pushes"]),
            "connections": float(now["connections"]),
            "rows": float(now["rows"]),
            "parameter_bytes": float(now["memory_bytes"]),
            "rss_bytes": float(rss_bytes()),
            "cpu_s": cpu_s,
            "cpu_cores": (cpu_s - used_s) / passed_s,
        }


def _difference(now: dict[str, Any], before: dict[str, Any], name: str) -> list[int]:
    return [after - first for after, first in zip(now[name], before[name], strict=True)]
