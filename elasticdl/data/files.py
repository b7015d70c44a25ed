"""Data files as they lie on disk: which ones an origin names, whether they changed, and bytes of
them.

Files are read with `pread`, never mapped: a file that shrinks under a mapping kills the process
with SIGBUS, while a
short read becomes an error that names file and offset.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate

from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import DIGEST_MARK, Source

DIGESTED_BYTES = 256 << 20
"""Of so many bytes of a job's data, in order, digests are taken when records are counted: a second
or less. Of the rest, times tell.
"""
_PART_BYTES = 4 << 20
_NEW_FILE = "write new data to a new file and start a new job with it"


class DataChanged(UserError):
    """Data is not what the job began with: no worker would fare better with it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file as it was when it was first looked at."""

    path: str
    size_bytes: int
    mtime_ns: int

    @property
    def fingerprint(self) -> str:
        """What costs nothing to know: tells that the file was written, not whether other bytes
        were.
        """
        return f"{self.size_bytes}:{self.mtime_ns}"

    def digest(self) -> str:
        """Of all its bytes. Raises DataChanged, UserError as `read`."""
        state = blake2b(digest_size=16)
        descriptor = self.open()
        try:
            for begin in range(0, self.size_bytes, _PART_BYTES):
                state.update(
                    self.read(descriptor, begin, min(begin + _PART_BYTES, self.size_bytes))
                )
        finally:
            os.close(descriptor)
        return f"{DIGEST_MARK}{state.hexdigest()}"

    def full_fingerprint(self) -> str:
        """With the digest. Raises DataChanged, UserError as `read`."""
        return f"{self.fingerprint}:{self.digest()}"

    def open(self) -> int:
        """A descriptor for `read`, which the caller closes. Raises UserError."""
        try:
            return os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"{self.path}: cannot open: {error.strerror}") from error

    def check_unchanged(self) -> None:
        """Raise DataChanged if the file is another one by now."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise DataChanged(
                f"{self.path} disappeared during the job: {error.strerror}",
                hint="put it back and resume",
            ) from error
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataChanged(
                f"{self.path} changed during the job: it had {amount(self.size_bytes, 'byte')}, now"
                f" {now.st_size}" + ("" if now.st_size != self.size_bytes else " of a later time"),
                hint=_NEW_FILE,
            )

    def read(self, descriptor: int, begin: int, end: int) -> bytes:
        """Bytes [begin, end).

        Raises DataChanged if the file ends before `end`, UserError if it cannot be read.
        """
        parts: list[bytes] = []
        offset = begin
        while offset < end:
            try:
                part = os.pread(descriptor, end - offset, offset)
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot read at offset {offset}: {error.strerror}"
                ) from error
            if not part:
                raise DataChanged(
                    f"{self.path} was truncated during the job: it ends at offset {offset},"
                    f" expected {self.size_bytes} bytes",
                    hint=_NEW_FILE,
                )
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def with_digest(files: Sequence[DataFile]) -> list[bool]:
    """Which of the files get a digest of their bytes: those within the first DIGESTED_BYTES of
    all.
    """
    return [end <= DIGESTED_BYTES for end in accumulate(file.size_bytes for file in files)]


def fingerprints(files: Sequence[DataFile]) -> list[str]:
    """Of each file, in order. Raises DataChanged, UserError."""
    digested = zip(files, with_digest(files), strict=True)
    return [file.full_fingerprint() if whole else file.fingerprint for file, whole in digested]


def check_as_counted(files: Sequence[DataFile], counted: Source) -> None:
    """Raise DataChanged if files are not those whose records were counted before the job: its
    shards mean other records now.

    `counted.fingerprint` is that of all files, in order, joined by `+`; '' is not compared. A file
    of another time has the bytes that
    were counted if it has their digest: volumes made of a ConfigMap, and copies, have times of
    their own.
    """
    if not counted.fingerprint:
        return
    then = counted.fingerprint.split("+")
    if len(then) != len(files):
        raise DataChanged(
            f"{counted.name} has {amount(len(files), 'file')}, but {len(then)} when its records"
            " were counted",
            hint=_NEW_FILE,
        )
    for file, old in zip(files, then, strict=True):
        _check_one(file, old)


