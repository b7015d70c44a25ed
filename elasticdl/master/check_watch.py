"""Follows the check of a model from outside: what it is at, for how long, and where its main thread
stands.

The check runs user code, which may wait for ever while it holds any lock of its process, so nothing
in that process can bound it.
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
from typing import TypeAlias, final

from elasticdl.clock import Clock
from elasticdl.errors import UserError
from elasticdl.formatting import BUILDING, IMPORTING

Tell: TypeAlias = Callable[[str], None]

_USER_STAGES = (IMPORTING, BUILDING)
_DUMP_S = 2.0
_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')
_BETWEEN_S = 3.0
"""Lines for people come no faster."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """`still_s`: how long user code may stand at one place while it is imported or builds the
    model. `stacks_s`: between two looks.

    `quiet_s`: after so long people are told what takes so long, and again each time that it has
    passed.
    """

    still_s: float = 300.0
    stacks_s: float = 15.0
    quiet_s: float = 30.0


@final
class CheckWatch:
    """Reads the pipe in a thread, which closes it; `look` is for the thread that waits for the
    check.
    """

    def __init__(self, pipe: int, zoo: str, limits: CheckLimits, clock: Clock, tell: Tell) -> None:
        self._pipe = pipe
        self._zoo = os.path.abspath(zoo)
        self._limits = limits
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._stage, self._stage_s = "", clock.now_s()
        self._moved_s = clock.now_s()
        """When the check last began a stage, or counted files."""
        self._stack: tuple[tuple[str, int, str], ...] = ()
        """Of the main thread, innermost first: file, line and function."""
        self._stack_s = clock.now_s()
        """When the main thread was first seen there in this stage, or when the stage began."""
        self._stack_told_s = clock.now_s()
        self._dumped = threading.Event()
        self._counted = ""
        self._told, self._told_s = "", clock.now_s()
        self._thread = threading.Thread(target=self._read, name="check", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    @property
    def moved_s(self) -> float:
        """When the check last got on, by the clock."""
        with self._lock:
            return self._moved_s

    def look(self, ask_stack: Callable[[], None]) -> None:
        """Tell what there is to tell.

        Raises UserError if user code has stood at one place for too long.

        `ask_stack` has the check write its stack although its interpreter is held.
        """
        now_s = self._clock.now_s()
        with self._lock:
            stage, stage_s, counted = self._stage, self._stage_s, self._counted
            still_s, place = now_s - self._stack_s, self._place()
        if stage in _USER_STAGES and still_s > self._limits.still_s:
            raise UserError(
                f"{stage} has not gone on for {still_s:.0f} s{self._newest_place(ask_stack)}",
                hint=(
                    "does it wait for something that never comes: a lock, another process, the"
                    " network?"
                ),
            )
        if counted and counted != self._told and now_s - self._told_s >= _BETWEEN_S:
            self._say(counted, now_s)
        elif stage and not counted and now_s - max(self._told_s, stage_s) >= self._limits.quiet_s:
            self._say(f"{stage} has taken {now_s - stage_s:.0f} s{place}", now_s)

    def _newest_place(self, ask_stack: Callable[[], None]) -> str:
        if self._clock.now_s() - self._stack_told_s > 2 * self._limits.stacks_s:
            ask_stack()
            self._dumped.wait(_DUMP_S)
        with self._lock:
            return self._place()

    def story(self) -> str:
        """What the check is at, to go on after a sentence; '' if that is not known."""
        with self._lock:
            return f"; it was {self._stage}{self._place()}" if self._stage else ""

    def _say(self, text: str, now_s: float) -> None:
        self._told, self._told_s = text, now_s
        self._tell(text)

    def _place(self) -> str:
        """Where the main thread stands: the innermost frame of the user's code."""
        for path, line, function in self._stack:
            if Path(path).is_relative_to(self._zoo):
                return f", at {path}:{line}, in {function}"
        return ""

    def _read(self) -> None:
        # Not closed by whoever waits for the check: a process that outlives it may hold the other
        # end.
        with open(self._pipe, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                text = line.strip()
                if text.startswith("{"):
                    self._heard(text)
                else:
                    self._dump(text)

    def _dump(self, text: str) -> None:
        """A line of what `faulthandler` writes: a title, and then each frame, the innermost
        first.
        """
        found = _FRAME.fullmatch(text)
        with self._lock:
            if found is None:
                self._stack = ()
            else:
                self._stack = (*self._stack, (found[1], int(found[2]), found[3]))
                if Path(found[1]).is_relative_to(self._zoo):
                    self._dumped.set()

    def _heard(self, text: str) -> None:
        with suppress(ValueError, TypeError):  # user code may write there, too
            value, now_s = json.loads(text), self._clock.now_s()
            with self._lock:
                if "stack" in value:
                    stack = tuple(
                        (str(path), int(line), str(function))
                        for path, line, function in value["stack"]
                    )
                    self._stack_told_s = now_s
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
