"""Reads what a job appends to a file, as it grows."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from elasticdl.history.lines import read_lines


@final
class Tail:
    """The new bytes of a file since the last look. A file that is not there yet is empty."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self, limit_bytes: int = 1 << 20) -> bytes:
        """At most `limit_bytes`; b'' when there is nothing new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                found = file.read(limit_bytes)
        except OSError:
            return b""
        self._offset += len(found)
        return found


@final
class Events:
    """The new lines of events.jsonl since the last look."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._tail = Tail(path, from_end=from_end)
        self._file = _file(path)
        self._rest = b""
        self._seq = _last_seq(path) if from_end else -1

    def read(self) -> list[dict[str, Any]]:
        """Whole lines only; a damaged one is left out.

        A file that its writer made shorter is read again, but for what was read.
        """
        if (file := _file(self._path)) != self._file:
            if self._file is not None:
                self._tail, self._rest = Tail(self._path), b""
            self._file = file
        *lines, self._rest = (self._rest + self._tail.read()).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and self._is_new(event):
                    found.append(event)
        return found

    def _is_new(self, event: dict[str, Any]) -> bool:
        seq = event.get("seq")
        if not isinstance(seq, int):
            return True
        new = seq > self._seq
        self._seq = max(self._seq, seq)
        return new


def _file(path: Path) -> int | None:
    """Which file it is; None if there is none."""
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
