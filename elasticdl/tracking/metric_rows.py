"""Follow metrics.jsonl of a running job: the file is the queue between the master and a tracker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from elasticdl.history.compaction import parsed
from elasticdl.history.lines import MOST_LINE_BYTES
from elasticdl.tracking.tracker import MetricRow

_CHUNK_BYTES = 2 * MOST_LINE_BYTES
_PREFIXES = {"training": "train", "evaluation": "validation"}
"""As the runs of TensorBoard are named."""


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
class MetricRows:
    """Reads the rows after a position, as they are written."""

    def __init__(self, path: Path, position: Position) -> None:
        self._path = path
        self.position = position
        """After the last row that `sent` was called for."""
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._to_skip = 0
        self._skipping = False
        self._pending: list[Mapping[str, Any]] = []

    def read(self) -> list[MetricRow]:
        """Return the next rows, at most 2 MiB of them; the same ones until `sent` is called.

        Raises OSError.
        """
        while not self._pending and (chunk := self._chunk()):
            rows = (line.row for line in parsed(chunk))
            self._pending = [row for row in rows if _is_metric(row) and self._is_new(row)]
        return [_metric_row(row) for row in self._pending]

    def sent(self) -> None:
        """The tracker has the rows of the last `read`."""
        for row in self._pending:
            self.position = self.position.after(row)
        self._pending = []

    def _chunk(self) -> bytes:
        """Return complete lines from the offset on; empty at the end of the file."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return b""
        with file:
            end = file.seek(0, 2)
            found = self._path.stat()
            if self._file != (found.st_dev, found.st_ino) or end < self._offset:
                # The first look, or the file was compacted meanwhile.
                self._file, self._offset = (found.st_dev, found.st_ino), 0
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


def _is_metric(row: Mapping[str, Any]) -> bool:
    return (
        row.get("kind") in _PREFIXES
        and isinstance(row.get("values"), Mapping)
        and isinstance(row.get("at_s"), int | float)
        and isinstance(row.get("version"), int)
    )


def _metric_row(row: Mapping[str, Any]) -> MetricRow:
    prefix, records = _PREFIXES[row["kind"]], row.get("records")
    values = numbers({f"{prefix}/{name}": value for name, value in row["values"].items()})
    if isinstance(records, int):
        values["records"] = float(records)
    return MetricRow(int(row["version"]), float(row.get("at") or 0.0), values)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {name: float(one) for name, one in values.items() if isinstance(one, int | float)}


def flat(value: object, prefix: str) -> Iterable[tuple[str, float]]:
    """Return the numbers of nested objects, by names with slashes."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from flat(one, f"{prefix}/{name}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
