"""A bucket, or another root of an object store, through pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from elasticdl.errors import TransientError, UserError
from elasticdl.private_file import private
from elasticdl.storage.address import parse
from elasticdl.storage.attempts import RUNNING, Absent, Limits, Progress, attempt

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_CHUNK_BYTES = 8 << 20
_FLUSHED_BYTES = 32 << 20
"""An upload waits after so many bytes: pyarrow's clients queue without a limit what is written."""
_BEHIND_THE_END = re.compile(r"InvalidRange|INVALID_RANGE|HTTP status 416\b")


@final
@dataclass(frozen=True, slots=True)
class StoreEntry:
    """An object of a listing, or a folder; `mtime_ns` is 0 if the store does not know it."""

    address: str
    is_folder: bool
    size_bytes: int
    mtime_ns: int


@final
class StoredObject:
    """An open object, as it was when it was opened. Threads may read it concurrently."""

    def __init__(self, address: str, open_again: Callable[[], Any], limits: Limits) -> None:
        """`open_again` gives a handle of pyarrow on what the address has now."""
        self._address = address
        self._open_again = open_again
        self._handle = handle = open_again()
        self._limits = limits
        self.size_bytes = int(handle.size())
        self.etag = _etag(handle)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end), fewer if the object has become shorter.

        Raises Absent, UserError, TransientError.
        """

        def whole() -> bytes:
            try:
                data: bytes = self._handle.read_at(end - begin, begin)
            except OSError as error:
                if not _BEHIND_THE_END.search(str(error)):
                    raise
                data = b""
            # A connection may break inside a range, but an object that became shorter looks alike.
            if len(data) < end - begin and self._open_again().size() >= end:
                raise ConnectionError(f"got {len(data)} of {end - begin} bytes")
            return data

        return attempt(self._address, f"read at offset {begin}", whole, self._limits)


@final
class Store:
    """One root. Threads may use it concurrently. All methods raise Absent, UserError and, after
    the time limit, TransientError.
    """

    def __init__(self, root: str, system: FileSystem, prefix: str) -> None:
        """`prefix` is what pyarrow's paths have in front of a key."""
        self._root = root
        self._system = system
        self._prefix = prefix

    def open(self, address: str, limits: Limits = RUNNING) -> StoredObject:
        """Open an object for reading."""
        return attempt(
            address,
            "open",
            lambda: StoredObject(
                address, lambda: self._system.open_input_file(self._path(address)), limits
            ),
            limits,
        )

    def read(self, address: str, limits: Limits = RUNNING) -> bytes:
        """The bytes of a small object. If it is replaced meanwhile, they may be cut off."""
        opened = self.open(address, limits)
        return opened.read(0, opened.size_bytes)

    def look_at(self, address: str, limits: Limits = RUNNING) -> StoreEntry | None:
        """What is at an address; None if nothing."""
        info = attempt(
            address,
            "look at it",
            lambda: self._system.get_file_info(self._path(address)),
            limits,
        )
        return self._entry(info)

    def listed(
        self, address: str, *, deep: bool = False, limits: Limits = RUNNING
    ) -> list[StoreEntry]:
        """What a folder contains, `deep` with all below it, sorted by address."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(address), recursive=deep, allow_not_found=True)
        infos = attempt(address, "list", lambda: self._system.get_file_info(selector), limits)
        entries = (self._entry(info) for info in infos)
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.address)

    def write(self, address: str, data: bytes, limits: Limits = RUNNING) -> None:
        """Write an object. In S3, GCS and Azure, readers see the old one or the new one."""

        def put() -> None:
            with self._created(address) as stream:
                stream.write(data)

        attempt(address, "write", put, limits)

    def upload(
        self,
        file: Path,
        address: str,
        limits: Limits = RUNNING,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write an object with the bytes of a file. Also raises OSError of the file.

        The limit counts from the last bytes that the store took. `is_wanted` is asked before
        each try and between pieces of the file: no longer is a TransientError.
        """
        progress = Progress()
        with file.open("rb", buffering=0) as source:

            def need() -> None:
                if not is_wanted():
                    raise TransientError(f"{address}: the upload is no longer wanted")

            def put() -> None:
                need()
                source.seek(0)
                with self._created(address) as stream:
                    while chunk := source.read(_CHUNK_BYTES):
                        need()
                        stream.write(chunk)
                        if source.tell() % _FLUSHED_BYTES == 0:
                            stream.flush()
                            progress.reached(source.tell())

            attempt(address, "write", put, limits, progress)

    def download(self, address: str, file: Path, limits: Limits = RUNNING) -> None:
        """Write a new file with the bytes of an object. Also raises OSError of the file."""
        opened = self.open(address, limits)
        with open(file, "xb", buffering=0, opener=private) as target:
            for begin in range(0, opened.size_bytes, _CHUNK_BYTES):
                target.write(opened.read(begin, min(opened.size_bytes, begin + _CHUNK_BYTES)))
            os.fsync(target.fileno())

    def remove(self, address: str, limits: Limits = RUNNING) -> None:
        """Remove an object; an absent one is success."""
        with suppress(Absent):
            attempt(
                address, "remove", lambda: self._system.delete_file(self._path(address)), limits
            )

    def remove_below(self, address: str) -> None:
        """Remove all objects of a folder; an absent one is success."""
        with suppress(Absent):
            attempt(address, "remove", lambda: self._system.delete_dir(self._path(address)))

    def _created(self, address: str) -> Any:  # noqa: ANN401 - a pyarrow stream
        path = self._path(address)
        if self._makes_folders:
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
        return self._system.open_output_stream(path)

    @property
    def _makes_folders(self) -> bool:
        # In object stores, folders are only parts of names, and making one may need other rights.
        return self._system.type_name not in ("s3", "gcs", "abfs")

    def _path(self, address: str) -> str:
        key = parse(address).key
        return f"{self._prefix}/{key}" if key else self._prefix or "/"

    def _entry(self, info: FileInfo) -> StoreEntry | None:
        from pyarrow.fs import FileType

        if info.type not in (FileType.File, FileType.Directory):
            return None
        # fsspec's paths may begin with a slash.
        key = info.path.strip("/").removeprefix(self._prefix.strip("/")).strip("/")
        return StoreEntry(
            f"{self._root}/{key}",
            info.type is FileType.Directory,
            info.size or 0,
            info.mtime_ns or 0,
        )


