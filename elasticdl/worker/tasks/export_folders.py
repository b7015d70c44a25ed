"""Numbered folders of exports, as TensorFlow Serving polls them: `OUTPUT/1`, `OUTPUT/2`, ….

A number names one content for ever. On a disk a folder has its name only when it is complete: it is
made under a hidden name, which TensorFlow Serving ignores, and renamed. In an object store, which
has no renames, it is complete when it has `saved_model.pb`, which comes last.

Each folder contains an empty file that names the run of the job that made it. So of two jobs with
one place, each number belongs to one, and neither touches what the other has not finished.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeAlias, final

from elasticdl.addresses import is_address
from elasticdl.errors import ElasticDLError, PermanentError, UserError
from elasticdl.jobdir.output_folder import RUN_PREFIX, export_number
from elasticdl.private_file import FILE_MODE, sync_entry, temporary_name
from elasticdl.storage import folders
from elasticdl.storage.address import below
from elasticdl.storage.store import store_of

_log = logging.getLogger(__name__)

_MOST_NUMBERS = 8
_ABANDONED_S = 86_400.0
"""An exporter has given up what it has not written to for so long."""
_TIE_S = 2.0
"""Time for the other one of two runs that claim a number at the same time to leave it."""
_LOCK = "lock"
"""The name of the file in a hidden folder that its exporter has locked."""

SAVED_MODEL = "saved_model.pb"
Write: TypeAlias = Callable[[Path], None]
"""Writes an export to a directory that does not exist yet."""


class NumberTaken(PermanentError):
    """A folder belongs to another job."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} belongs to another job; of jobs that run at the same time, each needs an"
            " --output of its own"
        )


class ExportFolders(Protocol):
    """The numbered folders below one place, for one run of a job."""

    def publish(self, number: int, write: Write) -> str:
        """Make folder `number` complete and return its place; one that is complete stays.

        Raises NumberTaken if it is another run's; OSError, PermanentError, TransientError, and what
        `write` raises.
        """

    def publish_last(self, number: int, write: Write) -> tuple[int, str]:
        """Publish the last export of a job, at a higher number if another job has this one.

        Returns the number and the place. The export is written once. Raises as `publish`.
        """

    def prune(self, number: int) -> None:
        """Remove what is older than folder `number`, except the newest that are complete.

        Raises OSError and ElasticDLError.
        """


class _Folders(ABC):
    """See `ExportFolders`."""

    def publish(self, number: int, write: Write) -> str:
        return self._publish(number, write, tries=1)[1]

    def publish_last(self, number: int, write: Write) -> tuple[int, str]:
        return self._publish(number, write, tries=_MOST_NUMBERS)

    def _publish(self, number: int, write: Write, tries: int) -> tuple[int, str]:
        folder: Path | None = None
        with ExitStack() as until_published:
            while True:
                try:
                    if not self._is_ours(number):
                        if folder is None:
                            folder = until_published.enter_context(self._made(number, write))
                        self._put(folder, number)
                    return number, self._place_of(number)
                except NumberTaken:
                    tries -= 1
                    if not tries:
                        raise
                number = self._number_after(number)

    @abstractmethod
    def _is_ours(self, number: int) -> bool:
        """Whether a folder is complete and of this run.

        Raises NumberTaken if it is another run's, and as `publish`.
        """

    @abstractmethod
    def _made(self, number: int, write: Write) -> AbstractContextManager[Path]:
        """A temporary directory with the export, which is for folder `number` if that is free."""

    @abstractmethod
    def _put(self, folder: Path, number: int) -> None:
        """Make folder `number` of the export. Raises as `_is_ours`; `folder` is then unchanged."""

    @abstractmethod
    def _place_of(self, number: int) -> str: ...

    @abstractmethod
    def _number_after(self, number: int) -> int:
        """The first folder above `number` that is complete and of this run, else a new number.

        Raises OSError and ElasticDLError.
        """


def export_folders(place: str, keep: int, run: str) -> ExportFolders:
    """The folders below a directory or an address; `keep` of them stay, with 0 all."""
    if is_address(place):
        return _StoredFolders(place, keep, RUN_PREFIX + run)
    return _LocalFolders(Path(place), keep, RUN_PREFIX + run)


def prune_quietly(exports: ExportFolders, number: int) -> None:
    """Remove old folders; a problem is logged, since the new export is complete."""
    try:
        exports.prune(number)
    except (OSError, ElasticDLError) as error:
        _log.warning("old exports are not removed: %s", error)


