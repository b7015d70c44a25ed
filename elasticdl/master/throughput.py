"""Records per second, in total and by worker, over a sliding window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.rpc.conversation import Progress
from elasticdl.shard import Lease, ShardId, Task, WorkItem

_WINDOW_S = 20.0
_LEAST_S = 2.0
"""Minimum window of a rate: in a shorter one, a single step would be a peak."""
_FINEST_S = 0.5


@dataclass(slots=True)
class _SlidingCount:
    """Records by time, coarse enough for about forty pairs per window."""

    began_s: float
    parts: deque[tuple[float, int]] = field(default_factory=deque)
    records: int = 0
    """The sum of the parts."""

    def add(self, at_s: float, records: int) -> None:
        self.records += records
        if self.parts and at_s - self.parts[-1][0] < _FINEST_S:
            time_s, before = self.parts.pop()
            self.parts.append((time_s, before + records))
        else:
            self.parts.append((at_s, records))

    def rate(self, at_s: float) -> float:
        while self.parts and self.parts[0][0] < at_s - _WINDOW_S:
            self.records -= self.parts.popleft()[1]
        return self.records / max(_LEAST_S, min(_WINDOW_S, at_s - self.began_s))


@final
class Throughput:
    """Counts records of one kind of task from the offsets of leases and reports."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._offsets: dict[tuple[ShardId, int], int] = {}
        self._ring_number = 0
        self._total: _SlidingCount | None = None
        self._workers: dict[ProcessName, _SlidingCount] = {}

    def granted(self, lease: Lease) -> None:
        """Start a lease at its offset."""
        if lease.task is self._task and lease.shard is not None:
            self._offsets[lease.shard.id, lease.attempt] = lease.offset

    def given(self, item: WorkItem) -> None:
        """Start an item of the ring. Every member gets it; the first one counts."""
        lease = item.lease
        if item.number > self._ring_number and lease is not None and lease.shard is not None:
            self._ring_number = item.number
            self._offsets.setdefault((lease.shard.id, lease.attempt), lease.offset)

    def reported(self, worker: ProcessName, progress: Progress, at_s: float) -> None:
        """Record a worker's progress.

        Repeats, and reports of leases unknown to this master, count nothing.
        """
        applied = progress.applied
        key = (applied.shard, applied.attempt)
        before = self._offsets.get(key)
        if before is None:
            return
        records = max(0, applied.offset - before)
        self._offsets[key] = max(before, applied.offset)
        if progress.done or progress.returned:
            del self._offsets[key]
        # Nobody knows how long the first records took, so they start the window and do not count in
        # its rate.
        if self._total is None:
            self._total = _SlidingCount(at_s)
        else:
            self._total.add(at_s, records)
        if worker in self._workers:
            self._workers[worker].add(at_s, records)
        else:
            self._workers[worker] = _SlidingCount(at_s)

    def leave(self, worker: ProcessName) -> None:
        """Forget an ended worker."""
        self._workers.pop(worker, None)

    def total(self, at_s: float) -> float:
        """Return records per second of all workers."""
        return self._total.rate(at_s) if self._total is not None else 0.0

    def of_worker(self, worker: ProcessName, at_s: float) -> float | None:
        """Return records per second of a live worker; None if it has reported nothing."""
        window = self._workers.get(worker)
        return None if window is None else window.rate(at_s)