def store_of(address: str, limits: Limits = RUNNING) -> Store:
    """The store of an address.

    Raises UserError if nothing that is installed knows the scheme, or there is no such bucket.
    """
    root = parse(address).root
    # By process: clients have threads and connections, which a fork does not take along.
    known = (root, os.getpid())
    if known not in _stores:
        _stores[known] = _connect(root, limits)
    return _stores[known]


_stores: dict[tuple[str, int], Store] = {}


def forget_connections() -> None:
    """Let the next `store_of` connect with the environment as it is then."""
    _stores.clear()


def _connect(root: str, limits: Limits) -> Store:
    parts = parse(root)
    if not parts.host and parts.scheme not in ("memory", "hdfs"):
        hint = f"use {parts.scheme}://BUCKET/KEY"
        if parts.scheme == "file":
            hint = "name the path, without file://"
        raise UserError(f"{root}/ names no bucket", hint=hint)
    from elasticdl.storage.connecting import connected

    system, prefix = connected(parts, limits)
    return Store(root, system, prefix)


def _etag(handle: Any) -> str:  # noqa: ANN401 - pyarrow
    try:
        metadata = handle.metadata() or {}
    except (OSError, NotImplementedError, AttributeError):
        return ""
    value = metadata.get(b"ETag") or metadata.get("ETag") or b""
    return value.decode() if isinstance(value, bytes) else str(value)
