"""Files of JSON objects, one a line, that stay below a size for however long a job runs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, final

from elasticdl.history.thinning import Line, Policy, parsed, thinned

_LOG = logging.getLogger(__name__)
MOST_READ_BYTES = 64 << 20
"""Of a file that somebody else made longer than we would."""


@final
class JsonLines:
    """Appends. A disk that is full costs lines, with a warning, never the job. One writer a file; readers see whole lines."""

    def __init__(self, path: Path, policy: Policy | None = None) -> None:
        """`policy`: None for a file that may grow without end."""
        self._path = path
        self._policy = policy
        self._file: IO[bytes] | None = None
        self._size_bytes = 0
        self._lost = 0

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line and flush it."""
        try:
            self._write(json.dumps(value).encode() + b"\n")
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                _LOG.warning("cannot write %s: %s; its lines are lost until that is mended", self._path, error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("ab")
            self._size_bytes = self._file.tell()
        self._file.write(line)
        self._file.flush()
        self._size_bytes += len(line)
        if self._policy is not None and self._size_bytes > self._policy.limit_bytes:
            self._thin(self._policy)

    def _thin(self, policy: Policy) -> None:
        """Replace the file by a shorter one: whoever reads has the one or the other."""
        self.close()
        replace_whole(self._path, b"".join(line.text + b"\n" for line in thinned(read_lines(self._path), policy)))


def replace_whole(path: Path, content: bytes) -> None:
    """Readers see the file as it was or as it is now. Not forced to the disk: what is lost with a machine is history only.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_lines(path: Path) -> list[Line]:
    """What is in a file, at most its last 64 MiB; nothing if there is none. Raises OSError if it cannot be read."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - MOST_READ_BYTES))
            return parsed(file.read(MOST_READ_BYTES))
    except FileNotFoundError:
        return []
