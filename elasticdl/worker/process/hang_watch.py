"""Detect user code, steps or reads that take too long.

The watch logs where every thread of the worker is. If others wait for something that does not end,
it ends the worker.
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
from elasticdl.stacks import stacks, user_frames
from elasticdl.worker.process.shutdown import Shutdown

_log = logging.getLogger(__name__)

LONG_S = 60.0
TOLD_S = 5.0
"""Every report to the master contains what takes longer than this."""
STILL_S = 300.0
"""How long user code may stay at one place during a worker's start; a slow import moves on."""
_ANEW_S = 20.0
"""Shorter than the least time after which the master compares workers that read."""
HUNG_S = 120.0
"""Time limit for work that others wait for, or ten times the longest so far if that is more."""
_TIMES_LONGEST = 10.0
_LOOK_S = 5.0


class Hung(PermanentError):
    """Work that other workers wait for does not end."""


class StoodStill(UserError):
    """User code does not end."""


@dataclass(slots=True, eq=False)
class _Doing:
    """What a thread is doing.

    `waits` is None if nobody waits for it; otherwise it returns whether the work is done and itself
    waits for others. `in_vain` says for whom, if they will never do their part; otherwise ''.
    `user_code` is the folder of user code, if that alone can be slow here.
    `stack` is where the thread was last seen, since `stack_s`.
    """

    what: str
    since_s: float
    waits: Callable[[], bool] | None = None
    in_vain: Callable[[], str] = str
    waited: bool = False
    user_code: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()
    stack_s: float = 0.0


def _never() -> bool:
    return False


def _places(frame: FrameType | None) -> tuple[tuple[str, int, str], ...]:
    """File, line and function of each frame, the innermost first."""
    places = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(places)


