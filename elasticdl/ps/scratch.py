"""Room on a server's own disk for files on their way to an object store, or from there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticdl.errors import TransientError
from elasticdl.private_file import make_private


@contextmanager
def temporary(parent: Path) -> Iterator[Path]:
    """A directory below `parent` that is there until the block ends.

    Raises TransientError if the disk cannot have it.
    """
    try:
        make_private(parent)
        directory = tempfile.TemporaryDirectory(dir=parent)
    except OSError as error:
        raise TransientError(f"cannot use {parent}: {error.strerror or error}") from error
    with directory as folder:
        yield Path(folder)
