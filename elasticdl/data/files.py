"""Data files: which files an origin names, whether they changed, and their bytes.

This module has those of the machine, `remote_files` those of object stores. Local files are read
with `pread`, never mapped. A file that shrinks under a mapping kills the process with SIGBUS, while
a short read becomes an error with file and offset.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from typing import IO, Protocol, final

from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import DIGEST_MARK, Shard, Source

DIGESTED_BYTES = 256 << 20
"""How much of a job's data, in order, gets digests when it is counted, in about a second.

For the rest, modification times must do.
"""
_PART_BYTES = 4 << 20
_NEW_FILE = "write new data to a new file, and start a new job with it"


class DataChanged(UserError):
    """The data changed during the job; another worker would fail, too."""


class OpenFile(Protocol):
    """A data file that is open for reading."""

    @property
    def native(self) -> int | Callable[[int, int], bytes]:
        """What the native scanners read: a descriptor, or `read(offset, size)`."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end).

        Raises DataChanged if the file ends before `end`, and UserError if it is unreadable.
        """

    def ranges(self, wanted: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """The bytes of each range in turn, perhaps read ahead. Raises as `read` does."""

    def stream(self) -> IO[bytes]:
        """A seekable stream over the file, to be closed by the caller."""


class DataFile(Protocol):
    """A file as it was when the process first inspected it."""

    @property
    def path(self) -> str:
        """A path or an address."""

    @property
    def size_bytes(self) -> int:
        """Its size."""

    @property
    def mtime_ns(self) -> int:
        """When it was written, since 1970."""

    @property
    def fingerprint(self) -> str:
        """What a look at the file tells without reading it."""

    def digest(self) -> str:
        """What differs if any byte differs; '' if unknown. Raises as `OpenFile.read` does."""

    def full_fingerprint(self) -> str:
        """The fingerprint with the digest. Raises as `OpenFile.read` does."""

    def opened(self) -> AbstractContextManager[OpenFile]:
        """Open the file for the time of a block. Raises UserError."""

    def check_unchanged(self) -> None:
        """Raise DataChanged if the file has changed or gone."""


@final
class LocalOpenFile:
    """See OpenFile; over a descriptor."""

    def __init__(self, file: LocalFile, descriptor: int) -> None:
        self._file = file
        self.native = descriptor

    def read(self, begin: int, end: int) -> bytes:
        path = self._file.path
        parts: list[bytes] = []
        offset = begin
        while offset < end:
            try:
                part = os.pread(self.native, end - offset, offset)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot read at offset {offset}: {error.strerror}"
                ) from error
            # `pread` may return less than requested, but nothing only at the end of the file.
            if not part:
                raise truncated(self._file, offset)
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def ranges(self, wanted: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """See `OpenFile.ranges`. The system reads ahead."""
        return (self.read(begin, end) for begin, end in wanted)

    def stream(self) -> IO[bytes]:
        return open(self._file.path, "rb")


@final
@dataclass(frozen=True, slots=True)
class LocalFile:
    """See DataFile; a file of the machine."""

    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def fingerprint(self) -> str:
        """Size and modification time: cheap, but also changed by rewriting the same bytes."""
        return f"{self.size_bytes}:{self.mtime_ns}"

    def digest(self) -> str:
        """Digest of all bytes. Raises DataChanged or UserError as `read` does."""
        state = blake2b(digest_size=16)
        with self.opened() as opened:
            for begin in range(0, self.size_bytes, _PART_BYTES):
                state.update(opened.read(begin, min(begin + _PART_BYTES, self.size_bytes)))
        return f"{DIGEST_MARK}{state.hexdigest()}"

    def full_fingerprint(self) -> str:
        """The fingerprint with the digest. Raises DataChanged or UserError as `read` does."""
        return f"{self.fingerprint}:{self.digest()}"

    @contextmanager
    def opened(self) -> Iterator[LocalOpenFile]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"{self.path}: cannot open: {error.strerror}") from error
        try:
            yield LocalOpenFile(self, descriptor)
        finally:
            os.close(descriptor)

    def check_unchanged(self) -> None:
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise disappeared(self, error.strerror or str(error)) from error
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise changed(self, now.st_size, "another modification time")


def truncated(file: DataFile, offset: int) -> DataChanged:
    """The error of a file that ends too early."""
    return DataChanged(
        f"{file.path} was truncated during the job: it ends at offset {offset},"
        f" expected {file.size_bytes} bytes",
        hint=_NEW_FILE,
    )


def disappeared(file: DataFile, why: str) -> DataChanged:
    """The error of a file that is no longer there."""
    return DataChanged(
        f"{file.path} disappeared during the job: {why}", hint="restore it and resume the job"
    )


def changed(file: DataFile, size_bytes: int, otherwise: str) -> DataChanged:
    """The error of a file that now has this size; `otherwise` is what differs if not the size."""
    return DataChanged(
        f"{file.path} changed during the job: it had {amount(file.size_bytes, 'byte')}, now"
        f" {size_bytes}" + ("" if size_bytes != file.size_bytes else f" with {otherwise}"),
        hint=_NEW_FILE,
    )


def with_digest(files: Sequence[DataFile]) -> list[bool]:
    """Which files get a digest: those within the first DIGESTED_BYTES of all."""
    return [end <= DIGESTED_BYTES for end in accumulate(file.size_bytes for file in files)]


def fingerprints(files: Sequence[DataFile]) -> list[str]:
    """The fingerprint of each file, in order. Raises DataChanged, UserError."""
    digested = zip(files, with_digest(files), strict=True)
    return [file.full_fingerprint() if digest else file.fingerprint for file, digest in digested]


def check_as_counted(files: Sequence[DataFile], counted: Source) -> None:
    """Raise DataChanged if `files` differ from those whose records were counted before the job.

    The job's shards would mean other records. `counted.fingerprint` joins those of all files, in
    order, by `+`; '' is not compared. A file with another time but the same digest is unchanged:
    copies, and volumes made of a ConfigMap, have times of their own.
    """
    if not counted.fingerprint:
        return
    then = counted.fingerprint.split("+")
    if len(then) != len(files):
        raise DataChanged(
            f"{counted.name} has {amount(len(files), 'file')}, but had {len(then)} when its"
            " records were counted",
            hint=_NEW_FILE,
        )
    for file, old in zip(files, then, strict=True):
        _check_one(file, old)


def _check_one(file: DataFile, old: str) -> None:
    size, _, rest = old.partition(":")
    mtime_ns, _, digest = rest.partition(":")
    # The cheap comparison first: the digest may read the whole file.
    if file.fingerprint in (old, f"{size}:{mtime_ns}"):
        return
    hint = _NEW_FILE
    if size != str(file.size_bytes):
        what = f"it had {size} bytes, now {file.size_bytes}"
    elif digest:
        if file.digest() == digest:
            return
        what = (
            f"it still has {size} bytes, but their content differs, written at"
            f" {_time(file.mtime_ns)}"
        )
    else:
        what = (
            f"it still has {size} bytes, but was written at {_time(file.mtime_ns)}, not at"
            f" {_time(int(mtime_ns))}"
        )
        hint = (
            f"{_NEW_FILE}; if each machine has its own copy, preserve modification times (cp -p,"
            " rsync -t)"
        )
    raise DataChanged(f"{file.path} changed since its records were counted: {what}", hint=hint)


def check_within(source: Source, shard: Shard) -> None:
    """Raise DataChanged if a shard is not of these records."""
    if shard.source != source.name or not 0 <= shard.begin <= shard.end <= source.records:
        raise DataChanged(
            f"the data changed during the job: it has {source}, but a shard is {shard}"
        )


def _time(mtime_ns: int) -> str:
    """UTC, to the nanosecond."""
    seconds, rest = divmod(mtime_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


def refuse_compressed(path: str, beginning: bytes) -> None:
    """Raise UserError if a file begins like a compressed file."""
    for magic, name, tool, suffix in (
        (b"\x1f\x8b", "gzip", "gunzip", ".gz"),
        (b"BZh", "bzip2", "bunzip2", ".bz2"),
        (b"(\xb5/\xfd", "zstd", "unzstd", ".zst"),
    ):
        if beginning.startswith(magic):
            raise UserError(
                f"{path} is compressed with {name}, so workers cannot read parts of it",
                hint=(
                    f"decompress it with {tool}; CSV and TFRecord files are read as they are if"
                    f" their names end with .csv{suffix} or .tfrecord{suffix}, or with {suffix} and"
                    ' --data-reader-params says "format=csv"'
                ),
            )


def look_at_path(path: str) -> LocalFile:
    """The file at `path`. Raises UserError if it is missing, not a readable file, or empty."""
    try:
        facts = os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            raise _missing(path) from error
        raise UserError(
            f"{path}: {error.strerror}", hint="the path must be visible to every worker"
        ) from error
    # A pipe cannot be read twice, and opening one blocks.
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(f"{path} is not a regular file", hint="name a file, a directory or a glob")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission denied", hint=f"chmod +r {path}")
    if facts.st_size == 0:
        raise UserError(f"{path} is empty", hint="remove it, or write records into it")
    return LocalFile(path, facts.st_size, facts.st_mtime_ns)


def expand_path(origin: str) -> tuple[str, ...]:
    """The files that a path, a directory or a glob names, sorted.

    In a directory, subdirectories and names that begin with `.` or `_` (markers of writers such as
    Spark) are ignored. A broken link is not: its records would be missing silently.

    Raises UserError if there are no files.
    """
    if os.path.isdir(origin):
        try:
            with os.scandir(origin) as entries:
                listed = [
                    (entry.name, _is_file(entry))
                    for entry in entries
                    if not entry.name.startswith((".", "_"))
                ]
        except OSError as error:
            raise UserError(
                f"directory {origin} cannot be listed: {error.strerror}", hint=f"chmod +rx {origin}"
            ) from error
        paths = tuple(
            path
            for name, file in sorted(listed)
            if _is_data(path := os.path.join(origin, name), file=file)
        )
        if not paths:
            raise UserError(
                f"directory {origin} has no data files",
                hint="name a file, a directory of files, or a glob",
            )
        return paths
    # Before the glob: a file name may contain [ ] or *.
    if os.path.exists(origin):
        return (origin,)
    if glob.has_magic(origin):
        paths = tuple(
            sorted(
                path
                for path in glob.glob(origin, recursive=True)
                if _is_data(path, file=os.path.isfile(path))
            )
        )
        if paths:
            return paths
        raise UserError(
            f"no file matches {origin}",
            hint="check the pattern, and quote it so that the shell does not expand it",
        )
    raise _missing(origin)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file; the directory usually knows without access to the file."""
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _is_data(path: str, *, file: bool) -> bool:
    # Drops directories, but keeps broken links: `look_at_path` reports them.
    return file or not os.path.exists(path)


def _missing(path: str) -> UserError:
    """The error that explains why a path does not exist."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            return UserError(
                f"{path}: {error.strerror}", hint="name a file, a directory of files, or a glob"
            )
    except ValueError:
        pass  # no file has a name with a zero byte
    if os.path.islink(path):
        return UserError(
            f"{path} is a link to {os.readlink(path)}, which does not exist",
            hint="repair or remove the link",
        )
    parent = os.path.dirname(path)
    if not parent:
        hint = f"the current directory is {os.getcwd()}"
    elif os.path.isdir(parent):
        hint = f"the directory {parent} exists: check the file's name"
    else:
        hint = f"the directory {parent} does not exist either"
    return UserError(f"{path or 'a file without a name'} does not exist", hint=hint)