def surplus(complete: Mapping[int, bool], number: int, keep: int) -> list[int]:
    """Which folders to remove, the oldest first; `complete` says of each whether it is whole."""
    whole = sorted(other for other, is_whole in complete.items() if is_whole)
    kept = set(whole[-keep:] if keep else whole)
    return sorted(other for other in complete if other < number and other not in kept)


def _later(number: int, exports: Mapping[int, bool]) -> int:
    """See `_Folders._number_after`; `exports` says of each folder whether it is whole and ours."""
    own = (other for other, is_own in exports.items() if is_own and other > number)
    return min(own, default=max(number, *exports, 0) + 1)


@final
class _LocalFolders(_Folders):
    def __init__(self, place: Path, keep: int, owner: str) -> None:
        """`owner` is the name of the file that names the run."""
        self._place = place
        self._keep = keep
        self._owner = owner

    def _is_ours(self, number: int) -> bool:
        # The name appears with the whole folder, so there is nothing to claim before.
        target = self._place / str(number)
        if not target.exists():
            return False
        if not (target / self._owner).exists():
            raise NumberTaken(str(target))
        return True

    @contextmanager
    def _made(self, number: int, write: Write) -> Iterator[Path]:
        self._place.mkdir(parents=True, exist_ok=True)
        with _hidden_folder(self._place / str(number)) as hidden:
            folder = hidden / "export"
            write(folder)
            (folder / self._owner).touch()
            # Before the name appears: after a crash of the machine it must not name empty files.
            _sync(folder)
            yield folder

    def _put(self, folder: Path, number: int) -> None:
        target = self._place / str(number)
        for _ in range(_MOST_NUMBERS):
            try:
                folder.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # An earlier attempt at the same view, or another job, was faster.
                if not self._is_ours(number):
                    continue  # it has been removed since
            sync_entry(self._place)
            return
        raise OSError(errno.EBUSY, "other jobs write and remove this folder", str(target))

    def _place_of(self, number: int) -> str:
        return str(self._place / str(number))

    def _number_after(self, number: int) -> int:
        return _later(
            number,
            {
                other: (self._place / str(other) / self._owner).exists()
                for other in self._existing()
            },
        )

    def _existing(self) -> list[int]:
        return [
            existing
            for name in os.listdir(self._place)
            if (existing := export_number(name)) is not None
        ]

    def prune(self, number: int) -> None:
        for other in surplus(dict.fromkeys(self._existing(), True), number, self._keep):
            with _logging_errors(self._place / str(other)):
                _remove(self._place / str(other), self._place / str(other))
        for name in os.listdir(self._place):
            first, _, rest = name.removeprefix(".").partition(".")
            of = export_number(first)
            if name.startswith(".") and rest and of is not None and of <= number:
                # Of an exporter that was killed.
                with _logging_errors(self._place / name):
                    _remove_unused(self._place / name, self._place / first)


@contextmanager
def _logging_errors(folder: Path) -> Iterator[None]:
    """Log what is wrong with one folder, so that the others are removed."""
    try:
        yield
    except FileNotFoundError:  # another job was faster
        pass
    except OSError as error:
        _log.warning("cannot remove %s: %s", folder, error.strerror or error)


def _remove(folder: Path, target: Path) -> None:
    """Remove a folder. Nobody sees half of it: it gets a new hidden name beside `target` first."""
    hidden = temporary_name(target)
    folder.rename(hidden)
    shutil.rmtree(hidden)


@contextmanager
def _hidden_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which no job takes for that of a killed exporter.

    It is removed at the end. Raises OSError.
    """
    hidden, lock = _locked_folder(target)
    try:
        yield hidden
    finally:
        # On NFS a file that is open cannot be removed.
        os.close(lock)
        shutil.rmtree(hidden, ignore_errors=True)


def _locked_folder(target: Path) -> tuple[Path, int]:
    for _ in range(_MOST_NUMBERS):
        hidden = temporary_name(target)
        hidden.mkdir()
        # Another job may remove it before it is locked.
        with suppress(FileNotFoundError):
            lock = _lock_file(hidden)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:  # a file system without locks: see _remove_unused
                pass
            if hidden.exists():
                return hidden, lock
            os.close(lock)
    raise OSError(errno.EBUSY, "another job removes each folder that this one makes", str(target))


def _lock_file(hidden: Path) -> int:
    """Open the lock of a hidden folder. Raises OSError.

    It is a regular file that is open for writing: of others, NFS keeps no lock that other machines
    respect.
    """
    return os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def _remove_unused(folder: Path, target: Path) -> None:
    """Remove a hidden folder unless an exporter, perhaps of another job, writes to it.

    Raises OSError.
    """
    lock = _lock_file(folder)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # a file system without locks: remove what is too old to be in use
            if time.time() - _newest_s(folder) < _ABANDONED_S:
                return
        # Under the lock: an exporter that opens the file now does not find the folder later.
        hidden = temporary_name(target)
        folder.rename(hidden)
    finally:
        os.close(lock)
    shutil.rmtree(hidden)


def _newest_s(folder: Path) -> float:
    """The newest time of a change in or below a folder, in unix seconds. Raises OSError."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


