"""Gauges for people: how long parts of a step take, averaged since the last report.

With them travels the account of all time, which the master takes in (`time_account.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import final

from elasticdl.clock import Clock
from elasticdl.cpu_share import CpuShare
from elasticdl.time_use import GAUGE_PREFIX, TimeUse
from elasticdl.worker.process.time_account import TimeAccount

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0
    highest: float = 0.0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.highest = max(self.highest, value)


@final
class Gauges:
    """Thread-safe; adding a value takes a microsecond."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.times = TimeAccount(clock)
        self._lock = threading.Lock()
        self._means: dict[str, _Mean] = {}
        self._records = 0
        self._levels: dict[str, float] = {}
        self._taken_at_s = clock.now_s()
        self._cpu_s = sum(os.times()[:2])
        self._cpu_share = CpuShare()

    @contextmanager
    def timed(self, name: str, use: TimeUse | None = None) -> Iterator[None]:
        """Add the duration of the block, in milliseconds, to the mean `name`.

        With `use`, the calling thread does that within the block.
        """
        begin_s = self._clock.now_s()
        try:
            with self.times.spending(use) if use is not None else nullcontext():
                yield
        finally:
            self.add(name, (self._clock.now_s() - begin_s) * 1e3)

    def add(self, name: str, value: float) -> None:
        with self._lock:
            self._means.setdefault(name, _Mean()).add(value)

    def count_records(self, records: int) -> None:
        with self._lock:
            self._records += records

    def level(self, name: str, value: float | None) -> None:
        """A value that stays until it is set again; None removes it."""
        with self._lock:
            if value is None:
                self._levels.pop(name, None)
            else:
                self._levels[name] = value

    def take(self) -> dict[str, float]:
        """All gauges since the last call; `staleness` also has its highest value."""
        now_s, cpu_s = self._clock.now_s(), sum(os.times()[:2])
        with self._lock:
            means, self._means = self._means, {}
            records, self._records = self._records, 0
            taken = dict(self._levels)
        elapsed_s = max(1e-6, now_s - self._taken_at_s)
        taken["records_per_s"] = records / elapsed_s
        taken["cpu_cores"] = (cpu_s - self._cpu_s) / elapsed_s
        taken["cpu_s"] = cpu_s
        taken["rss_bytes"] = float(resident_bytes())
        if (share := self._cpu_share.take()) is not None:
            taken["cpu_share"] = share
        self._taken_at_s, self._cpu_s = now_s, cpu_s
        for use, spent_s in self.times.spent_s().items():
            taken[f"{GAUGE_PREFIX}{use}"] = round(spent_s, 3)
        for name, mean in means.items():
            taken[f"{name}_mean" if name == "staleness" else name] = mean.total / mean.count
            if name == "staleness":
                taken["staleness_max"] = mean.highest
        return taken


def resident_bytes() -> int:
    """Memory of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
