"""What the stages of a worker share."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.worker.ending import Ending
from elasticdl.worker.gauges import Gauges
from elasticdl.worker.leases import LeaseKeeper
from elasticdl.worker.outbox import Outbox
from elasticdl.worker.patience import Patience
from elasticdl.worker.watch import Watch


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Built once in `main`. All of it is thread-safe."""

    keeper: LeaseKeeper
    outbox: Outbox
    gauges: Gauges
    patience: Patience
    watch: Watch
    ending: Ending
