"""Where records begin in a file without an index of its own.

One pass over a file builds the index. Every process of the job then reads it from the cache by
path, size and time of the file. A cached index has a checksum; one that does not match is built
again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.addresses import is_address
from elasticdl.data import index_cache
from elasticdl.data.files import DataFile
from elasticdl.errors import Corrupted, UserError
from elasticdl.native._native import crc32c

STRIDE_RECORDS = 256
STRIDE_BYTES = 1 << 20
BLOCK_RECORDS = 4096
BLOCK_BYTES = 8 << 20
SMALL_BYTES = 1 << 20

_MAGIC = b"elasticdl record index 1\n"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [begin, end) of a file that hold whole records: skip `skip`, then take `take`.

    `line` is the line number, from 1, of the first byte.
    """

    begin: int
    end: int
    skip: int
    take: int
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class RecordIndex:
    """Where records begin.

    `entries` is int64[n + 1, 3]: (record, byte offset, line) at intervals; the last is the end.
    """

    entries: NDArray[np.int64]
    columns: int = 0
    bad: int = 0
    examples: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return int(self.entries[-1, 0])

    def spans(self, begin: int, end: int) -> Iterator[Span]:
        """Cut records [begin, end) into blocks of about BLOCK_RECORDS and BLOCK_BYTES."""
        records, offsets = self.entries[:, 0], self.entries[:, 1]
        while begin < end:
            first = int(np.searchsorted(records, begin, side="right")) - 1
            by_records = int(np.searchsorted(records, begin + BLOCK_RECORDS, side="right")) - 1
            by_bytes = int(np.searchsorted(offsets, offsets[first] + BLOCK_BYTES, side="right")) - 1
            by_end = int(np.searchsorted(records, end, side="left"))
            last = max(first + 1, min(by_records, by_bytes, by_end))
            stop = min(end, int(records[last]))
            start = int(records[first])
            yield Span(
                int(offsets[first]),
                int(offsets[last]),
                begin - start,
                stop - begin,
                int(self.entries[first, 2]),
            )
            begin = stop


Build: TypeAlias = Callable[[DataFile], RecordIndex]


def from_native(file: DataFile, facts: dict[str, Any]) -> RecordIndex:
    """Convert the scanner's result.

    Raises UserError, with file and place, if the file is incomplete.
    """
    place = f"{file.path}: at offset {facts['offset']}"
    match facts["fault"]:
        case "":
            pass
        case "io":
            raise UserError(f"{place}: cannot read: {os.strerror(facts['errno'])}")
        case "truncated":
            raise UserError(
                f"{place}: the file ends inside a record",
                hint="the file is truncated: copy or write it again",
            )
        case "damaged":
            raise UserError(
                f"{place}: a record's length does not match its checksum",
                hint="the file is damaged or not a TFRecord file: write it again",
            )
        case "long row":
            raise UserError(
                f"{file.path}:{facts['line']}: a row is longer than 64 MiB (offset"
                f" {facts['offset']})",
                hint="check that this is a CSV file",
            )
        case "open quote":
            raise UserError(
                f"{file.path}:{facts['line']}: a quote in this row is never closed (offset"
                f" {facts['offset']})",
                hint=(
                    "close it; if quotes are plain text, double them, or use --data-reader-params"
                    ' "quoting=false"'
                ),
            )
    entries = np.frombuffer(facts["entries"], np.int64).reshape(-1, 3)
    examples = tuple(describe(file, line, why, start) for line, why, start in facts["examples"])
    return RecordIndex(entries, facts["columns"], facts["bad"], examples)


def describe(file: DataFile, line: int, why: str, start: bytes) -> str:
    """A bad row, for people."""
    text = start.decode("utf-8", "replace").rstrip("\r\n")
    return f"{file.path}:{line}: {why}: {text!r}"


def cached(file: DataFile, options: str, build: Build) -> RecordIndex:
    """The index of `file` for these options, from the cache or built now.

    Safe with many processes at once. A changed file gets a new index that replaces the old one. If
    the cache is not writable, each process makes its own pass over the file. The indexes of small
    files are not cached: building one is cheaper, and many of them would evict the indexes of large
    files.
    """
    if file.size_bytes <= SMALL_BYTES:
        return build(file)
    place = json.dumps([_absolute(file.path), options, STRIDE_RECORDS, STRIDE_BYTES])
    key = f"{place} {file.fingerprint}"
    name = hashlib.sha256(place.encode()).hexdigest()[:32]
    try:
        kept = index_cache.read(name)
        index_cached = decode(kept, key) if kept is not None else None
        if index_cached is not None:
            return index_cached
    except (OSError, Corrupted) as error:
        _log.warning("%s: %s: building the index again", index_cache.path_of(name), error)
    index = build(file)
    file.check_unchanged()
    index_cache.keep(name, encode(index, key))
    return index


def _absolute(path: str) -> str:
    return path if is_address(path) else os.path.abspath(path)


def encode(index: RecordIndex, key: str) -> bytes:
    """The index as bytes with a checksum."""
    head = json.dumps(
        {"key": key, "columns": index.columns, "bad": index.bad, "examples": index.examples}
    )
    payload = head.encode() + b"\n" + index.entries.tobytes()
    return _MAGIC + crc32c(payload).to_bytes(4, "little") + payload


def decode(data: bytes, key: str) -> RecordIndex | None:
    """The index from bytes; None if it has another key.

    Raises Corrupted if `encode` did not write these bytes.
    """
    start = len(_MAGIC) + 4
    payload = data[start:]
    if (
        not payload
        or not data.startswith(_MAGIC)
        or int.from_bytes(data[len(_MAGIC) : start], "little") != crc32c(payload)
    ):
        raise Corrupted("not an index, or its checksum does not match")
    head, _, entries = payload.partition(b"\n")
    facts = json.loads(head)
    if facts["key"] != key:
        return None
    return RecordIndex(
        np.frombuffer(entries, np.int64).reshape(-1, 3),
        facts["columns"],
        facts["bad"],
        tuple(facts["examples"]),
    )
