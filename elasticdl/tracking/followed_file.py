"""Follow a file of rows of a running job: it is the queue between the master and this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from elasticdl.history.compaction import parsed
from elasticdl.history.lines import MOST_LINE_BYTES

T = TypeVar("T")
_CHUNK_BYTES = 2 * MOST_LINE_BYTES


@final
@dataclass(frozen=True, slots=True)
class Position:
    """The rows that a tracker has: all before `at_s`, and the first `rows` of that time.

    Bytes would not do: the file is rewritten when it is compacted.
    """

    at_s: float = -1.0
    rows: int = 0

    def after(self, row: Mapping[str, Any]) -> Position:
        """Return the position after one more row."""
        at_s = float(row["at_s"])
        if at_s > self.at_s:
            return Position(at_s, 1)
        return Position(self.at_s, self.rows + 1) if at_s == self.at_s else self


@final
class FollowedFile(Generic[T]):
    """Reads the rows after a position, as they are written.

    `parse` returns None for rows that are not for the reader, each time it is asked.
    """

    def __init__(
        self, path: Path, position: Position, parse: Callable[[Mapping[str, Any]], T | None]
    ) -> None:
        self._path, self._parse = path, parse
        self.position = position
        """After the last row that `sent` was called for."""
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._to_skip = 0
        self._skipping = False
        self._pending: list[tuple[Mapping[str, Any], T]] = []

    def read(self) -> list[T]:
        """Return the next rows, at most 2 MiB of them; the same ones until `sent` is called.

        Raises OSError.
        """
        while not self._pending and (chunk := self._chunk()):
            self._pending = [
                (line.row, value)
                for line in parsed(chunk)
                if isinstance(line.row.get("at_s"), int | float)
                and (value := self._parse(line.row)) is not None
                and self._is_new(line.row)
            ]
        return [value for _, value in self._pending]

    def sent(self) -> None:
        """The tracker has the rows of the last `read`."""
        for row, _ in self._pending:
            self.position = self.position.after(row)
        self._pending = []

    def go_back(self, position: Position) -> None:
        """Read from an earlier position on."""
        if position != self.position:
            self.position, self._file, self._pending = position, None, []

    def _chunk(self) -> bytes:
        """Return complete lines from the offset on; empty at the end of the file."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return b""
        with file:
            end = file.seek(0, 2)
            facts = os.fstat(file.fileno())
            if self._file != (facts.st_dev, facts.st_ino) or end < self._offset:
                # The first look, or the file was compacted meanwhile.
                self._file, self._offset = (facts.st_dev, facts.st_ino), 0
                self._skipping, self._to_skip = True, self.position.rows
            file.seek(self._offset)
            data = file.read(_CHUNK_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == _CHUNK_BYTES:
            whole = data  # No writer makes such a line; `parsed` drops it.
        self._offset += len(whole)
        return whole

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        if not self._skipping:
            return True
        at_s = float(row["at_s"])
        if at_s < self.position.at_s:
            return False
        if at_s == self.position.at_s and self._to_skip:
            self._to_skip -= 1
            return False
        self._skipping = False
        return True
