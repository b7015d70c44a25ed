"""Limit the number of this worker's own updates in flight, which bounds staleness."""

from __future__ import annotations

import threading
from typing import final

from elasticdl.worker.process.channel import LOOK_AGAIN_S, Ended
from elasticdl.worker.process.shutdown import Shutdown


@final
class StalenessLimit:
    """Counts batches between their pull and the acknowledgement of their push. Thread-safe."""

    def __init__(self, shutdown: Shutdown) -> None:
        self._count = 0
        self._changed = threading.Condition()
        self._shutdown = shutdown
        shutdown.listen(self._wake)

    def enter(self, others_at_most: int) -> None:
        """Add an update; blocks while more than `others_at_most` are in flight.

        Raises Ended if the worker ends first.
        """
        with self._changed:
            while self._count > others_at_most:
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

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def __len__(self) -> int:
        return self._count
