"""Watch the check of a model from outside: its stage, its main thread's stack and its answer.

The check runs user code, which may block for ever while it holds any lock of its process. So
nothing inside that process can bound it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from elasticdl.clock import Clock
from elasticdl.errors import UserError
from elasticdl.formatting import BUILDING, IMPORTING

Tell: TypeAlias = Callable[[str], None]

_USER_STAGES = (IMPORTING, BUILDING)
_DUMP_S = 2.0
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
_BETWEEN_S = 3.0
"""Minimum seconds between messages for people."""


@dataclass(frozen=True, slots=True)
class PreflightLimits:
    """Limits of the check.

    `part_s`: how long each part may take; counted files, and pieces of compressed ones, restart the
    time. `still_s`: how long user code may stay at one place during import and model construction.
    `stacks_s`: interval between stack samples. `quiet_s`: interval between messages about slow
    progress.
    """

    part_s: float = 600.0
    still_s: float = 300.0
    stacks_s: float = 15.0
    quiet_s: float = 30.0


@final
class PreflightWatch:
    """Reads the check's channel in a thread, which closes it.

    The thread that waits for the check calls `look`.
    """

    def __init__(
        self, channel: int, zoo: str, limits: PreflightLimits, clock: Clock, tell: Tell
    ) -> None:
        self._channel = channel
        self._zoo = os.path.abspath(zoo)
        self._limits = limits
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._stage, self._stage_s = "", clock.now_s()
        self._moved_s = clock.now_s()
        """When the check last began a stage, or counted files."""
        self._stack: tuple[tuple[str, int, str], ...] = ()
        """The main thread's stack, innermost first: file, line and function."""
        self._stack_s = clock.now_s()
        """When this stack was first seen in this stage, or when the stage began."""
        self._stack_reported_s = clock.now_s()
        self._dumped = threading.Event()
        self._counted = ""
        self._answer: dict[str, Any] | None = None
        self._answered = threading.Event()
        self._reported, self._reported_s = "", clock.now_s()
        self._thread = threading.Thread(target=self._read, name="check", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait for the check's result; None if there is none yet."""
        self._answered.wait(timeout_s)
        return self._answer

    @property
    def moved_s(self) -> float:
        """When the check last progressed, by the clock."""
        with self._lock:
            return self._moved_s

    def suspend(self) -> None:
        """The check does not run: this time does not count."""
        with self._lock:
            self._moved_s = self._stage_s = self._stack_s = self._clock.now_s()

    def look(self, ask_stack: Callable[[], None]) -> None:
        """Print messages that are due.

        Raises UserError if user code has been at one place for too long. `ask_stack` makes the
        check write its stack, even if its interpreter is blocked.
        """
        now_s = self._clock.now_s()
        with self._lock:
            stage, stage_s, counted = self._stage, self._stage_s, self._counted
            still_s, place = now_s - self._stack_s, self._place()
        if stage in _USER_STAGES and still_s > self._limits.still_s:
            raise UserError(
                f"{stage} has made no progress for {still_s:.0f} s{self._newest_place(ask_stack)}",
                hint="check whether it waits for a lock, another process or the network",
            )
        if counted and counted != self._reported and now_s - self._reported_s >= _BETWEEN_S:
            self._say(counted, now_s)
        elif (
            stage and not counted and now_s - max(self._reported_s, stage_s) >= self._limits.quiet_s
        ):
            self._say(f"{stage} has taken {now_s - stage_s:.0f} s{place}", now_s)

    def _newest_place(self, ask_stack: Callable[[], None]) -> str:
        if self._clock.now_s() - self._stack_reported_s > 2 * self._limits.stacks_s:
            ask_stack()
            self._dumped.wait(_DUMP_S)
        with self._lock:
            return self._place()

    def story(self) -> str:
        """Return the check's activity as the end of a sentence; '' if unknown."""
        with self._lock:
            return f"; it was {self._stage}{self._place()}" if self._stage else ""

    def _say(self, text: str, now_s: float) -> None:
        self._reported, self._reported_s = text, now_s
        self._tell(text)

    def _place(self) -> str:
        """Return the main thread's place: the innermost frame of the user's code."""
        for path, line, function in self._stack:
            if Path(path).is_relative_to(self._zoo):
                return f", at {path}:{line}, in {function}"
        return ""

    def _read(self) -> None:
        # The reader closes the channel: a process that outlives the check may hold the other end.
        with (
            suppress(ConnectionResetError),  # The check ended without reading all of its question.
            open(self._channel, encoding="utf-8", errors="replace") as lines,
        ):
            for line in lines:
                text = line.strip()
                if text.startswith("{"):
                    self._heard(text)
                else:
                    self._dump(text)

    def _dump(self, text: str) -> None:
        """Parse a line of `faulthandler`: a title, and then the frames, innermost first."""
        frame = _FRAME.fullmatch(text)
        with self._lock:
            if frame is None:
                self._stack = ()
            else:
                self._stack = (*self._stack, (frame[1], int(frame[2]), frame[3]))
                if Path(frame[1]).is_relative_to(self._zoo):
                    self._dumped.set()

    def _heard(self, text: str) -> None:
        with suppress(ValueError, TypeError):  # user code may write there, too
            value, now_s = json.loads(text), self._clock.now_s()
            with self._lock:
                if "ok" in value:
                    self._answer = value
                    self._answered.set()
                    return
                if "stack" in value:
                    stack = tuple(
                        (str(path), int(line), str(function))
                        for path, line, function in value["stack"]
                    )
                    self._stack_reported_s = now_s
                    if stack != self._stack:
                        self._stack, self._stack_s = stack, now_s
                    return
                self._moved_s = now_s
                if "stage" in value:
                    self._stage, self._stage_s, self._counted = str(value["stage"]), now_s, ""
                    self._stack, self._stack_s = (), now_s
                elif value.get("files", 0) > 1:
                    self._counted = (
                        f"counting records: {value['counted']:,} of {value['files']:,} files"
                    )
