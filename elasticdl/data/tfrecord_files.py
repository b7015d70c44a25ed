"""TFRecord: records are object[n] of bytes, verified by their checksums.

A frame is length (8 bytes), its masked crc32c (4), data, its masked crc32c (4), little-endian. A
wrong checksum of data makes a bad record. After a wrong checksum of a length the file is unusable,
since the next frame cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile, refuse_compressed
from elasticdl.data.places import record_location
from elasticdl.data.record_index import (
    STRIDE_BYTES,
    STRIDE_RECORDS,
    RecordIndex,
    Span,
    cached,
    from_native,
)
from elasticdl.errors import UserError
from elasticdl.native import _native


@final
class TFRecordFormat:
    """TFRecord files; see FileFormat."""

    def __init__(self) -> None:
        self._indexes: dict[str, RecordIndex] = {}

    def metadata(self, file: DataFile) -> Metadata:
        return Metadata()

    def count(self, file: DataFile) -> int:
        return self._index(file).records

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()  # checksums of data are verified at reading

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        spans = list(self._index(file).spans(begin, end))
        with file.opened() as opened:
            parts = opened.ranges((span.begin, span.end) for span in spans)
            for span, data in zip(spans, parts, strict=True):
                yield _block(file, data, span)

    def place(self, file: DataFile, number: int) -> str:
        span = next(self._index(file).spans(number, number + 1))
        with file.opened() as opened:
            data = opened.read(span.begin, span.end)
        *_, used = _native.tfrecord_rows(data, span.skip, np.empty(0, object))
        return f"{record_location(file.path, number)} at offset {span.begin + used}"

    def _index(self, file: DataFile) -> RecordIndex:
        if file.path not in self._indexes:
            self._indexes[file.path] = cached(file, "tfrecord", _build)
        return self._indexes[file.path]


def _build(file: DataFile) -> RecordIndex:
    with file.opened() as opened:
        refuse_compressed(file.path, opened.read(0, min(4, file.size_bytes)))
        return from_native(
            file,
            _native.tfrecord_index(opened.native, file.size_bytes, STRIDE_RECORDS, STRIDE_BYTES),
        )


def _block(file: DataFile, data: bytes, span: Span) -> Block:
    records = np.empty(span.take, object)
    good, seen, bad, used = _native.tfrecord_rows(data, span.skip, records)
    if seen != span.take:
        raise UserError(
            f"{file.path}: at offset {span.begin + used}: the file changed: a record's length does"
            " not match its checksum"
        )
    examples = tuple(
        f"{file.path}: at offset {span.begin + at}: the record's data does not match its checksum"
        for at in bad[:3]
    )
    return Block(records[:good], span.take, len(bad), examples)
