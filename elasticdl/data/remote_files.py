"""Data files in object stores: read by ranges, several at once, never as a whole per shard."""

from __future__ import annotations

import io
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from glob import has_magic
from hashlib import blake2b
from itertools import islice
from typing import IO, TypeAlias, final

from elasticdl.data.files import changed, disappeared, truncated
from elasticdl.data.seekable import SeekableFile
from elasticdl.errors import TransientError, UserError
from elasticdl.shard import ETAG_MARK
from elasticdl.storage.address import Address, parse
from elasticdl.storage.attempts import RUNNING, STARTING, Absent, Limits
from elasticdl.storage.store import StoredObject, StoreEntry, store_of

_LOOK_EVERY_S = 1.0
"""Interval between two looks at whether an object changed: each is a request."""
_AHEAD = 4
"""Requests under way at once; each is for at most BLOCK_BYTES, or a record if that is more."""
_PIECE_BYTES = 4 << 20
"""What a request of a pass over a whole object reads, and what adjoining ranges may add up to."""
_STREAM_BYTES = 1 << 20
_Group: TypeAlias = list[tuple[int, int]]


@dataclass(slots=True)
class _LastLook:
    at_s: float


@final
@dataclass(frozen=True, slots=True)
class RemoteFile:
    """See DataFile; an object in a store."""

    path: str
    size_bytes: int
    mtime_ns: int
    etag: str
    """What the store says of the content; '' if it says nothing."""
    object: StoredObject = field(compare=False)
    last_look: _LastLook = field(compare=False)

    @property
    def fingerprint(self) -> str:
        """Size and time, with a digest of the store's ETag if it gives one."""
        etag = self.digest()
        return f"{self.size_bytes}:{self.mtime_ns}" + (f":{etag}" if etag else "")

    def digest(self) -> str:
        """The store's ETag as a word: it may contain any character."""
        if not self.etag:
            return ""
        return ETAG_MARK + blake2b(self.etag.encode(), digest_size=16).hexdigest()

    def full_fingerprint(self) -> str:
        """The fingerprint: the store's ETag stands for a digest of the content."""
        return self.fingerprint

    @contextmanager
    def opened(self) -> Iterator[RemoteOpenFile]:
        opened = RemoteOpenFile(self)
        try:
            yield opened
        finally:
            opened.close()

    def check_unchanged(self) -> None:
        """Raise DataChanged if the object has changed or gone, as it was at most a second ago."""
        if time.monotonic() - self.last_look.at_s < _LOOK_EVERY_S:
            return
        store = store_of(self.path)
        try:
            now = store.open(self.path) if self.etag else None
            entry = None if now is not None else store.look_at(self.path)
        except Absent as error:
            raise disappeared(self, "there is no such object") from error
        if now is not None and (now.size_bytes, now.etag) != (self.size_bytes, self.etag):
            raise changed(self, now.size_bytes, "another ETag")
        if now is None:
            if entry is None:
                raise disappeared(self, "there is no such object")
            if (entry.size_bytes, entry.mtime_ns) != (self.size_bytes, self.mtime_ns):
                raise changed(self, entry.size_bytes, "another modification time")
        self.last_look.at_s = time.monotonic()


@final
class RemoteOpenFile:
    """See OpenFile. Used by one thread at a time."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._pieces: Iterator[bytes] = iter(())
        self._piece = b""
        self._piece_at = -1
        self._under_way: deque[tuple[_Group, Future[bytes]]] = deque()

    def close(self) -> None:
        """Give up the ranges that are still to be read."""
        for _, future in self._under_way:
            future.cancel()

    def read(self, begin: int, end: int) -> bytes:
        """See `OpenFile.read`; also raises TransientError after the time limit."""
        try:
            data = self._file.object.read(begin, end)
        except Absent as error:
            raise disappeared(self._file, "there is no such object") from error
        if len(data) < end - begin:
            raise truncated(self._file, begin + len(data))
        return data

    def ranges(self, wanted: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """See `OpenFile.ranges`: up to _AHEAD requests at once, near ranges in one request."""
        groups = _groups(wanted)
        under_way = self._under_way = deque()
        while True:
            for group in islice(groups, _AHEAD - len(under_way)):
                begin = group[0][0]
                read = _readers(os.getpid()).submit(self.read, begin, max(e for _, e in group))
                under_way.append((group, read))
            if not under_way:
                return
            group, future = under_way.popleft()
            data = future.result()
            begin = group[0][0]
            for first, last in group:
                yield data[first - begin : last - begin]

    def native(self, offset: int, size: int) -> bytes:
        """Bytes from `offset` on, at most `size`, for a pass that reads forward.

        See `record_index.h`: it goes back by a few bytes only.
        """
        at = offset - self._piece_at
        if self._piece_at < 0 or not 0 <= at <= len(self._piece) + _AHEAD * _PIECE_BYTES:
            self._seek(offset)
            at = 0
        # A record may end behind this piece. What was asked for ahead is not asked for again.
        while at >= len(self._piece):
            at -= len(self._piece)
            self._piece_at += len(self._piece)
            self._piece = next(self._pieces, b"")
            if not self._piece:
                break
        return self._piece[at : at + size]

    def _seek(self, offset: int) -> None:
        self.close()
        size = self._file.size_bytes
        self._pieces = self.ranges(
            (begin, min(size, begin + _PIECE_BYTES)) for begin in range(offset, size, _PIECE_BYTES)
        )
        self._piece, self._piece_at = b"", offset

    def stream(self) -> IO[bytes]:
        return io.BufferedReader(_Stream(self._file), _STREAM_BYTES)


@final
class _Stream(SeekableFile):
    """An object as a seekable file."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size_bytes)
        self._opened = RemoteOpenFile(file)

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # a Buffer
        view = memoryview(buffer).cast("B")
        end = min(self._size, self._at + len(view))
        if end <= self._at:
            return 0
        data = self._opened.read(self._at, end)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _groups(wanted: Iterable[tuple[int, int]]) -> Iterator[_Group]:
    """Ranges of ascending offsets, those that adjoin together up to _PIECE_BYTES."""
    group: _Group = []
    for begin, end in wanted:
        if group and (begin > group[-1][1] or end - group[0][0] > _PIECE_BYTES):
            yield group
            group = []
        group.append((begin, end))
    if group:
        yield group


