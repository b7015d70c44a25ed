"""The cache of record indexes: files of bytes by name, shared by all jobs of a user, and bounded.

Whoever adds files removes now and then what was not used for a month, and the longest unused beyond
a thousand. Any number of processes
may do that at once: a file is replaced or removed as a whole, and one that is missing is made again
by whoever needs it.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

FILES_MAX = 1000
BYTES_MAX = 1 << 30
UNUSED_S = 30 * 86400.0
_TOUCH_EVERY_S = 86400.0
"""Use is noted so often: a file's time is when it was last used, within a day."""
_HALF_MADE_S = 3600.0
_TIDY_EVERY = 64
"""A look at all files for each one that is kept would make the index of a folder cost its
square.
"""
_keeps = itertools.count()

_log = logging.getLogger(__name__)


def directory() -> Path:
    """Where they are: `indexes` below ELASTICDL_CACHE_DIR, else below the user's cache
    directory.
    """
    return _root() / "indexes"


def path_of(name: str) -> Path:
    """The file of a name."""
    return directory() / f"{name}.index"


def read(name: str) -> bytes | None:
    """What was kept under a name; None if there is nothing. Raises OSError."""
    path = path_of(name)
    try:
        found = path.read_bytes()
        if time.time() - path.stat().st_mtime > _TOUCH_EVERY_S:
            os.utime(path)
    except FileNotFoundError:
        return None
    except PermissionError:
        return path.read_bytes()  # somebody else's, who keeps its time
    return found


def keep(name: str, data: bytes) -> None:
    """Keep bytes under a name. A cache that cannot be written is told of, and nothing more."""
    path = path_of(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        if next(_keeps) % _TIDY_EVERY == 0:
            tidy(spared=path)
    except OSError as error:
        _log.warning("the index of the data cannot be kept in %s: %s", path.parent, error)


def tidy(*, spared: Path | None = None) -> None:
    """Remove what is too old, too much, or of an earlier version; never `spared`.

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
    """Remove what was not used for long, and the longest unused of what is too much; never
    `spared`. Raises OSError.
    """
    now_s, files, size = time.time(), 0, 0
    for used_s, bytes_, path in sorted(_times(folder), reverse=True):
        if path.suffix == ".tmp":
            # Somebody is about to give it its name, or died before that.
            surplus = now_s - used_s > _HALF_MADE_S
        else:
            files, size = files + 1, size + bytes_
            surplus = now_s - used_s > UNUSED_S or files > files_max or size > bytes_max
        if surplus and path != spared:
            path.unlink(missing_ok=True)


def _times(folder: Path) -> list[tuple[float, int, Path]]:
    """(last use, bytes, file) of what is ours; files that another process removes meanwhile are
    left out.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".index", ".tmp")):
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime, facts.st_size, Path(entry.path)))
    return found


def _root() -> Path:
    if chosen := os.environ.get("ELASTICDL_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elasticdl"


def _remove_those_of_before() -> None:
    """Earlier versions kept them beside the folder, and for ever."""
    for path in _root().glob("*.index"):
        path.unlink(missing_ok=True)
