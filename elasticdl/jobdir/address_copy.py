"""The copy of a job's directory at an address: its small files, and `index.json`, which names them.

The index comes last, and readers trust no listing: what it does not name is not there. Each object
is a whole file at some moment. Files that several processes of this machine use, such as the
master's address with its token, stay here. Checkpoints have copies of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final

from elasticdl.errors import Corrupted
from elasticdl.jobdir.address_owner import require_ours
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.small_object import read_object, write_object
from elasticdl.jobdir.working_directory import CopyState, WorkingDirectory
from elasticdl.private_file import make_private
from elasticdl.storage.address import below
from elasticdl.storage.attempts import RUNNING, STARTING, Absent, Limits
from elasticdl.storage.store import store_of

INDEX = "index.json"
FORMAT = 1
BYTES_PER_S = 1 << 20
"""A file that grows is copied as a whole each time; this bounds the average of bytes a second."""
_AT_ONCE = 8
_READS = 3


class Index(NamedTuple):
    """The files of a copy, with their sizes in bytes when they were looked at.

    `writer` is the id of the working directory that wrote it. `sequence` counts all indexes of the
    job. `wall_s` is the writer's clock, for people only.
    """

    writer: str
    sequence: int
    wall_s: float
    files: Mapping[str, int]

    @property
    def key(self) -> tuple[str, int]:
        """What no other index of the job has."""
        return self.writer, self.sequence


def read_index(address: str, limits: Limits = STARTING) -> Index | None:
    """Return the index of the copy at an address; None if there is no copy.

    Raises Corrupted, UserError, TransientError.
    """
    place = below(address, INDEX)
    value = read_object(place, limits)
    if value is None:
        return None
    if value.get("format") != FORMAT:
        raise Corrupted(
            f"{place} is of format {value.get('format')!r}, expected {FORMAT}",
            hint="use the version of ElasticDL that ran the job",
        )
    try:
        files = {_safe(name): int(size_bytes) for name, size_bytes in value["files"].items()}
        return Index(str(value["writer"]), int(value["sequence"]), float(value["wall_s"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupted(f"{place} is damaged: {error!r}") from error


def fetch(address: str, index: Index, folder: Path, wanted: Callable[[str], bool] = bool) -> Index:
    """Write the `wanted` files of a copy into a folder; return the index that was followed.

    Raises Corrupted if a file is missing, OSError of the folder, UserError, TransientError.
    """
    done: set[str] = set()
    for left in reversed(range(_READS)):
        try:
            names = [name for name in index.files if name not in done and wanted(name)]
            _fetch(address, names, folder, done.add)
            return index
        except Absent as error:
            # Its owner may have removed the file since, and written another index.
            newer = read_index(address)
            if not left or newer is None or newer.key == index.key:
                raise Corrupted(f"{error.message}, but {INDEX} names it") from error
            index = newer
    raise AssertionError("the last try raises")


def _fetch(address: str, names: Iterable[str], folder: Path, done: Callable[[str], None]) -> None:
    def download(name: str) -> None:
        target = folder / name
        make_private(target.parent)
        target.unlink(missing_ok=True)  # cut off by an error before
        store_of(address).download(below(address, name), target)
        done(name)

    _in_threads(download, names)


@final
class AddressCopy:
    """Copies the changed files of a working directory. Use it from one thread at a time.

    Only one process has one at a time: a job's master, and its command once that has ended.
    """

    def __init__(
        self, working: WorkingDirectory, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._working, self._now_s = working, now_s
        self._state = working.state()
        self._copied_s: dict[str, float] = {}

    def copy(self, *, last: bool = False) -> None:
        """Copy what has changed and is due, or with `last` all that has changed.

        The last time it waits longer for the store. Raises AddressLost, UserError, TransientError,
        Corrupted, OSError of the directory.
        """
        state, there = self._state, dict(_files(self._working.job.path))
        changed = [name for name in there if state.files.get(name) != there[name]]
        if not last:
            changed = [name for name in changed if self._is_due(name, there[name][0])]
        removed = state.files.keys() - there.keys()
        if not (changed or removed) and state.writer == state.id:
            return
        address, limits = self._working.address, RUNNING if last else STARTING
        require_ours(address, state.owner, limits)
        copied = {name: facts for name, facts in state.files.items() if name in there}
        _in_threads(lambda name: self._upload(name, there[name], copied, limits), changed)
        state = replace(state, writer=state.id, sequence=state.sequence + 1, files=copied)
        write_object(below(address, INDEX), _index_of(state), limits)
        self._state = state
        self._working.keep(state)
        for name in removed:
            store_of(address).remove(below(address, name), STARTING)

    def _upload(
        self,
        name: str,
        facts: tuple[int, int],
        copied: dict[str, tuple[int, int]],
        limits: Limits,
    ) -> None:
        address, path = self._working.address, self._working.job.path / name
        # Looked at before it was read: what is written meanwhile is copied the next time.
        with suppress(FileNotFoundError):
            store_of(address, limits).upload(path, below(address, name), limits)
            copied[name] = facts
            self._copied_s[name] = self._now_s()

    def _is_due(self, name: str, size_bytes: int) -> bool:
        since_s = self._now_s() - self._copied_s.get(name, -1e9)
        return since_s >= size_bytes / BYTES_PER_S


def continues(state: CopyState, index: Index | None) -> bool:
    """Whether the files of this machine are at least as new as the copy at the address.

    They are if they were copied there last, or come from there.
    """
    if index is None or index.writer == state.id:
        return True
    return index.key == (state.writer, state.sequence)


def facts_of(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Return size in bytes and modification time in nanoseconds of each file to copy, by name."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    stays = JobDirectory(Path())
    files = {stays.master, stays.supervisor, stays.dashboard, stays.kubernetes}
    folders = {stays.checkpoints, stays.initial, stays.tensorboard}
    for parent, inner, names in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        inner[:] = [one for one in inner if inside / one not in folders and one[0] != "."]
        for name in names:
            path = Path(parent, name)
            if name.startswith(".") or inside / name in files or path.is_symlink():
                continue
            with suppress(FileNotFoundError):
                facts = path.stat()
                if path.is_file():
                    yield (inside / name).as_posix(), (facts.st_size, facts.st_mtime_ns)


def _index_of(state: CopyState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "writer": state.writer,
        "sequence": state.sequence,
        "wall_s": round(time.time(), 3),
        "files": {name: size_bytes for name, (size_bytes, _) in sorted(state.files.items())},
    }


def _safe(name: object) -> str:
    """Return a name that stays below the folder it is joined to. Raises ValueError."""
    parts = PurePosixPath(str(name)).parts
    if not isinstance(name, str) or not parts or name.startswith("/") or ".." in parts:
        raise ValueError(f"{name!r} is no name of a file")
    return name


def _in_threads(call: Callable[[str], None], names: Iterable[str]) -> None:
    """Call for each name, several at once: most of the time is the store's latency."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for _ in pool.map(call, names):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
