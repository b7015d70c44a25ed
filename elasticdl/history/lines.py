"""Files of JSON objects, one a line, that stay below a size for however long a job runs."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from elasticdl.history.compaction import Line, Policy, parsed, thinned
from elasticdl.history.raw_file import RawFile

_LOG = logging.getLogger(__name__)
MOST_LINE_BYTES = 1 << 20
MOST_READ_BYTES = 64 << 20
"""Of a file that somebody else made longer than we would."""


@final
class JsonLines:
    """Appends.

    A disk that is full costs lines, with a warning, never the job. One writer a file; readers see
    whole lines.

    What takes long, making a full file shorter, happens in a thread of its own: `append` never
    takes more than a write.
    """

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        """`policy`: None for a file that may grow without end."""
        self._path = path
        self._policy = policy
        self._file: RawFile | None = None
        self._size_bytes = 0
        self._full_bytes = policy.limit_bytes if policy is not None else 0
        """When it is to be made shorter: later than at its limit where that did not work."""
        self._thinning: _Thinning | None = None
        self._lost = 0

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line."""
        try:
            self._write(json.dumps(value).encode() + b"\n")
        except OSError as error:
            self._lost += 1
            self._close()
            if self._lost == 1:
                _LOG.warning(
                    "cannot write %s: %s; its lines are lost until that is mended",
                    self._path,
                    error,
                )

    def close(self) -> None:
        """Close the file; one that is being made shorter is first."""
        if self._thinning is not None:
            self._thinning.join()
            self._replace(self._thinning)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._thinning is not None and not self._thinning.is_alive():
            self._replace(self._thinning)
        if self._file is None:
            self._file = RawFile(self._path, "ab+")
            self._begin_line(self._file)
        self._file.write(line)
        self._size_bytes += len(line)
        if (
            self._policy is not None
            and self._thinning is None
            and self._size_bytes > self._full_bytes
        ):
            self._thinning = _Thinning(self._path, self._size_bytes, self._policy)
            self._thinning.start()

    def _begin_line(self, file: RawFile) -> None:
        self._size_bytes, last = file.end()
        if last not in (b"", b"\n"):
            # Whoever wrote here last was cut short: the next line is not to be lost with that one.
            file.write(b"\n")
            self._size_bytes += 1

    def _replace(self, thinning: _Thinning) -> None:
        """Put what was made in the place of the file, with what was appended meanwhile."""
        self._thinning = None
        if thinning.result is None:
            self._full_bytes = self._size_bytes * 5 // 4
            return
        self._close()
        try:
            with self._path.open("rb") as file:
                file.seek(thinning.until_bytes)
                replace_whole(self._path, thinning.result + file.read())
            self._full_bytes = thinning.policy.limit_bytes
        except OSError as error:
            self._full_bytes = self._size_bytes * 5 // 4
            _LOG.warning("cannot make %s shorter: %s", self._path, error)


@final
class _Thinning(threading.Thread):
    """Makes the beginning of a file shorter; `result` is None if that cannot be done."""

    def __init__(self, path: Path, until_bytes: int, policy: Policy) -> None:
        super().__init__(name=f"shortens {path.name}", daemon=True)
        self._path, self.policy = path, policy
        self.until_bytes = until_bytes
        self.result: bytes | None = None

    def run(self) -> None:
        try:
            lines = thinned(read_lines(self._path, self.until_bytes), self.policy)
        except OSError as error:
            _LOG.warning("cannot make %s shorter: %s", self._path, error)
            return
        self.result = b"".join(line.text + b"\n" for line in lines)


def replace_whole(path: Path, content: bytes) -> None:
    """Readers see the file as it was or as it is now.

    Not forced to the disk: what is lost with a machine is history only.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def began_at(path: Path) -> float | None:
    """Unix time of the first line of a record, which is when its job began; None if there is
    none.
    """
    try:
        with path.open("rb") as file:
            lines = parsed(file.readline(MOST_LINE_BYTES))
        return float(lines[0].row["at"]) - float(lines[0].row["at_s"]) if lines else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_lines(path: Path, until_bytes: int | None = None) -> list[Line]:
    """What is in a file, at most its last 64 MiB; nothing if there is none.

    Raises OSError if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END) if until_bytes is None else until_bytes
            begin = max(0, end - MOST_READ_BYTES)
            file.seek(begin)
            return parsed(file.read(end - begin))
    except FileNotFoundError:
        return []