@lru_cache(maxsize=2)
def _readers(_process: int) -> ThreadPoolExecutor:
    # By process: threads do not live on in a fork.
    return ThreadPoolExecutor(4 * _AHEAD, thread_name_prefix="object-reader")


def look_at_object(address: str) -> RemoteFile:
    """The object at an address. Raises UserError if it is missing, a folder, or empty."""
    try:
        store = store_of(address)
        entry = store.look_at(address)
        if entry is None:
            raise UserError(f"{address} does not exist", hint="check the address")
        if entry.is_folder:
            raise UserError(f"{address} is a folder, not an object")
        if entry.size_bytes == 0:
            raise UserError(f"{address} is empty", hint="remove it, or write records into it")
        opened = store.open(address)
    except Absent as error:
        raise UserError(error.message, hint=error.hint) from error
    # The ETag describes the object that was opened, so the size has to describe the same one.
    return RemoteFile(
        address,
        opened.size_bytes,
        entry.mtime_ns,
        opened.etag,
        opened,
        _LastLook(time.monotonic()),
    )


def expand_address(origin: str, *, running: bool = False) -> tuple[str, ...]:
    """The objects that an address, a folder or a glob names, sorted; see `origins.expand`."""
    if running:
        return _expand(origin, RUNNING)
    try:
        return _expand(origin, STARTING)
    except TransientError as error:
        # Nothing has started: the user waits, and can mend it.
        raise UserError(error.message, hint=error.hint) from error


def _expand(origin: str, limits: Limits) -> tuple[str, ...]:
    store = store_of(origin, limits)
    entry = None if origin.endswith("/") else store.look_at(origin, limits)
    if entry is not None and not entry.is_folder:
        return (origin,)
    if has_magic(origin):
        return _matches(parse(origin), limits)
    entries = store.listed(origin, limits=limits)
    objects = [each.address for each in entries if _is_data(each)]
    if not objects:
        if not entries:
            _require_bucket(parse(origin), limits)
        raise UserError(
            f"folder {origin} has no data files" if entries else f"{origin} does not exist",
            hint="name an object, a folder of objects, or a glob",
        )
    return tuple(objects)


def _require_bucket(address: Address, limits: Limits) -> None:
    """Raise UserError if the bucket itself is absent: a store may list nothing then."""
    if store_of(address.root, limits).look_at(address.root, limits) is None:
        raise UserError(
            f"{address}: the bucket does not exist", hint="check its name, region and endpoint"
        )


def _is_data(entry: StoreEntry) -> bool:
    return not entry.is_folder and not parse(entry.address).name.startswith((".", "_"))


def _matches(pattern: Address, limits: Limits) -> tuple[str, ...]:
    if has_magic(pattern.host):
        raise UserError(
            f"{pattern}: the bucket is a pattern", hint="name the bucket; patterns are for keys"
        )
    parts = pattern.key.split("/")
    fixed = next(number for number, part in enumerate(parts) if has_magic(part))
    folder = f"{pattern.root}/{'/'.join(parts[:fixed])}".rstrip("/")
    deep = len(parts) > fixed + 1 or "**" in parts
    entries = store_of(folder, limits).listed(folder, deep=deep, limits=limits)
    fits = re.compile(_regex(parts)).fullmatch
    objects = tuple(
        entry.address for entry in entries if not entry.is_folder and fits(parse(entry.address).key)
    )
    if not objects:
        _require_bucket(pattern, limits)
        raise UserError(
            f"no object matches {pattern}",
            hint="check the pattern, and quote it so that the shell does not expand it",
        )
    return objects


def _regex(parts: list[str]) -> str:
    """Like `glob`: `*` is within one part and skips hidden names, `**` is any number of parts."""
    last = len(parts) - 1
    pieces = []
    for number, part in enumerate(parts):
        if part == "**":
            pieces.append(r"(?:[^/.][^/]*/)*" if number < last else r"(?:[^/.][^/]*/)*[^/.][^/]*")
            continue
        hidden = r"(?!\.)" if has_magic(part) and not part.startswith(".") else ""
        pieces.append(hidden + _segment(part) + ("/" if number < last else ""))
    return "".join(pieces)


def _segment(part: str) -> str:
    pattern, at = "", 0
    while at < len(part):
        char = part[at]
        close = part.find("]", at + 2) if char == "[" else -1
        if close > 0:
            inner = part[at + 1 : close].replace("\\", "\\\\")
            pattern += f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
            at = close + 1
            continue
        pattern += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        at += 1
    return pattern
