"""Sees when user code, a step or a read takes suspiciously long: it shows where every thread of the
worker is, and, where others
wait for what never ends, ends the worker.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, final

from elasticdl.clock import Clock
from elasticdl.errors import PermanentError, UserError
from elasticdl.rpc.conversation import Activity
from elasticdl.stacks import stacks
from elasticdl.worker.process.shutdown import Shutdown

_log = logging.getLogger(__name__)

LONG_S = 60.0
TOLD_S = 5.0
"""What takes longer is told to the master with each report."""
STILL_S = 300.0
"""User code of a worker's start may stand at one place for so long: a slow import goes from place
to place.
"""
HUNG_S = 120.0
"""What others wait for may take so long, or ten times the longest so far if that is more."""
_TIMES_LONGEST = 10.0
_LOOK_S = 5.0


class Hung(PermanentError):
    """What other workers wait for does not come to an end here."""


class StoodStill(UserError):
    """User code does not come to an end."""


@dataclass(slots=True, eq=False)
class _Doing:
    """`user_code`: its folder, if all that takes long here is user code; `stack` and `stack_s`:
    where it was seen, and since when.

    `waits`: None if nobody waits for it; else whether it is done, and itself waits for others.
    """

    what: str
    since_s: float
    waits: Callable[[], bool] | None = None
    waited: bool = False
    user_code: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()
    stack_s: float = 0.0


def _never() -> bool:
    return False


def _places(frame: FrameType | None) -> tuple[tuple[str, int, str], ...]:
    """File, line and function of each frame, the innermost first."""
    found = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


@final
class HangWatch:
    """Thread-safe.

    Dumps all stacks once in the life of the worker; a second dump would rarely say more.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        long_s: float = LONG_S,
        hung_s: float = HUNG_S,
        still_s: float = STILL_S,
        output: IO[str] | None = None,
    ) -> None:
        """`output` gets the stacks; default: stderr."""
        self._clock = clock
        self._still_s = still_s
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
    def starting(self, what: str, user_code: str) -> Iterator[None]:
        """The block runs user code of that folder: `check` raises StoodStill if it stays at one
        place.
        """
        now_s = self._clock.now_s()
        with self._entered(
            _Doing(what, now_s, user_code=os.path.abspath(user_code), stack_s=now_s)
        ):
            yield

    @contextmanager
    def owing(self, what: str, waits: Callable[[], bool] = _never) -> Iterator[None]:
        """Others wait for what the block does: `check` raises Hung if it does not end.

        `waits()`: it is done but for theirs.
        """
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
        """Dump all stacks if something takes long and none were dumped yet; True if they were
        dumped now.

        Raises Hung, StoodStill.
        """
        dumped, now_s = False, self._clock.now_s()
        for thread, one in list(self._doing.items()):
            took_s = now_s - one.since_s
            waits = one.waits is not None and one.waits()
            one.waited = one.waited or waits
            if took_s > self._long_s and not self._dumped and not waits:
                self._dumped = dumped = True
                _log.warning("%s has taken %.0f s; where every thread is:", one.what, took_s)
                print(stacks(thread), file=self._output or sys.stderr, flush=True)
            if one.user_code:
                self._check_moves(thread, one, now_s)
            limit_s = max(self._hung_s, _TIMES_LONGEST * self._longest_s.get(one.what, 0.0))
            if one.waits is not None and not waits and took_s > limit_s:
                raise Hung(
                    f"{one.what} has not come to an end for {took_s:.0f} s, and others wait for it;"
                    f" {limit_s:.0f} s are allowed"
                )
        return dumped

    def activity(self) -> Activity | None:
        """What some thread has been at for longest, if for at least `TOLD_S`; what itself waits for
        others is left out.
        """
        _, one = self._longest()
        if one is None:
            return None
        age_s = self._clock.now_s() - one.since_s
        return Activity(one.what, round(age_s, 1)) if age_s >= TOLD_S else None

    def stacks(self) -> str:
        """Where every thread is, bounded; first the one that has been at something for longest."""
        thread, _ = self._longest()
        return stacks(thread)

    def _longest(self) -> tuple[int | None, _Doing | None]:
        found = [
            (thread, one)
            for thread, one in list(self._doing.items())
            if one.waits is None or not one.waits()
        ]
        return min(found, key=lambda item: item[1].since_s, default=(None, None))

    def _check_moves(self, thread: int, one: _Doing, now_s: float) -> None:
        stack = _places(sys._current_frames().get(thread))
        if stack != one.stack:
            one.stack, one.stack_s = stack, now_s
        if (still_s := now_s - one.stack_s) <= self._still_s:
            return
        mine = (
            f", at {path}:{line}, in {name}"
            for path, line, name in stack
            if Path(path).is_relative_to(one.user_code)
        )
        raise StoodStill(
            f"{one.what} has not gone on for {still_s:.0f} s{next(mine, '')}",
            hint=(
                "does it wait for something that never comes: a lock, another process, the network?"
            ),
        )

    def start(
        self,
        shutdown: Shutdown,
        leave: Callable[[], None],
        report: Callable[[StoodStill], None] | None = None,
    ) -> None:
        """Check every few seconds, in a thread, until the worker ends.

        `leave` ends the process where it hangs.

        `report` is called before that where user code stood still: the main thread, which reports
        errors, does not come to it.
        """

        def run() -> None:
            while not shutdown.wait(min(_LOOK_S, self._long_s / 2, self._still_s / 2)):
                try:
                    self.check()
                except StoodStill as error:
                    shutdown.fail(error)
                    if report is not None:
                        report(error)
                    # The last line of the log is what the master shows.
                    _log.error("%s: %s; %s", type(error).__name__, error.message, error.hint)
                    leave()
                except Hung as error:
                    shutdown.fail(error)
                    # The last word in the log is what the master says of it.
                    _log.error("%s: this worker ends, so that they can go on", error.message)
                    leave()

        threading.Thread(target=run, name="watch", daemon=True).start()
