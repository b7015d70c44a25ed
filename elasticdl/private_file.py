"""Files of a job that only its owner reads, and how a file is replaced and kept safely.

Others may be able to write to a job's directory. So no name of a temporary file can be guessed, no
link is followed, and no existing file is taken over.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a new file is the owner's only, and a link is an error."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def make_private(directory: Path) -> None:
    """Create a directory that only its owner enters, and its parents; one that exists stays.

    Raises OSError.
    """
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)


def sync_entry(path: Path) -> None:
    """Have the disk keep a file's content, or the names in a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """A hidden name beside a path, which nobody can guess. Nothing is created."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[FileIO]:
    """Open a new file that atomically replaces `path` when the block ends without an error.

    Readers see the old or the new content. `durable` syncs it first: without that, a crash of the
    machine may leave an empty file. Raises OSError.
    """
    temporary = temporary_name(path)
    file = open(temporary, "xb", buffering=0, opener=private)  # noqa: SIM115 - closed below
    try:
        try:
            yield file
            if durable:
                os.fsync(file.fileno())
        finally:
            file.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file, as `replacing`. Raises OSError."""
    with replacing(path, durable=durable) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
