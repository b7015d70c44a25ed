"""An append-only file that tolerates a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import final


@final
class RawFile:
    """An unbuffered file: closing has nothing left to write, so it cannot fail."""

    def __init__(
        self, path: Path, mode: str, opener: Callable[[str, int], int] | None = None
    ) -> None:
        """Open the file; `mode` and `opener` are those of `open`. Raises OSError."""
        self._file = FileIO(str(path), mode, opener=opener)

    def write(self, data: bytes) -> None:
        """Write all of it. Raises OSError, possibly after a partial write."""
        if self._file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def end(self) -> tuple[int, bytes]:
        """Return the file's length and its last byte; b"" for an empty file.

        The file must be readable. Raises OSError.
        """
        size_bytes = self._file.seek(0, os.SEEK_END)
        if not size_bytes:
            return 0, b""
        self._file.seek(-1, os.SEEK_END)
        return size_bytes, self._file.read(1)

    def close(self) -> None:
        """Close the file. Never raises, since nothing is buffered."""
        with suppress(OSError):
            self._file.close()
