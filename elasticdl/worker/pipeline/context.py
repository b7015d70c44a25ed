"""What the stages of a worker share."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Shutdown


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Built once in `main`; all members are thread-safe."""

    keeper: LeaseKeeper
    outbox: Outbox
    gauges: Gauges
    retry: ServerRetry
    watch: HangWatch
    shutdown: Shutdown

    def starting(self, part: str) -> None:
        """Another part of this worker's start begins; '' ends the start."""
        self.outbox.starting(part)
        self.gauges.times.now(TimeUse(f"start.{part}") if part else TimeUse.BETWEEN)
