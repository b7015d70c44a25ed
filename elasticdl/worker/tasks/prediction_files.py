"""The files of predictions: in a directory, or below an address of an object store.

A file holds the predictions of one attempt's part of a shard. Its name says which records they are,
and the attempt is in it.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.addresses import is_address
from elasticdl.errors import PermanentError
from elasticdl.shard import Lease, ShardId
from elasticdl.storage.address import below
from elasticdl.storage.attempts import Absent
from elasticdl.storage.store import store_of

_NAME = re.compile(r"predictions-(\d+)-(\d+)-(\d+)\.npz")


@final
@dataclass(frozen=True, slots=True)
class PartName:
    """The records [begin, end) of a shard."""

    shard: ShardId
    begin: int
    end: int

    def __str__(self) -> str:
        """The name of the file; names sort in the data's order."""
        return f"predictions-{self.shard:06d}-{self.begin:09d}-{self.end:09d}.npz"

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """None if it is not such a name."""
        match = _NAME.fullmatch(name)
        return match and cls(ShardId(int(match[1])), int(match[2]), int(match[3]))


class PredictionFiles(Protocol):
    """The folder of a job's predictions. All methods raise OSError, UserError or TransientError."""

    def write(self, name: PartName, arrays: Mapping[str, NDArray[Any]], attempt: int) -> None:
        """Write a file, which is there whole or not at all.

        Raises PermanentError if nothing can be written there.
        """

    def names(self, shard: ShardId) -> list[PartName]:
        """The files of a shard."""

    def attempt(self, name: PartName) -> int:
        """The attempt that wrote a file; -1 if it is unreadable."""

    def remove(self, name: PartName) -> None:
        """Remove a file; an absent one is success."""

    def remove_unfinished(self, shard: ShardId, attempt: int) -> None:
        """Remove what attempts before this one have written in part."""


def prediction_files(place: str) -> PredictionFiles:
    """The files below a directory or an address."""
    return ObjectFiles(place) if is_address(place) else LocalFiles(Path(place))


def parts_from(files: PredictionFiles, lease: Lease) -> list[PartName]:
    """The parts of the lease's shard that begin at or after its offset."""
    assert lease.shard is not None
    return [name for name in files.names(lease.shard.id) if name.begin >= lease.offset]


@final
class LocalFiles:
    """`PredictionFiles` in a directory, which is made when it is needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, name: PartName, arrays: Mapping[str, NDArray[Any]], attempt: int) -> None:
        path = self._directory / str(name)
        temporary = path.with_name(f".{name}.{attempt}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            try:
                # Exclusive: nobody can put a link there.
                with temporary.open("xb") as file:
                    _write_archive(file, arrays)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise PermanentError(
                f"cannot write {path}: {error.strerror or error}", hint="check --output"
            ) from error

    def names(self, shard: ShardId) -> list[PartName]:
        names = (PartName.parse(path.name) for path in self._directory.glob(_of_shard(shard)))
        return [name for name in names if name is not None]

    def attempt(self, name: PartName) -> int:
        with suppress(OSError):
            return _attempt(self._directory / str(name))
        return -1

    def remove(self, name: PartName) -> None:
        (self._directory / str(name)).unlink(missing_ok=True)

    def remove_unfinished(self, shard: ShardId, attempt: int) -> None:
        for path in self._directory.glob(f".{_of_shard(shard)}.*"):
            if path.suffix[1:].isdecimal() and int(path.suffix[1:]) < attempt:
                path.unlink(missing_ok=True)


@final
class ObjectFiles:
    """`PredictionFiles` below an address. An object is there as a whole or not at all."""

    def __init__(self, address: str) -> None:
        self._address = address

    def write(self, name: PartName, arrays: Mapping[str, NDArray[Any]], attempt: int) -> None:
        archive = io.BytesIO()
        _write_archive(archive, arrays)
        store_of(self._address).write(self._object(name), archive.getvalue())

    def names(self, shard: ShardId) -> list[PartName]:
        entries = store_of(self._address).listed(self._address)
        names = (PartName.parse(entry.address.rpartition("/")[2]) for entry in entries)
        return [name for name in names if name is not None and name.shard == shard]

    def attempt(self, name: PartName) -> int:
        # A later attempt may just have replaced it.
        with suppress(Absent):
            stored = store_of(self._address).open(self._object(name))
            return _attempt(io.BytesIO(stored.read(0, stored.size_bytes)))
        return -1

    def remove(self, name: PartName) -> None:
        store_of(self._address).remove(self._object(name))

    def remove_unfinished(self, shard: ShardId, attempt: int) -> None:
        """Do nothing: no object is unfinished."""

    def _object(self, name: PartName) -> str:
        return below(self._address, str(name))


def _of_shard(shard: ShardId) -> str:
    return f"predictions-{shard:06d}-*.npz"


def _write_archive(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    # Not `np.savez`: it pickles objects, and its own parameters cannot be names of outputs.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _attempt(file: Path | IO[bytes]) -> int:
    with suppress(ValueError, KeyError, zipfile.BadZipFile), np.load(file) as part:
        return int(part["attempt"])
    return -1
