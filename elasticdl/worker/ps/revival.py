"""Give servers that came back what they lack, even without work.

A worker that trains does so with its next pull or push. When all records are trained, nobody pulls
or pushes before a view is cut. A server without weights cannot cut one, and a view must not miss
updates that a worker can push again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import final

from elasticdl.errors import TransientError
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended

_log = logging.getLogger(__name__)


@final
class Revival:
    """Thread-safe. Call `start` once the worker has weights."""

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._moved = threading.Event()

    def moved(self, addresses: Sequence[str]) -> None:
        """The servers' new addresses; '' is unavailable. A new server may be empty."""
        if all(addresses):
            self._moved.set()

    def start(self, revive: Callable[[], None]) -> None:
        """Call `revive` in a thread each time after servers moved, until the worker ends."""

        def run() -> None:
            try:
                while not self._shutdown:
                    if self._moved.wait(LOOK_AGAIN_S):
                        self._moved.clear()
                        self._once(revive)
            except Ended:
                return
            except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
                self._shutdown.fail(error)

        threading.Thread(target=run, name="revival", daemon=True).start()

    @staticmethod
    def _once(revive: Callable[[], None]) -> None:
        try:
            revive()
        except TransientError as error:
            # The server is gone again; its next incarnation has another address.
            _log.warning("cannot reach a restarted parameter server: %s", error.message)
