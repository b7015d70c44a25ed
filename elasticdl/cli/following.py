"""Reads what a job appends to a file, as it grows."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, final


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
        self._tail = Tail(path, from_end=from_end)
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Whole lines only; a damaged one is left out."""
        *lines, self._rest = (self._rest + self._tail.read()).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found
