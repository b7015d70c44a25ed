"""Log files of processes: one per role and index, with all incarnations in order.

Both clusters write them: a local process into its own, and on Kubernetes the master copies the logs
of pods (`kubernetes/log_archive.py`). Readers use byte ranges, the last lines, or follow the
growing file.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO, final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import PermanentError
from elasticdl.private_file import make_private, private

TAIL_BYTES = 16 << 10
TAIL_LINES = 60
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of a log from `start` on; `size_bytes` is its present size."""

    start: int
    data: bytes
    size_bytes: int


class NoSuchLog(LookupError):
    """The process has no log."""


def log_path(directory: Path, name: ProcessName) -> Path:
    """`worker-3.log`: the same for every incarnation."""
    return directory / f"{name.role}-{name.index}.log"


def open_log(path: Path, name: ProcessName) -> FileIO:
    """Open a log for appending, unbuffered, and write a header line for this incarnation.

    A full disk costs only the header. The caller closes the file.
    """
    make_private(path.parent)
    log = FileIO(str(path), "a", opener=private)
    with suppress(OSError):
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        log.write(f"=== {name} started {started} ===\n".encode())
    return log


def log_files(directory: Path) -> dict[str, Path]:
    """Return every log by its process's name without incarnation.

    Links are ignored. Raises OSError.
    """
    if not directory.is_dir():
        return {}
    paths = sorted(directory.glob("*.log"))
    return {path.stem: path for path in paths if path.is_file() and not path.is_symlink()}


def log_sizes(directory: Path) -> dict[str, int]:
    """Return the size of every log in bytes. Raises PermanentError."""
    try:
        return {process: path.stat().st_size for process, path in log_files(directory).items()}
    except OSError as error:
        raise PermanentError(
            f"cannot list the logs in {directory}: {error.strerror or error}"
        ) from error


def read_log(directory: Path, process: str, start: int, limit_bytes: int) -> LogPart:
    """Read up to `limit_bytes` of a log from byte `start` on; a negative one counts from the end.

    `process` is looked up among the existing logs, never made into a path. The log of `ps-0.1` is
    part of the log of `ps-0`. Raises NoSuchLog, PermanentError.
    """
    stem, _, incarnation = process.partition(".")
    try:
        logs = log_files(directory)
        if stem not in logs or not (incarnation or "0").isdecimal():
            raise NoSuchLog(f"there is no log of {process!r}")
        return _read_part(logs[stem], start, limit_bytes)
    except OSError as error:
        raise PermanentError(f"cannot read the log of {stem}: {error.strerror or error}") from error


def _read_part(path: Path, start: int, limit_bytes: int) -> LogPart:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as log:
        size_bytes = os.fstat(log.fileno()).st_size
        begin = min(size_bytes, start) if start >= 0 else max(0, size_bytes + start)
        return LogPart(begin, os.pread(log.fileno(), limit_bytes, begin), size_bytes)


def read_tail(path: Path, begin: int = 0) -> str:
    """Return the last lines after byte `begin`: at most 60 lines and 16 KiB.

    '' if the file is unreadable.
    """
    try:
        part = _read_part(path, -TAIL_BYTES, TAIL_BYTES)
    except OSError:
        return ""
    text = part.data[max(0, begin - part.start) :].decode("utf-8", errors="replace")
    lines = text.splitlines()
    if part.start > begin:
        lines = lines[1:]  # a partial line
    return "\n".join(lines[-TAIL_LINES:])


def last_lines(path: Path, lines: int) -> Iterator[str]:
    """Return the last lines of a file (0: all), with little memory for a file of any size.

    Raises OSError.
    """
    with path.open("rb") as log:
        log.seek(_before_last(log, lines) if lines else 0)
        for line in deque(log, maxlen=lines) if lines else log:
            yield line.decode("utf-8", errors="replace")


def _before_last(log: IO[bytes], lines: int) -> int:
    """Return the offset before the last `lines` lines; searches from the end."""
    position, newlines = log.seek(0, os.SEEK_END), 0
    while position > 0 and newlines <= lines:
        step = min(_BLOCK_BYTES, position)
        position -= step
        log.seek(position)
        newlines += log.read(step).count(b"\n")
    return position


@final
class LogFollower:
    """Reads what a file gained since the last read; a missing file counts as empty."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self, limit_bytes: int = 1 << 20) -> bytes:
        """Return at most `limit_bytes`; b'' if there is nothing new."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read(limit_bytes)
        except OSError:
            return b""
        self._offset += len(data)
        return data
