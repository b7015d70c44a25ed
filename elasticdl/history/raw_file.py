"""A file that is appended to on a disk that may be full."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import final


@final
class RawFile:
    """Has no buffer: nothing is left over that closing would have to write."""

    def __init__(self, path: Path, mode: str) -> None:
        """`mode` as `open` takes it. Raises OSError."""
        self._file = FileIO(path, mode)

    def write(self, data: bytes) -> None:
        """All of it. Raises OSError; a part may be there then."""
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def end(self) -> tuple[int, bytes]:
        """How long the file is, and its last byte; b"" of an empty one.

        For a file that may be read. Raises OSError.
        """
        size_bytes = self._file.seek(0, os.SEEK_END)
        if not size_bytes:
            return 0, b""
        self._file.seek(-1, os.SEEK_END)
        return size_bytes, self._file.read(1)

    def close(self) -> None:
        """Raises nothing: all that could be written was."""
        with suppress(OSError):
            self._file.close()
