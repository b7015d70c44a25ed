"""Wait for unavailable parameter servers: long enough for a restart, and never silently."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar, final

from elasticdl.clock import Clock
from elasticdl.errors import TransientError
from elasticdl.time_use import TimeUse
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import Ended

_log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_CALL_S = 5.0
LONGEST_CALL_S = 60.0
"""Time limit of an attempt.

It starts at `FIRST_CALL_S`, so that a wait is soon visible, and doubles each time, so that a slow
server is not asked repeatedly for what it is about to send.
"""

GIVE_UP_S = 600.0
_LONGEST_DELAY_S = 5.0


class NoLongerNeeded(Exception):
    """The result is no longer needed."""


@final
class ServerRetry:
    """Repeats calls that may succeed later, with back-off. Thread-safe."""

    def __init__(
        self, shutdown: Shutdown, gauges: Gauges, clock: Clock, *, give_up_s: float = GIVE_UP_S
    ) -> None:
        self._shutdown = shutdown
        self._gauges = gauges
        self._clock = clock
        self._give_up_s = give_up_s

    def call(
        self, attempt: Callable[[float], T], doing: str, wanted: Callable[[], bool] = lambda: True
    ) -> T:
        """Repeat `attempt(timeout_s)` until it succeeds.

        `doing` is shown while it does not: "waiting for servers: pull: …".

        Raises:
            Ended: the worker ends meanwhile.
            NoLongerNeeded: `wanted()` is False between attempts.
            TransientError: the last one, after `give_up_s`.
        """
        with ExitStack() as stack:
            return self._call(attempt, doing, wanted, stack)

    def _call(
        self,
        attempt: Callable[[float], T],
        doing: str,
        wanted: Callable[[], bool],
        stack: ExitStack,
    ) -> T:
        begin_s = self._clock.now_s()
        tries = 0
        while True:
            try:
                result = attempt(min(LONGEST_CALL_S, FIRST_CALL_S * 2.0 ** min(tries, 8)))
            except TransientError as error:
                if not tries:
                    stack.enter_context(self._gauges.times.spending(TimeUse.SERVERS_AWAY))
                tries += 1
                away_s = self._clock.now_s() - begin_s
                # Checked after a failure only: a worker that drains may still finish a call that
                # works.
                if self._shutdown:
                    raise Ended from error
                if not wanted():
                    self._gauges.level("waiting_for_servers_s", None)
                    raise NoLongerNeeded from error
                if away_s >= self._give_up_s:
                    raise TransientError(
                        f"{doing}: gave up after {away_s:.0f} s: {error.message}", hint=error.hint
                    ) from error
                _log.warning(
                    "waiting for parameter servers for %.1f s: %s: %s", away_s, doing, error
                )
                self._gauges.level("waiting_for_servers_s", max(away_s, 1e-3))
                self._shutdown.wait(
                    min(_LONGEST_DELAY_S, error.retry_after_s * 1.5 ** min(tries - 1, 12))
                )
                continue
            if tries:
                self._gauges.level("waiting_for_servers_s", None)
                _log.info("parameter servers are back after %.1f s", self._clock.now_s() - begin_s)
            return result
