"""A request for a lease that travels with a report, so that both cost the master one call.

The keeper of leases asks, and the reporter takes the request along if a report leaves in time.
"""

from __future__ import annotations

import threading
import time
from typing import final

from elasticdl.rpc.conversation import LeaseAnswer
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S


@final
class CarriedRequest:
    """Thread-safe. Only one thread asks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = False
        """Nobody has taken the request yet."""
        self._under_way = False
        """A report that carries it has no answer yet."""
        self._answer: LeaseAnswer | None = None

    def ask(self, wait_for_report_s: float, shutdown: Shutdown) -> LeaseAnswer | None:
        """Wait up to `wait_for_report_s` for a report to take the request, and then for the answer.

        None if there was no report, if the answer did not count, or if the worker ends.
        """
        end_s = time.monotonic() + wait_for_report_s
        with self._changed:
            self._waiting, self._answer = True, None
            while self._waiting and (left_s := end_s - time.monotonic()) > 0 and not shutdown:
                self._changed.wait(min(left_s, LOOK_AGAIN_S))
            self._waiting = False
            # Two requests at a time would share their number.
            while self._under_way and not shutdown:
                self._changed.wait(LOOK_AGAIN_S)
            return self._answer

    def take(self) -> bool:
        """Whether the report that leaves now is to carry a request; `answered` has to follow."""
        with self._changed:
            self._under_way, self._waiting = self._waiting, False
            self._changed.notify_all()
            return self._under_way

    def answered(self, answer: LeaseAnswer | None) -> None:
        """The master has answered; None: the answer does not count."""
        with self._changed:
            self._answer, self._under_way = answer, False
            self._changed.notify_all()
