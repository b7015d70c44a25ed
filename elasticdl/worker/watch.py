"""Sees when user code, a step or a read takes suspiciously long, and then shows where every thread of the worker is."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, final

from elasticdl.clock import Clock
from elasticdl.worker.ending import Ending

_log = logging.getLogger(__name__)

LONG_S = 60.0
_LOOK_S = 5.0


@final
class Watch:
    """Thread-safe. Dumps all stacks once in the life of the worker; a second dump would rarely say more."""

    def __init__(self, clock: Clock, *, long_s: float = LONG_S, output: IO[str] | None = None) -> None:
        """`output` must have a file descriptor; default: stderr."""
        self._clock = clock
        self._long_s = long_s
        self._output = output
        self._doing: dict[int, tuple[str, float]] = {}
        self._dumped = False

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """The block is expected to take less than `LONG_S`."""
        thread = threading.get_ident()
        around = self._doing.get(thread)
        self._doing[thread] = (what, self._clock.now_s())
        try:
            yield
        finally:
            if around is None:
                del self._doing[thread]
            else:
                self._doing[thread] = around

    def check(self) -> bool:
        """Dump all stacks if something takes long and none were dumped yet; True if they were dumped now."""
        now_s = self._clock.now_s()
        for what, since_s in list(self._doing.values()):
            if now_s - since_s > self._long_s and not self._dumped:
                self._dumped = True
                _log.warning("%s has taken %.0f s; where every thread is:", what, now_s - since_s)
                faulthandler.dump_traceback(self._output or sys.stderr, all_threads=True)
                return True
        return False

    def start(self, ending: Ending) -> None:
        """Check every few seconds, in a thread, until the worker ends."""

        def run() -> None:
            while not ending.wait(_LOOK_S):
                self.check()

        threading.Thread(target=run, name="watch", daemon=True).start()
