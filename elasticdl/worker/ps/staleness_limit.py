"""Limit the number of this worker's own updates in flight, which bounds staleness."""

from __future__ import annotations

import logging
import threading
from typing import final

from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended
from elasticdl.worker.ps.auto_staleness import AutoStaleness

_log = logging.getLogger(__name__)


@final
class StalenessLimit:
    """Counts batches between their pull and the acknowledgement of their push. Thread-safe."""

    def __init__(self, shutdown: Shutdown, gauges: Gauges, at_most: int, *, adaptive: bool) -> None:
        """`at_most` is the limit; with `adaptive` only while overlap pays (see `AutoStaleness`)."""
        self._count = 0
        self._changed = threading.Condition()
        self._shutdown = shutdown
        self._gauges = gauges
        self._at_most = at_most
        self._auto = AutoStaleness(at_most) if adaptive else None
        gauges.level("staleness_limit", self.in_force)
        shutdown.listen(self._wake)

    @property
    def in_force(self) -> int:
        """How many of its own updates a step may miss."""
        return self._at_most if self._auto is None else self._auto.limit

    def enter(self) -> None:
        """Add an update; blocks while more than the limit are in flight.

        Raises Ended if the worker ends first.
        """
        with self._changed:
            while self._count > self.in_force:
                if self._shutdown:
                    raise Ended
                self._changed.wait(LOOK_AGAIN_S)
            self._count += 1

    def leave(self) -> None:
        """Remove an update that was acknowledged or dropped."""
        with self._changed:
            assert self._count > 0
            self._count -= 1
            self._changed.notify_all()

    def pulled(self, seconds: float) -> None:
        """The pull of an update took this long."""
        if self._auto is not None:
            self._auto.pulled(seconds)

    def computed(self, seconds: float) -> None:
        """The step of an update took this long."""
        if self._auto is not None:
            self._auto.computed(seconds)

    def pushed(self, seconds: float) -> None:
        """The push of an update took this long."""
        decision = self._auto.pushed(seconds) if self._auto is not None else None
        if decision is None:
            return
        self._gauges.level("staleness_limit", decision.limit)
        self._gauges.level("exchange_share", decision.share)
        if decision.changed:
            _log.info("%s", decision)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def __len__(self) -> int:
        return self._count
