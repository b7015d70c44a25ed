"""CSV and TFRecord files that are compressed as a whole: a decompressed copy is read instead.

No part of such a file can be read without all that is before it. So each machine decompresses a
file once, when it first needs it, into `decompressed` beside the indexes of `index_cache`. A copy
ends with a mark and its size, so that one that is cut off is made again. Messages name the
compressed file.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from elasticdl.addresses import is_address
from elasticdl.data import index_cache
from elasticdl.data.base import Block, Metadata
from elasticdl.data.file_reader import FileFormat
from elasticdl.data.files import DataFile, LocalFile, LocalOpenFile
from elasticdl.errors import PermanentError, UserError

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_PIECE_BYTES = 4 << 20
_MARK = b"edlwhole"
_END = struct.Struct("<8sQ")
"""The end of a copy: the mark, and the bytes before it."""
_TIDY_EVERY = 64
_made = itertools.count()
_log = logging.getLogger(__name__)


def is_compressed(path: str) -> bool:
    """Whether a name says that the file is compressed."""
    return os.path.splitext(path)[1].lower() in _CODECS


def name_inside(path: str) -> str:
    """The name without the suffix of the compression."""
    return os.path.splitext(path)[0] if is_compressed(path) else path


@final
@dataclass(frozen=True, slots=True)
class DecompressedFile:
    """See DataFile; `size_bytes` is that of the copy, all else that of the compressed file."""

    compressed: DataFile
    copy: Path
    size_bytes: int
    moving: Callable[[], None]

    @property
    def path(self) -> str:
        return self.compressed.path

    @property
    def mtime_ns(self) -> int:
        return self.compressed.mtime_ns

    @property
    def fingerprint(self) -> str:
        return self.compressed.fingerprint

    def digest(self) -> str:
        return self.compressed.digest()

    def full_fingerprint(self) -> str:
        return self.compressed.full_fingerprint()

    @contextmanager
    def opened(self) -> Iterator[LocalOpenFile]:
        """See `DataFile.opened`. Makes the copy again if somebody has removed it."""
        _ensure(self.compressed, self.copy, self.moving)
        with LocalFile(str(self.copy), self.size_bytes, 0).opened() as opened:
            yield opened

    def check_unchanged(self) -> None:
        self.compressed.check_unchanged()


@final
class CompressedFormat:
    """Files of `inner`, some of which may be compressed; see FileFormat.

    Raises UserError for a damaged file, PermanentError if the cache has no room.
    """

    def __init__(self, inner: FileFormat, moving: Callable[[], None] = lambda: None) -> None:
        """`moving` is called after each piece that is decompressed, in the thread that needs it."""
        self._inner = inner
        self._moving = moving
        self._files: dict[str, DataFile] = {}

    def metadata(self, file: DataFile) -> Metadata:
        return self._inner.metadata(self._plain(file))

    def count(self, file: DataFile) -> int:
        return self._inner.count(self._plain(file))

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return self._inner.bad(self._plain(file))

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        return self._inner.blocks(self._plain(file), begin, end)

    def place(self, file: DataFile, number: int) -> str:
        return self._inner.place(self._plain(file), number)

    def _plain(self, file: DataFile) -> DataFile:
        if not is_compressed(file.path):
            return file
        if file.path not in self._files:
            name = file.path if is_address(file.path) else os.path.abspath(file.path)
            # A copy is private, so each user has one.
            identity = f"{os.getuid()} {name} {file.fingerprint}"
            key = hashlib.sha256(identity.encode()).hexdigest()[:32]
            copy = index_cache.root() / "decompressed" / f"{key}{index_cache.COPY}"
            size = _ensure(file, copy, self._moving)
            if size == 0:
                raise UserError(f"{file.path} has no records")
            self._files[file.path] = DecompressedFile(file, copy, size, self._moving)
        return self._files[file.path]


def _ensure(file: DataFile, copy: Path, moving: Callable[[], None]) -> int:
    """Make the copy if there is no whole one; return the bytes of the data in it."""
    size = _size_if_whole(copy)
    if size is not None:
        with _harmless("note the use of", copy):
            index_cache.touch(copy)
        return size
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, since a rename cannot cross file systems.
        descriptor, temporary = tempfile.mkstemp(dir=copy.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as out:
                _decompress(file, out, moving)
                size = out.tell()
                out.write(_END.pack(_MARK, size))
                out.flush()
                # After a crash of the machine the name could otherwise have a file without bytes.
                os.fsync(out.fileno())
            file.check_unchanged()
            # Atomic: of two processes that decompress a file, each gets a whole copy.
            os.replace(temporary, copy)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PermanentError(
            f"cannot decompress {file.path} to {copy.parent}: {error.strerror or error}",
            hint="free disk space, or set ELASTICDL_CACHE_DIR to a directory with more",
        ) from error
    if next(_made) % _TIDY_EVERY == 0:
        with _harmless("tidy", copy.parent):
            # Copies of a job in progress must stay, whatever their size.
            index_cache.prune(
                copy.parent, spared=copy, files_max=sys.maxsize, bytes_max=sys.maxsize
            )
    return size


def _size_if_whole(copy: Path) -> int | None:
    """The bytes of the data in a copy; None if it is not there, cut off, or cannot be read."""
    with suppress(OSError), copy.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - _END.size
        if size >= 0:
            file.seek(size)
            if file.read() == _END.pack(_MARK, size):
                return size
    return None


@contextmanager
def _harmless(what: str, path: Path) -> Iterator[None]:
    """Log an error of the file system, which costs the job nothing."""
    try:
        yield
    except OSError as error:
        _log.warning("cannot %s %s: %s", what, path, error)


def _decompress(file: DataFile, out: IO[bytes], moving: Callable[[], None]) -> None:
    # It takes 0.2 s to import.
    import pyarrow as pa

    codec: Any = _CODECS[os.path.splitext(file.path)[1].lower()]
    with file.opened() as opened:
        size = file.size_bytes
        pieces = opened.ranges(
            (begin, min(begin + _PIECE_BYTES, size)) for begin in range(0, size, _PIECE_BYTES)
        )
        stream = pa.CompressedInputStream(pa.PythonFile(_Pieces(pieces), mode="r"), codec)
        while data := _read(stream, file.path):
            out.write(data)
            moving()


def _read(stream: Any, path: str) -> bytes:  # noqa: ANN401 - pyarrow
    try:
        data: bytes = stream.read(_PIECE_BYTES)
    except OSError as error:
        raise UserError(
            f"{path}: cannot decompress it: {error}",
            hint="it is damaged, cut off, or not compressed as its name says: write it again, or"
            " rename it",
        ) from error
    return data


@final
class _Pieces(io.RawIOBase):
    """A stream of pieces of a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
