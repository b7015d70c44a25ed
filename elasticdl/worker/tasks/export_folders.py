"""Numbered folders of exports, as TensorFlow Serving polls them: `OUTPUT/1`, `OUTPUT/2`, ….

A number names one content for ever. On a disk a folder has its name only when it is complete: it is
made under a hidden name, which TensorFlow Serving ignores, and renamed. In an object store, which
has no renames, it is complete when it has `saved_model.pb`, which comes last.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias, final

from elasticdl.errors import ElasticDLError, PermanentError, UserError
from elasticdl.flag import is_address
from elasticdl.jobdir.output_folder import export_number
from elasticdl.private_file import temporary_name
from elasticdl.storage import folders
from elasticdl.storage.address import below
from elasticdl.storage.store import store_of

_log = logging.getLogger(__name__)

SAVED_MODEL = "saved_model.pb"
Write: TypeAlias = Callable[[Path], None]
"""Writes an export to a directory that does not exist yet."""


class ExportFolders(Protocol):
    """The numbered folders below one place."""

    def publish(self, number: int, write: Write) -> str:
        """Make folder `number` complete and return its place; one that is complete stays.

        Raises OSError, PermanentError, TransientError, and what `write` raises.
        """

    def prune(self, number: int) -> None:
        """Remove what is older than folder `number`, except the newest that are complete.

        Raises OSError and ElasticDLError.
        """


def export_folders(place: str, keep: int) -> ExportFolders:
    """The folders below a directory or an address; `keep` of them stay, with 0 all."""
    return _StoredFolders(place, keep) if is_address(place) else _LocalFolders(Path(place), keep)


def prune_quietly(exports: ExportFolders, number: int) -> None:
    """Remove old folders; a problem is logged, since the new export is complete."""
    try:
        exports.prune(number)
    except (OSError, ElasticDLError) as error:
        _log.warning("old exports are not removed: %s", error)


def surplus(complete: Mapping[int, bool], number: int, keep: int) -> list[int]:
    """Which folders to remove, the oldest first; `complete` says of each whether it is whole."""
    whole = sorted(one for one, is_whole in complete.items() if is_whole)
    kept = set(whole[-keep:] if keep else whole)
    return sorted(one for one in complete if one < number and one not in kept)


@final
class _LocalFolders:
    def __init__(self, place: Path, keep: int) -> None:
        self._place = place
        self._keep = keep

    def publish(self, number: int, write: Write) -> str:
        target = self._place / str(number)
        if target.exists():
            return str(target)
        self._place.mkdir(parents=True, exist_ok=True)
        hidden = temporary_name(target)
        hidden.mkdir()
        try:
            made = hidden / "export"
            write(made)
            # Before the name appears: after a crash of the machine it must not name empty files.
            _sync(made)
            try:
                made.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                # An earlier attempt at the same view has ended meanwhile.
            _sync_one(self._place)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        return str(target)

    def prune(self, number: int) -> None:
        found = {
            one: True
            for name in os.listdir(self._place)
            if (one := export_number(name)) is not None
        }
        for one in surplus(found, number, self._keep):
            # Nobody must see half of a folder, neither while it is made nor while it is removed.
            hidden = temporary_name(self._place / str(one))
            (self._place / str(one)).rename(hidden)
        for name in os.listdir(self._place):
            first, _, rest = name.removeprefix(".").partition(".")
            of = export_number(first)
            if name.startswith(".") and rest and of is not None and of <= number:
                # Of an exporter that was killed, or of the loop above.
                shutil.rmtree(self._place / name, ignore_errors=True)


@final
class _StoredFolders:
    def __init__(self, place: str, keep: int) -> None:
        self._place = place
        self._keep = keep

    def publish(self, number: int, write: Write) -> str:
        target = below(self._place, str(number))
        with _no_user_error():
            if self._is_complete(number):
                return target
        with tempfile.TemporaryDirectory(prefix="elasticdl-export-") as temporary:
            made = Path(temporary) / "export"
            write(made)
            with _no_user_error():
                folders.replace(made, target, last=SAVED_MODEL)
        return target

    def prune(self, number: int) -> None:
        store = store_of(self._place)
        names = (one.address.rpartition("/")[2] for one in store.listed(self._place))
        numbers = [one for name in names if (one := export_number(name)) is not None]
        for one in surplus({one: self._is_complete(one) for one in numbers}, number, self._keep):
            folder = below(self._place, str(one))
            # Without it, what is left of a half-removed folder is no model.
            store.remove(below(folder, SAVED_MODEL))
            store.remove_below(folder)

    def _is_complete(self, number: int) -> bool:
        marker = below(below(self._place, str(number)), SAVED_MODEL)
        return store_of(self._place).look_at(marker) is not None


@contextmanager
def _no_user_error() -> Iterator[None]:
    """A store that refuses a write says nothing of the user's model."""
    try:
        yield
    except UserError as error:
        raise PermanentError(error.message, hint=error.hint) from error


def _sync(folder: Path) -> None:
    """Write all that is below a folder to the disk."""
    for path in (folder, *folder.rglob("*")):
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
