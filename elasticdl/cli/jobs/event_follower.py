"""Follow the events of a running job."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from elasticdl.cluster.logs.log_files import LogFollower
from elasticdl.history.lines import read_lines


@final
class Events:
    """Reads the new lines of events.jsonl since the last call."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._follower = LogFollower(path, from_end=from_end)
        self._file = _file(path)
        self._rest = b""
        self._seq = _last_seq(path) if from_end else -1

    def read(self) -> list[dict[str, Any]]:
        """Return complete new lines; skip damaged ones.

        If the writer compacted the file, read it again and skip known events.
        """
        if (file := _file(self._path)) != self._file:
            if self._file is not None:
                self._follower, self._rest = LogFollower(self._path), b""
            self._file = file
        *lines, self._rest = (self._rest + self._follower.read()).split(b"\n")
        events = []
        for line in lines:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and self._is_new(event):
                    events.append(event)
        return events

    def _is_new(self, event: dict[str, Any]) -> bool:
        seq = event.get("seq")
        if not isinstance(seq, int):
            return True
        new = seq > self._seq
        self._seq = max(self._seq, seq)
        return new


def _file(path: Path) -> int | None:
    """Return the file's identity; None if there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _last_seq(path: Path) -> int:
    with suppress(OSError):
        for line in reversed(read_lines(path)):
            if isinstance(line.row.get("seq"), int):
                return int(line.row["seq"])
    return -1
