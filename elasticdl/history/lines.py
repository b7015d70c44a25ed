"""Files of one JSON object per line, whose size stays bounded however long a job runs."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from elasticdl.history.compaction import ParsedLine, Policy, compacted, parsed
from elasticdl.history.raw_file import RawFile
from elasticdl.private_file import private, replace_atomically

_LOG = logging.getLogger(__name__)
MOST_LINE_BYTES = 1 << 20
MOST_READ_BYTES = 64 << 20
"""Read limit, for files that another program made too long."""


@final
class JsonLines:
    """Append JSON lines to a file.

    A full disk loses lines and logs a warning; it never fails the job. A file has one writer.
    Readers see complete lines.

    A separate thread compacts a full file, so `append` takes no longer than a write.
    """

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        """Open the file. `policy` is None for a file without a size limit."""
        self._path = path
        self._policy = policy
        self._file: RawFile | None = None
        self._size_bytes = 0
        self._full_bytes = policy.limit_bytes if policy is not None else 0
        """Size that starts the next compaction; above the limit after a failed one."""
        self._compaction: _Compaction | None = None
        self._lost = 0

    def append(self, value: Mapping[str, Any]) -> None:
        try:
            self._write(json.dumps(value).encode() + b"\n")
        except OSError as error:
            self._lost += 1
            self._close()
            if self._lost == 1:
                _LOG.warning(
                    "cannot write %s: %s; lines are lost until this is fixed",
                    self._path,
                    error,
                )

    def close(self) -> None:
        """Close the file, after a compaction in progress."""
        if self._compaction is not None:
            self._compaction.join()
            self._replace(self._compaction)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._compaction is not None and not self._compaction.is_alive():
            self._replace(self._compaction)
        if self._file is None:
            self._file = RawFile(self._path, "ab+", private)
            self._begin_line(self._file)
        self._file.write(line)
        self._size_bytes += len(line)
        if (
            self._policy is not None
            and self._compaction is None
            and self._size_bytes > self._full_bytes
        ):
            self._compaction = _Compaction(self._path, self._size_bytes, self._policy)
            self._compaction.start()

    def _begin_line(self, file: RawFile) -> None:
        self._size_bytes, last = file.end()
        if last not in (b"", b"\n"):
            # The previous writer died within a line. Without a newline the next line would be lost
            # too.
            file.write(b"\n")
            self._size_bytes += 1

    def _replace(self, compaction: _Compaction) -> None:
        """Replace the file by its compacted beginning and the lines appended since."""
        self._compaction = None
        if compaction.result is None:
            self._full_bytes = self._size_bytes * 5 // 4
            return
        self._close()
        try:
            with self._path.open("rb") as file:
                file.seek(compaction.until_bytes)
                content = compaction.result + file.read()
            # Not durable: a crash of the machine may lose history.
            replace_atomically(self._path, content, durable=False)
            self._full_bytes = compaction.policy.limit_bytes
        except OSError as error:
            self._full_bytes = self._size_bytes * 5 // 4
            _LOG.warning("cannot compact %s: %s", self._path, error)


@final
class _Compaction(threading.Thread):
    """Compacts the beginning of a file; `result` is None on failure."""

    def __init__(self, path: Path, until_bytes: int, policy: Policy) -> None:
        super().__init__(name=f"shortens {path.name}", daemon=True)
        self._path, self.policy = path, policy
        self.until_bytes = until_bytes
        self.result: bytes | None = None

    def run(self) -> None:
        try:
            lines = compacted(read_lines(self._path, self.until_bytes), self.policy)
        except OSError as error:
            _LOG.warning("cannot compact %s: %s", self._path, error)
            return
        self.result = b"".join(line.text + b"\n" for line in lines)


def began_at(path: Path) -> float | None:
    """Return the unix time of a record's first line, when its job began; None if empty."""
    try:
        with path.open("rb") as file:
            lines = parsed(file.readline(MOST_LINE_BYTES))
        return float(lines[0].row["at"]) - float(lines[0].row["at_s"]) if lines else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_text(path: Path, until_bytes: int | None = None) -> bytes:
    """Read the last 64 MiB of a file; return nothing if it does not exist.

    Raises OSError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END) if until_bytes is None else until_bytes
            begin = max(0, end - MOST_READ_BYTES)
            file.seek(begin)
            return file.read(end - begin)
    except FileNotFoundError:
        return b""


def read_lines(path: Path, until_bytes: int | None = None) -> list[ParsedLine]:
    """Read the lines of the last 64 MiB of a file; return nothing if it does not exist.

    Raises OSError if the file cannot be read.
    """
    return parsed(read_text(path, until_bytes))
