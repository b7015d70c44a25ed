"""A worker's account of its time: what the loop's thread does, and why it waits.

The stages of a worker overlap, so their durations do not add up to the time that passes. The
account is that of the loop's thread alone. While this thread waits for its pipeline, the time goes
to what the nearest busy stage before it does. If no stage is busy, the worker waits for a lease.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import final

from elasticdl.clock import Clock
from elasticdl.time_use import TimeUse


class Stage(IntEnum):
    """Threads of a worker that process batches, the last one first."""

    LOOP = 0
    LOAD = 1
    FEED = 2
    READ = 3


@final
class TimeAccount:
    """Thread-safe. The thread that creates it is the loop's.

    Exactly one use is current at any instant, so the seconds of all uses are those since the
    account began.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stages = {threading.get_ident(): Stage.LOOP}
        self._uses: list[TimeUse | None] = [None] * len(Stage)
        # The loop imports until it says something else.
        self._uses[Stage.LOOP] = self._current = TimeUse.IMPORT
        self.began_s = self._since_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Forget all time so far: the account begins now."""
        with self._lock:
            self._spent_s = dict.fromkeys(TimeUse, 0.0)
            self._since_s = self.began_s = self._clock.now_s()

    def join(self, stage: Stage) -> None:
        """The calling thread is that stage."""
        with self._lock:
            self._stages[threading.get_ident()] = stage

    def now(self, use: TimeUse | None) -> None:
        """From now on the calling thread does this; None: it waits for the stages before it.

        Calls from a thread that is no stage change nothing.
        """
        with self._lock:
            stage = self._stages.get(threading.get_ident())
            if stage is not None:
                self._set(stage, use)

    @contextmanager
    def spending(self, use: TimeUse | None) -> Iterator[None]:
        """Do the same within the block only."""
        with self._lock:
            stage = self._stages.get(threading.get_ident())
            if stage is not None:
                before = self._uses[stage]
                self._set(stage, use)
        try:
            yield
        finally:
            if stage is not None:
                with self._lock:
                    self._set(stage, before)

    def move(self, seconds: float, source: TimeUse, destination: TimeUse) -> None:
        """Some of the time that went to `source` went to `destination`, as is known only now."""
        with self._lock:
            self._settle()
            moved_s = max(0.0, min(seconds, self._spent_s[source]))
            self._spent_s[source] -= moved_s
            self._spent_s[destination] += moved_s

    def spent_s(self) -> dict[TimeUse, float]:
        """Seconds since the account began, by use; without uses of no time."""
        with self._lock:
            self._settle()
            return {use: seconds for use, seconds in self._spent_s.items() if seconds}

    def _set(self, stage: Stage, use: TimeUse | None) -> None:
        self._uses[stage] = use
        current = next((active for active in self._uses if active is not None), TimeUse.LEASE)
        if current is not self._current:
            self._settle()
            self._current = current

    def _settle(self) -> None:
        now_s = self._clock.now_s()
        self._spent_s[self._current] += now_s - self._since_s
        self._since_s = now_s
