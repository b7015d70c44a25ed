"""A file of known size that can be read at any offset, for libraries that take file objects."""

from __future__ import annotations

import io
import os


class SeekableFile(io.RawIOBase):
    """Keeps the position `_at` within `_size` bytes; how bytes are read is the subclass's."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Return the offset that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at