@final
class HangWatch:
    """Thread-safe.

    Dumps all stacks once in the life of the worker; a second dump would rarely add anything.
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
        """`output` receives the stacks; default: stderr."""
        self._clock = clock
        self._still_s = still_s
        self._long_s = long_s
        self._hung_s = hung_s
        self._output = output
        self._doing: dict[int, _Doing] = {}
        self._longest_s: dict[str, float] = {}
        self._dumped = False
        self._user_code = ""
        """The folder of the user's code; '' until a start names it."""

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """The block should take less than `LONG_S`."""
        with self._entered(_Doing(what, self._clock.now_s())):
            yield

    @contextmanager
    def starting(self, what: str, user_code: str) -> Iterator[None]:
        """The block runs user code of that folder.

        If it stays at one place, `check` raises StoodStill.
        """
        now_s = self._clock.now_s()
        self._user_code = os.path.abspath(user_code)
        with self._entered(_Doing(what, now_s, user_code=self._user_code, stack_s=now_s)):
            yield

    @contextmanager
    def owing(
        self,
        what: str,
        waits: Callable[[], bool] = _never,
        in_vain: Callable[[], str] = str,
    ) -> Iterator[None]:
        """Others wait for the block's work; if it does not end, `check` raises Hung.

        `waits()` tells whether the work is done except for the others' part. `in_vain()` says in
        words for whom it waits if they will never do that part, and '' while they may.
        """
        doing = _Doing(what, self._clock.now_s(), waits, in_vain)
        with self._entered(doing):
            yield
        # A duration that includes waiting for others must not raise the limit for the work itself.
        if not doing.waited:
            self.learn(what, self._clock.now_s() - doing.since_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for other processes; the thread's time starts again after it."""
        thread = threading.get_ident()
        around = self._doing.pop(thread, None)
        try:
            yield
        finally:
            if around is not None:
                around.since_s = self._clock.now_s()
                self._doing[thread] = around

    def moving(self) -> None:
        """What this thread does is long, but continues: its time starts again now and then.

        Reports to the master continue without a gap, since a worker that does nothing for long is
        replaced.
        """
        doing, now_s = self._doing.get(threading.get_ident()), self._clock.now_s()
        if doing is not None:
            doing.stack_s = now_s
            if now_s - doing.since_s > _ANEW_S:
                doing.since_s = now_s - TOLD_S

    def learn(self, what: str, took_s: float) -> None:
        """Record that this normally takes `took_s`."""
        self._longest_s[what] = max(took_s, self._longest_s.get(what, 0.0))

    @contextmanager
    def _entered(self, doing: _Doing) -> Iterator[None]:
        thread = threading.get_ident()
        around = self._doing.get(thread)
        self._doing[thread] = doing
        try:
            yield
        finally:
            if around is None:
                del self._doing[thread]
            else:
                self._doing[thread] = around

    def check(self) -> bool:
        """Dump all stacks if something takes long; True if they were dumped now.

        They are dumped only once. Raises Hung, StoodStill.
        """
        dumped, now_s = False, self._clock.now_s()
        for thread, doing in list(self._doing.items()):
            took_s = now_s - doing.since_s
            waits = doing.waits is not None and doing.waits()
            # Remember it: the block may have waited between two checks.
            doing.waited = doing.waited or waits
            if took_s > self._long_s and not self._dumped and not waits:
                self._dumped = dumped = True
                _log.warning("%s has taken %.0f s; stacks of all threads:", doing.what, took_s)
                print(stacks(thread), file=self._output or sys.stderr, flush=True)
            if doing.user_code:
                self._check_moves(thread, doing, now_s)
            if doing.waits is not None:
                self._check_ends(doing, waits, took_s)
        return dumped

    def _check_ends(self, doing: _Doing, waits: bool, took_s: float) -> None:
        limit_s = max(self._hung_s, _TIMES_LONGEST * self._longest_s.get(doing.what, 0.0))
        if took_s <= limit_s:
            return
        if not waits:
            raise Hung(
                f"{doing.what} has not finished for {took_s:.0f} s while others wait for it"
                f" (limit {limit_s:.0f} s)"
            )
        if in_vain := doing.in_vain():
            raise Hung(f"waited {took_s:.0f} s {in_vain} (limit {limit_s:.0f} s)")

    def activity(self) -> Activity | None:
        """What some thread has been doing for longest, if for at least `TOLD_S`.

        Work that itself waits for others does not count.
        """
        _, doing = self._longest()
        if doing is None:
            return None
        age_s = self._clock.now_s() - doing.since_s
        return Activity(doing.what, round(age_s, 1)) if age_s >= TOLD_S else None

    def stacks(self) -> str:
        """The stacks of all threads, bounded; first the thread that has been busy for longest."""
        thread, _ = self._longest()
        return stacks(thread)

    def frames(self) -> tuple[str, ...]:
        """The user's frames where some thread has been for longest, outermost first."""
        thread, _ = self._longest()
        return user_frames(self._user_code, thread) if self._user_code else ()

    def _longest(self) -> tuple[int | None, _Doing | None]:
        busy = [
            (thread, doing)
            for thread, doing in list(self._doing.items())
            if doing.waits is None or not doing.waits()
        ]
        return min(busy, key=lambda item: item[1].since_s, default=(None, None))

    def _check_moves(self, thread: int, doing: _Doing, now_s: float) -> None:
        stack = _places(sys._current_frames().get(thread))
        if stack != doing.stack:
            doing.stack, doing.stack_s = stack, now_s
        if (still_s := now_s - doing.stack_s) <= self._still_s:
            return
        mine = (
            f", at {path}:{line}, in {name}"
            for path, line, name in stack
            if Path(path).is_relative_to(doing.user_code)
        )
        raise StoodStill(
            f"{doing.what} has made no progress for {still_s:.0f} s{next(mine, '')}",
            hint="check whether it waits for a lock, another process or the network",
        )

    def start(
        self,
        shutdown: Shutdown,
        leave: Callable[[], None],
        report: Callable[[StoodStill], None] | None = None,
    ) -> None:
        """Check every few seconds, in a thread, until the worker ends.

        `leave` ends a process that hangs. If user code stands still, `report` is called before
        that, since the main thread, which reports errors, does not get to it.
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
                    # The last line of the log is what the master shows.
                    _log.error(
                        "%s: ending this worker so that the others can continue", error.message
                    )
                    leave()

        threading.Thread(target=run, name="watch", daemon=True).start()
