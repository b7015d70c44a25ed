"""Data files on disk: which files an origin names, whether they changed, and their bytes.

Files are read with `pread`, never mapped. A file that shrinks under a mapping kills the process
with SIGBUS, while a short read becomes an error with file and offset.
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
from elasticdl.flag import is_address
from elasticdl.formatting import amount
from elasticdl.shard import DIGEST_MARK, Source

DIGESTED_BYTES = 256 << 20
"""How much of a job's data, in order, gets digests when it is counted, in about a second.

For the rest, modification times must do.
"""
_PART_BYTES = 4 << 20
_NEW_FILE = "write new data to a new file, and start a new job with it"


class DataChanged(UserError):
    """The data changed during the job; another worker would fail, too."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as it was when the process first inspected it."""

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
        """The fingerprint with the digest. Raises DataChanged or UserError as `read` does."""
        return f"{self.fingerprint}:{self.digest()}"

    def open(self) -> int:
        """A descriptor for `read`, to be closed by the caller. Raises UserError."""
        try:
            return os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"{self.path}: cannot open: {error.strerror}") from error

    def check_unchanged(self) -> None:
        """Raise DataChanged if the file has changed or gone."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise DataChanged(
                f"{self.path} disappeared during the job: {error.strerror}",
                hint="restore it and resume the job",
            ) from error
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataChanged(
                f"{self.path} changed during the job: it had {amount(self.size_bytes, 'byte')}, now"
                f" {now.st_size}"
                + ("" if now.st_size != self.size_bytes else " with another modification time"),
                hint=_NEW_FILE,
            )

    def read(self, descriptor: int, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end).

        Raises DataChanged if the file ends before `end`, and UserError if it is unreadable.
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
            # `pread` may return less than requested, but nothing only at the end of the file.
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
    # The cheap comparison first: the digest reads the whole file.
    if f"{size}:{mtime_ns}" == file.fingerprint:
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


def _time(mtime_ns: int) -> str:
    """UTC, to the nanosecond."""
    seconds, rest = divmod(mtime_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


def refuse_compressed(path: str, beginning: bytes) -> None:
    """Raise UserError if a file begins like a compressed file."""
    for magic, name, tool in (
        (b"\x1f\x8b", "gzip", "gunzip"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"(\xb5/\xfd", "zstd", "unzstd"),
    ):
        if beginning.startswith(magic):
            raise UserError(
                f"{path} is compressed with {name}, so workers cannot read parts of it",
                hint=f"decompress it with {tool}",
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
    # A pipe cannot be read twice, and opening one blocks.
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: permission denied", hint=f"chmod +r {path}")
    if facts.st_size == 0:
        raise UserError(f"{path} is empty", hint="remove it, or write records into it")
    return DataFile(path, facts.st_size, facts.st_mtime_ns)


def expand(origin: str) -> tuple[str, ...]:
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
    # Drops directories, but keeps broken links: `look_at` reports them.
    return file or not os.path.exists(path)


def _missing(path: str) -> UserError:
    """The error that explains why a path does not exist."""
    if is_address(path):
        return UserError(
            f"{path} is an address, but only paths are read",
            hint="mount the storage and name its path, or read it with custom_data_reader",
        )
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
