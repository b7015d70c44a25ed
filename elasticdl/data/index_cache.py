"""A bounded cache of record indexes: files by name, shared by all jobs of a user.

From time to time, a writer removes indexes that were unused for a month, and the least recently
used beyond a thousand. Several processes may do so concurrently: files are replaced or removed as a
whole, and a missing index is built again.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

COPY = ".copy"
"""The end of the names of decompressed copies; see `compressed_files`."""
FILES_MAX = 1000
BYTES_MAX = 1 << 30
UNUSED_S = 30 * 86400.0
_TOUCH_EVERY_S = 86400.0
"""Interval between updates of a file's time, which is that of its last use, within a day."""
_HALF_MADE_S = 3600.0
_TIDY_EVERY = 64
"""Writes between two scans of all files: scanning at each write would be quadratic."""
_keeps = itertools.count()

_log = logging.getLogger(__name__)


def directory() -> Path:
    """`indexes` below ELASTICDL_CACHE_DIR, else below the user's cache directory."""
    return root() / "indexes"


def path_of(name: str) -> Path:
    """The file of an index."""
    return directory() / f"{name}.index"


def read(name: str) -> bytes | None:
    """The bytes under a name; None if there are none. Raises OSError."""
    path = path_of(name)
    try:
        data = path.read_bytes()
        touch(path)
    except FileNotFoundError:
        return None
    except PermissionError:
        return path.read_bytes()  # another user's file, whose owner updates its time
    return data


def touch(path: Path) -> None:
    """Set a file's time to now, within a day. Raises OSError."""
    if time.time() - path.stat().st_mtime > _TOUCH_EVERY_S:
        os.utime(path)


def keep(name: str, data: bytes) -> None:
    """Write bytes under a name; a cache that cannot be written only causes a warning."""
    path = path_of(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, since a rename cannot cross file systems.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            # Atomic: a concurrent reader gets the old index or the new one, never a part.
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        if next(_keeps) % _TIDY_EVERY == 0:
            tidy(spared=path)
    except OSError as error:
        _log.warning("cannot cache the index of the data in %s: %s", path.parent, error)


def tidy(*, spared: Path | None = None) -> None:
    """Remove what is too old, too much, or of an earlier version, but never `spared`.

    Raises OSError.
    """
    prune(directory(), spared=spared)
    _remove_those_of_before()


def prune(
    folder: Path,
    *,
    spared: Path | None = None,
    files_max: int = FILES_MAX,
    bytes_max: int = BYTES_MAX,
) -> None:
    """Remove files that are too old, and the least recently used beyond the limits; never `spared`.

    Raises OSError.
    """
    now_s, files, size = time.time(), 0, 0
    # Most recently used first, so the limits remove the oldest.
    for used_s, bytes_, path in sorted(_times(folder), reverse=True):
        if path.suffix == ".tmp":
            # Another process is about to rename it, or died before that.
            surplus = now_s - used_s > _HALF_MADE_S
        else:
            files, size = files + 1, size + bytes_
            surplus = now_s - used_s > UNUSED_S or files > files_max or size > bytes_max
        if surplus and path != spared:
            path.unlink(missing_ok=True)


def _times(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, path) of the cache's files, except those removed concurrently."""
    times = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".index", COPY, ".tmp")):
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    times.append((facts.st_mtime, facts.st_size, Path(entry.path)))
    return times


def root() -> Path:
    """ELASTICDL_CACHE_DIR, else the user's cache directory."""
    if chosen := os.environ.get("ELASTICDL_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"


def _remove_those_of_before() -> None:
    """Remove indexes of earlier versions, which were kept beside the folder without a limit."""
    for path in root().glob("*.index"):
        path.unlink(missing_ok=True)
