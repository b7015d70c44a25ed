"""Sees when user code, a step or a read takes suspiciously long: it shows where every thread of the worker is, and, where others
wait for what never ends, ends the worker.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, final

from elasticdl.clock import Clock
from elasticdl.errors import PermanentError
from elasticdl.worker.ending import Ending

_log = logging.getLogger(__name__)

LONG_S = 60.0
HUNG_S = 120.0
"""What others wait for may take so long, or ten times the longest so far if that is more."""
_TIMES_LONGEST = 10.0
_LOOK_S = 5.0


class Hung(PermanentError):
    """What other workers wait for does not come to an end here."""


@dataclass(slots=True, eq=False)
class _Doing:
    """`waits`: None if nobody waits for it; else whether it is done, and itself waits for others."""

    what: str
    since_s: float
    waits: Callable[[], bool] | None = None
    waited: bool = False


def _never() -> bool:
    return False


def _stacks(first: int) -> str:
    """Where every thread is, by name; the one that takes long comes first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != first)
    return "\n".join(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)


@final
class Watch:
    """Thread-safe. Dumps all stacks once in the life of the worker; a second dump would rarely say more."""

    def __init__(self, clock: Clock, *, long_s: float = LONG_S, hung_s: float = HUNG_S, output: IO[str] | None = None) -> None:
        """`output` gets the stacks; default: stderr."""
        self._clock = clock
        self._long_s = long_s
        self._hung_s = hung_s
        self._output = output
        self._doing: dict[int, _Doing] = {}
        self._longest_s: dict[str, float] = {}
        self._dumped = False

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """The block is expected to take less than `LONG_S`."""
        with self._entered(_Doing(what, self._clock.now_s())):
            yield

    @contextmanager
    def owing(self, what: str, waits: Callable[[], bool] = _never) -> Iterator[None]:
        """Others wait for what the block does: `check` raises Hung if it does not end. `waits()`: it is done but for theirs."""
        one = _Doing(what, self._clock.now_s(), waits)
        with self._entered(one):
            yield
        if not one.waited:
            self.learn(what, self._clock.now_s() - one.since_s)

    def learn(self, what: str, took_s: float) -> None:
        """It is known to take so long."""
        self._longest_s[what] = max(took_s, self._longest_s.get(what, 0.0))

    @contextmanager
    def _entered(self, one: _Doing) -> Iterator[None]:
        thread = threading.get_ident()
        around = self._doing.get(thread)
        self._doing[thread] = one
        try:
            yield
        finally:
            if around is None:
                del self._doing[thread]
            else:
                self._doing[thread] = around

    def check(self) -> bool:
        """Dump all stacks if something takes long and none were dumped yet; True if they were dumped now. Raises Hung."""
        dumped, now_s = False, self._clock.now_s()
        for thread, one in list(self._doing.items()):
            took_s = now_s - one.since_s
            waits = one.waits is not None and one.waits()
            one.waited = one.waited or waits
            if took_s > self._long_s and not self._dumped and not waits:
                self._dumped = dumped = True
                _log.warning("%s has taken %.0f s; where every thread is:", one.what, took_s)
                print(_stacks(first=thread), file=self._output or sys.stderr, flush=True)
            limit_s = max(self._hung_s, _TIMES_LONGEST * self._longest_s.get(one.what, 0.0))
            if one.waits is not None and not waits and took_s > limit_s:
                raise Hung(
                    f"{one.what} has not come to an end for {took_s:.0f} s, and others wait for it; {limit_s:.0f} s are allowed"
                )
        return dumped

    def start(self, ending: Ending, leave: Callable[[], None]) -> None:
        """Check every few seconds, in a thread, until the worker ends. `leave` ends the process where it hangs."""

        def run() -> None:
            while not ending.wait(min(_LOOK_S, self._long_s / 2)):
                try:
                    self.check()
                except Hung as error:
                    ending.fail(error)
                    # The last word in the log is what the master says of it.
                    _log.error("%s: this worker ends, so that they can go on", error.message)
                    leave()

        threading.Thread(target=run, name="watch", daemon=True).start()