def _check_one(file: DataFile, old: str) -> None:
    size, _, rest = old.partition(":")
    mtime_ns, _, digest = rest.partition(":")
    if f"{size}:{mtime_ns}" == file.fingerprint:
        return
    hint = _NEW_FILE
    if size != str(file.size_bytes):
        what = f"it had {size} bytes, now {file.size_bytes}"
    elif digest:
        if file.digest() == digest:
            return
        what = f"it has {size} bytes as before, but other ones, written at {_time(file.mtime_ns)}"
    else:
        what = (
            f"it has {size} bytes as before, but was written at {_time(file.mtime_ns)}, not at"
            f" {_time(int(mtime_ns))}"
        )
        hint = (
            f"{_NEW_FILE}; where machines have copies of their own, keep the times when copying (cp"
            " -p, rsync -t)"
        )
    raise DataChanged(f"{file.path} changed since its records were counted: {what}", hint=hint)


def _time(mtime_ns: int) -> str:
    """To the nanosecond where it matters, in UTC."""
    seconds, rest = divmod(mtime_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


def refuse_compressed(path: str, beginning: bytes) -> None:
    """Raise UserError if a file begins like one that is compressed as a whole."""
    for magic, name, tool in (
        (b"\x1f\x8b", "gzip", "gunzip"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"(\xb5/\xfd", "zstd", "unzstd"),
    ):
        if beginning.startswith(magic):
            raise UserError(
                f"{path} is compressed with {name}, so no part of it can be read alone",
                hint=f"{tool} it first",
            )


def look_at(path: str) -> DataFile:
    """The file at `path`. Raises UserError if it is missing, not a readable file, or empty."""
    try:
        facts = os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            raise _missing(path) from error
        raise UserError(
            f"{path}: {error.strerror}", hint="the path must be visible to every worker"
        ) from error
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read by this user", hint=f"chmod +r {path}")
    if facts.st_size == 0:
        raise UserError(f"{path} is empty", hint="remove it, or write records into it")
    return DataFile(path, facts.st_size, facts.st_mtime_ns)


def expand(origin: str) -> tuple[str, ...]:
    """The files that a path, a directory or a glob names, sorted.

    Raises UserError if there are none.

    In a directory, names that begin with `.` or `_` (markers of writers such as Spark) are left
    out, and so are
    subdirectories. A link that leads nowhere is not: its records would be missing without a word.
    """
    if os.path.isdir(origin):
        try:
            with os.scandir(origin) as entries:
                listed = [
                    (one.name, _is_file(one))
                    for one in entries
                    if not one.name.startswith((".", "_"))
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
            f"no file matches {origin}", hint="quote the pattern so that the shell leaves it alone"
        )
    raise _missing(origin)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Of most entries that is known without a look at the file."""
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _is_data(path: str, *, file: bool) -> bool:
    return file or not os.path.exists(path)


def _missing(path: str) -> UserError:
    """Why there is nothing at a path."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            return UserError(
                f"{path}: {error.strerror}", hint="name a file, a directory of files, or a glob"
            )
    except ValueError:
        pass  # a name with a zero byte: no file has such
    if os.path.islink(path):
        return UserError(
            f"{path} is a link to {os.readlink(path)}, which does not exist",
            hint="mend the link, or remove it",
        )
    parent = os.path.dirname(path)
    if not parent:
        hint = f"it was looked for in {os.getcwd()}"
    elif os.path.isdir(parent):
        hint = f"the directory {parent} is there: is the name right?"
    else:
        hint = f"the directory {parent} does not exist either"
    return UserError(f"{path or 'a file without a name'} does not exist", hint=hint)