@final
class _StoredFolders(_Folders):
    def __init__(self, place: str, keep: int, owner: str) -> None:
        """`owner` is the name of the object that names the run."""
        self._place = place
        self._keep = keep
        self._owner = owner

    def _is_ours(self, number: int) -> bool:
        target = self._place_of(number)
        with _no_user_error():
            names = self._names(target)
            whole = SAVED_MODEL in names
            # Nothing claims the number before the export is written: for all that time TensorFlow
            # Serving would find a version without a model.
            if self._is_of_another(names) or (whole and self._owner not in names):
                raise NumberTaken(target)
            return whole

    @contextmanager
    def _made(self, number: int, write: Write) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as temporary:
            folder = Path(temporary) / "export"
            write(folder)
            (folder / self._owner).touch()
            yield folder

    def _put(self, folder: Path, number: int) -> None:
        target = self._place_of(number)
        with _no_user_error():
            self._claim(target)
            folders.replace(folder, target, last=SAVED_MODEL)

    def _place_of(self, number: int) -> str:
        return below(self._place, str(number))

    def _claim(self, target: str) -> None:
        """Make a number this run's. Raises NumberTaken.

        The kinds of stores share no exclusive creation. So each run writes its name first and looks
        then: of two at the same time, at least one sees the other and leaves. If both see each
        other, the smaller name looks again later, when the other one has left.
        """
        store, own = store_of(self._place), below(target, self._owner)
        store.write(own, b"")
        names = self._names(target)
        if self._is_of_another(names) and SAVED_MODEL not in names and self._is_first(names):
            time.sleep(_TIE_S)
            names = self._names(target)
        if self._is_of_another(names):
            store.remove(own)
            raise NumberTaken(target)

    def _is_first(self, names: Iterable[str]) -> bool:
        """Whether no other run with a smaller name has written it."""
        return self._owner == min(name for name in names if name.startswith(RUN_PREFIX))

    def _names(self, folder: str) -> set[str]:
        entries = store_of(self._place).listed(folder)
        return {entry.address.rpartition("/")[2] for entry in entries}

    def _number_after(self, number: int) -> int:
        whole_and_own = {SAVED_MODEL, self._owner}
        with _no_user_error():
            contents = {other: self._names(self._place_of(other)) for other in self._existing()}
        return _later(number, {other: names >= whole_and_own for other, names in contents.items()})

    def _existing(self) -> list[int]:
        numbers = (export_number(name) for name in self._names(self._place))
        return [number for number in numbers if number is not None]

    def prune(self, number: int) -> None:
        store = store_of(self._place)
        there = {other: self._names(self._place_of(other)) for other in self._existing()}
        whole = {other: SAVED_MODEL in names for other, names in there.items()}
        for other in surplus(whole, number, self._keep):
            folder = self._place_of(other)
            if not whole[other] and self._is_of_another(there[other]) and self._is_recent(folder):
                continue
            # Without it, what is left of a half-removed folder is no model.
            store.remove(below(folder, SAVED_MODEL))
            store.remove_below(folder)

    def _is_of_another(self, names: Iterable[str]) -> bool:
        return any(name.startswith(RUN_PREFIX) and name != self._owner for name in names)

    def _is_recent(self, folder: str) -> bool:
        """Whether something was written below a folder lately, so that another job may continue."""
        there = store_of(self._place).listed(folder, deep=True)
        newest = max((entry.mtime_ns for entry in there), default=0)
        return not newest or time.time() - newest / 1e9 < _ABANDONED_S


@contextmanager
def _no_user_error() -> Iterator[None]:
    """A store that refuses a write says nothing about the user's model."""
    try:
        yield
    except UserError as error:
        raise PermanentError(error.message, hint=error.hint) from error


def _sync(folder: Path) -> None:
    """Write all that is below a folder to the disk."""
    for path in (folder, *folder.rglob("*")):
        sync_entry(path)
