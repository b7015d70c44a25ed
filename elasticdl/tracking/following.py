"""Send the curves of a job to a tracker while the job runs, and its receipt at the end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, final

from elasticdl.errors import ElasticDLError
from elasticdl.jobdir.layout import read_json, write_json
from elasticdl.tracking.choice import without_password
from elasticdl.tracking.followed_file import FollowedFile, Position
from elasticdl.tracking.tracker import Run, RunEnd, Tracker

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_MOST_CHARS = 500
"""Of a text for the job's events. The master reads lines of at most 64 KiB."""
Say: TypeAlias = Callable[[str, str], None]
"""Takes a level, `info` or `warning`, and a text for the job's events."""


@final
@dataclass(frozen=True, slots=True)
class FollowLimits:
    """Times in seconds.

    A tracker that fails is tried again after pauses that grow to `longest_pause_s`. After the job's
    end it is tried for `end_s`, or just once if it did not work before.
    """

    look_s: float = 1.0
    longest_pause_s: float = 30.0
    end_s: float = 10.0


class Ends(Protocol):
    """How the process learns of the job's end."""

    def wait(self, limit_s: float) -> RunEnd | None:
        """Return the job's end once it is known; None after the limit.

        Raises EOFError if the master has left without one: another master continues the job.
        """


@final
class SavedState:
    """What masters after this one need, in a file: the run's key, and what it has."""

    def __init__(self, path: Path) -> None:
        """Continue the run of an earlier master; a new run has a new key."""
        self._path = path
        state = read_json(path)
        self.key = str(state.get("run") or secrets.token_hex(8))
        self.position = _position(state)

    def save(self, position: Position) -> None:
        """Save the position. Raises OSError."""
        self.position = position
        write_json(self._path, {"run": self.key, "at_s": position.at_s, "rows": position.rows})


def _position(state: Mapping[str, Any]) -> Position:
    at_s, rows = state.get("at_s"), state.get("rows")
    return (
        Position(float(at_s), rows)
        if isinstance(at_s, int | float) and isinstance(rows, int)
        else Position()
    )


@final
class Following(Generic[T]):
    """One run of one tracker, from a job's directory."""

    def __init__(
        self, tracker: Tracker[T], run: Run, rows: FollowedFile[T], state: SavedState
    ) -> None:
        self._tracker, self._run = tracker, run
        self._rows, self._state = rows, state
        self._opened, self._announced = False, False

    def advance(self, say: Say) -> None:
        """Open the run if it is not open, and send all new rows. Raises what the tracker raises."""
        if not self._opened:
            # Without its key, the next process would begin another run.
            self._state.save(self._state.position)
            where = self._tracker.open(self._run)
            self._opened = True
            if not self._announced:
                self._announced = True
                say("info", _shown(f"tracking this job: {where}"))
        while rows := self._rows.read():
            is_safe = self._tracker.log(rows)
            self._rows.sent()
            if is_safe:
                self._state.save(self._rows.position)

    def open_again(self) -> None:
        """Have `advance` open the run again after an error, and repeat rows that are not safe."""
        self._opened = False
        self._rows.go_back(self._state.position)

    def close(self, end: RunEnd) -> None:
        """End the run. Raises what the tracker raises."""
        self._tracker.close(end)
        self._state.save(self._rows.position)

    def leave(self) -> None:
        """Leave the run to the next process. Raises what the tracker raises."""
        if self._opened:
            self._tracker.leave()
            self._state.save(self._rows.position)

    def problem(self, error: Exception) -> str:
        """Return an error of the tracker as people may see it."""
        if isinstance(error, ElasticDLError):
            return _shown(f"{self._tracker.name}: {error.message}").rstrip(".")
        parts = self._tracker.name, type(error).__name__, *str(error).strip().splitlines()[:1]
        return _shown(": ".join(parts)).rstrip(".")


def _shown(text: str) -> str:
    """Return a text for the job's events, which take no long lines."""
    return without_password(text)[:_MOST_CHARS]


def follow(
    following: Following[T], ends: Ends, say: Say, limits: FollowLimits = FollowLimits()
) -> bool:
    """Send until the job has ended. Return whether the tracker has everything.

    Says only the first problem. If the master leaves, leaves the run to the next one; then what is
    missing is for the next one to send.
    """
    end: RunEnd | None = None
    pause_s, until_s, failing, warned = 0.0, 0.0, False, False
    while True:
        if end is None:
            try:
                end = ends.wait(pause_s)
            except EOFError:
                return _left(following)
            until_s = time.monotonic() + (0.0 if failing else limits.end_s)
        else:
            # The last attempt failed, and there is time for another.
            time.sleep(limits.look_s)
        try:
            following.advance(say)
            if end is not None:
                following.close(end)
                return True
            pause_s, failing = limits.look_s, False
        except Exception as error:  # noqa: BLE001 - top of the process: libraries raise anything
            message = following.problem(error)
            following.open_again()
            _LOG.warning("%s", message)
            if not warned:
                warned = True
                say("warning", f"{message}; the job continues, and this is tried again")
            if end is not None and time.monotonic() >= until_s:
                return False
            pause_s = min(limits.longest_pause_s, max(limits.look_s, 2 * pause_s))
            failing = True


def _left(following: Following[T]) -> bool:
    """Leave the run to the next process; return whether the tracker has everything until now."""
    try:
        following.leave()
    except Exception as error:  # noqa: BLE001 - top of the process: libraries raise anything
        _LOG.warning("the next process sends what is missing: %s", following.problem(error))
        return False
    return True
