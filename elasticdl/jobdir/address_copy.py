"""The copy of a job's directory at an address: its small files, and `index.json`, which names them.

The index comes last, and readers trust no listing: what it does not name is not there. Each object
is a whole file at some moment. Files that several processes of this machine use, such as the
master's address with its token, stay here. Checkpoints have copies of their own.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final

from elasticdl.errors import Corrupted, ElasticDLError, TransientError
from elasticdl.formatting import amount
from elasticdl.jobdir.address_owner import INDEX, AddressLost, require_ours
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.small_object import read_object, write_object
from elasticdl.jobdir.working_directory import CopyState, WorkingDirectory
from elasticdl.private_file import make_private
from elasticdl.storage.address import below
from elasticdl.storage.attempts import RUNNING, STARTING, Absent, Limits
from elasticdl.storage.store import store_of

FORMAT = 1
BYTES_PER_S = 1 << 20
"""A file that grows is copied as a whole each time; this bounds the average of bytes a second."""
_AT_ONCE = 8
_READS = 3


class Index(NamedTuple):
    """The files of a copy, with their sizes in bytes when they were looked at.

    `writer` is the id of the working directory that wrote it. `id` is that of this index alone.
    `wall_s` is the writer's clock, for people only.
    """

    writer: str
    id: str
    wall_s: float
    files: Mapping[str, int]


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
            f"{place} has format {value.get('format')!r}, expected {FORMAT}",
            hint="use the version of ElasticDL that ran the job",
        )
    try:
        files = {_safe(name): int(size_bytes) for name, size_bytes in value["files"].items()}
        return Index(str(value["writer"]), str(value["id"]), float(value["wall_s"]), files)
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
            if not left or newer is None or newer.id == index.id:
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
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Copy no further file, and write no index. Those on their way end. Thread-safe."""
        self._stopped.set()

    def copy(self, *, last: bool = False) -> None:
        """Copy what has changed and is due, or with `last` all that has changed.

        The last time it waits longer for the store. A file that cannot be copied does not stop the
        others. Raises AddressLost, UserError, TransientError, Corrupted, OSError of the directory.
        """
        state, there = self._state, dict(_files(self._working.job.path))
        changed = [name for name in there if state.files.get(name) != there[name]]
        if not last:
            changed = [name for name in changed if self._is_due(name, there[name][0])]
        removed = state.files.keys() - there.keys()
        if not (changed or removed) and state.writer == state.id:
            return
        address, limits = self._working.address, RUNNING if last else STARTING
        self._require_ours(limits)
        copied = {name: facts for name, facts in state.files.items() if name in there}
        problems: dict[str, Exception] = {}

        def upload(name: str) -> None:
            # Once a file has waited for the store without success, the others wait for the next
            # copy.
            away = any(isinstance(problem, TransientError) for problem in list(problems.values()))
            if away or self._stopped.is_set():
                return
            # Before each file: a machine that was suspended may have lost the address meanwhile.
            require_ours(address, state.owner, limits)
            try:
                if self._upload(name, limits):
                    # As it was before it was read: later changes are copied the next time.
                    copied[name] = there[name]
            except (ElasticDLError, OSError, ValueError) as error:  # ArrowInvalid is a ValueError
                problems[name] = error

        _in_threads(upload, changed)
        if self._stopped.is_set():
            return
        if copied != state.files or not problems:
            self._write_index(copied, limits)
            for name in removed:
                store_of(address).remove(below(address, name), STARTING)
        if problems:
            raise _not_copied(problems)

    def _require_ours(self, limits: Limits) -> None:
        """Raise AddressLost if another command holds the address, or wrote the newest index."""
        address, state = self._working.address, self._state
        require_ours(address, state.owner, limits)
        if not continues(state, read_index(address, limits)):
            raise AddressLost(
                f"nothing more is copied to {address}: its {INDEX} belongs to another job's command"
            )

    def _write_index(self, copied: Mapping[str, tuple[int, int]], limits: Limits) -> None:
        self._require_ours(limits)
        # A new id each time: this process may be killed before it notes that it wrote one.
        state = replace(self._state, index=secrets.token_hex(8), files=copied)
        state = replace(state, writer=state.id)
        write_object(below(self._working.address, INDEX), _index_of(state), limits)
        self._state = state
        self._working.keep(state)

    def _upload(self, name: str, limits: Limits) -> bool:
        """Copy one file; return whether it was still there."""
        address, path = self._working.address, self._working.job.path / name
        try:
            store_of(address, limits).upload(path, below(address, name), limits)
        except FileNotFoundError:
            return False
        self._copied_s[name] = self._now_s()
        return True

    def _is_due(self, name: str, size_bytes: int) -> bool:
        since_s = self._now_s() - self._copied_s.get(name, -1e9)
        return since_s >= size_bytes / BYTES_PER_S


def continues(state: CopyState, index: Index | None) -> bool:
    """Whether the files of this machine are at least as new as the copy at the address.

    They are if they were copied there last, or come from there.
    """
    if index is None or index.writer == state.id:
        return True
    return index.id == state.index


def facts_of(folder: Path) -> Mapping[str, tuple[int, int]]:
    """Return size in bytes and modification time in nanoseconds of each file to copy, by name."""
    return dict(_files(folder))


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    stays = JobDirectory(Path())
    files = {stays.master, stays.supervisor, stays.dashboard, stays.kubernetes}
    folders = {stays.checkpoints, stays.initial, stays.tensorboard}
    for parent, inner, names in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        inner[:] = [name for name in inner if inside / name not in folders and name[0] != "."]
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
        "id": state.index,
        "wall_s": round(time.time(), 3),
        "files": {name: size_bytes for name, (size_bytes, _) in sorted(state.files.items())},
    }


def _not_copied(problems: Mapping[str, Exception]) -> TransientError:
    name, error = min(problems.items(), key=lambda item: item[0])
    more = f", and {amount(len(problems) - 1, 'file')} more" if len(problems) > 1 else ""
    return TransientError(f"{name}: {error}{more}")


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
