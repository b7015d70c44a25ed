"""Tar archives of WebDataset: a record is a dict of bytes by its members' suffixes.

A sample is the members in a row whose names are the same up to the first dot: `dog.jpg` and
`dog.cls` are one sample with columns `jpg` and `cls`, and `dog` is its `__key__`. See
https://github.com/webdataset/webdataset for the convention.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, final

import numpy as np

from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile, OpenFile, refuse_compressed
from elasticdl.data.places import record_location
from elasticdl.data.record_index import (
    STRIDE_BYTES,
    STRIDE_RECORDS,
    RecordIndex,
    Span,
    cached,
)
from elasticdl.errors import UserError

KEY = "__key__"

_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)")
_BLOCK = tarfile.BLOCKSIZE
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class _Sample:
    """`members` has (offset, size) of the data by suffix; `offset` is where the first header is."""

    key: str
    offset: int
    members: Mapping[str, tuple[int, int]]


@final
class TarFormat:
    """Tar files; see FileFormat. `columns`: the suffixes to read; none means those of the first
    sample of each file.
    """

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self._chosen = tuple(columns)
        self._indexes: dict[str, RecordIndex] = {}
        self._columns: dict[str, tuple[str, ...]] = {}

    def metadata(self, file: DataFile) -> Metadata:
        if file.path not in self._columns:
            self._columns[file.path] = self._chosen or _first_columns(file)
        names = self._columns[file.path]
        return Metadata(names, dict.fromkeys(names, "object"))

    def count(self, file: DataFile) -> int:
        return self._index(file).records

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        columns, number = self.metadata(file).column_names, begin
        spans = list(self._index(file).spans(begin, end))
        with file.opened() as opened:
            parts = opened.ranges((span.begin, span.end) for span in spans)
            for span, data in zip(spans, parts, strict=True):
                yield _block(file, data, span, columns, number)
                number += span.take

    def place(self, file: DataFile, number: int) -> str:
        span = next(self._index(file).spans(number, number + 1))
        with file.opened() as opened:
            data = opened.read(span.begin, span.end)
        sample = list(_samples(io.BytesIO(data), file.path, len(data)))[span.skip]
        return f"{record_location(file.path, number)} ({_shown(sample.key)})"

    def _index(self, file: DataFile) -> RecordIndex:
        if file.path not in self._indexes:
            self._indexes[file.path] = cached(file, "tar", _build)
        return self._indexes[file.path]


def _build(file: DataFile) -> RecordIndex:
    """Read all headers."""
    entries, records, end = [(0, 0, 1)], 0, 0
    with file.opened() as opened:
        refuse_compressed(file.path, opened.read(0, min(4, file.size_bytes)))
        for sample in _scanned(opened, file):
            last = entries[-1]
            far = records - last[0] >= STRIDE_RECORDS or sample.offset - last[1] >= STRIDE_BYTES
            if records and far:
                entries.append((records, sample.offset, 1))
            records += 1
            end = max(sum(place) for place in sample.members.values())
    # Data is followed by zeros up to a whole block, which the last sample may lack.
    entries.append((records, min(file.size_bytes, -(-end // _BLOCK) * _BLOCK), 1))
    return RecordIndex(np.array(entries, np.int64))


def _first_columns(file: DataFile) -> tuple[str, ...]:
    with file.opened() as opened:
        refuse_compressed(file.path, opened.read(0, min(4, file.size_bytes)))
        for sample in _scanned(opened, file):
            return (KEY, *sample.members)
    raise UserError(
        f"{file.path} has no records", hint="its members need names such as 000.jpg and 000.cls"
    )


def _scanned(opened: OpenFile, file: DataFile) -> Iterator[_Sample]:
    """All samples of a file."""
    with opened.stream() as stream:
        yield from _samples(stream, file.path, file.size_bytes, whole=True)


def _samples(
    stream: IO[bytes], path: str, size_bytes: int, *, whole: bool = False
) -> Iterator[_Sample]:
    """All samples of the stream. A `whole` archive ends with its mark, a block of zeros.

    Raises UserError if the archive is damaged or ends early.
    """
    key, offset = "", 0
    members: dict[str, tuple[int, int]] = {}
    for member in _members(stream, path, size_bytes, whole=whole):
        name = _NAME.fullmatch(member.name)
        # Names such as `__meta__` are about the whole archive.
        if name is None or (name[1].startswith("__") and name[1].endswith("__")):
            continue
        suffix = name[2].lower()
        if members and name[1] != key:
            yield _Sample(key, offset, members)
            members = {}
        if not members:
            key, offset = name[1], member.offset
        if suffix in members:
            raise UserError(
                f"{path}: {member.name} is there twice in one sample",
                hint="write each member of a sample once",
            )
        members[suffix] = (member.offset_data, member.size)
    if members:
        yield _Sample(key, offset, members)


def _members(
    stream: IO[bytes], path: str, size_bytes: int, *, whole: bool
) -> Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps every header
                if member.issparse():
                    raise UserError(
                        f"{path}: {member.name} is stored as a sparse file",
                        hint="write the archive without --sparse",
                    )
                if member.offset_data + member.size > size_bytes:
                    raise UserError(
                        f"{path}: {member.name} at offset {member.offset}: the file ends inside it",
                        hint="the file is truncated: copy or write it again",
                    )
                if member.isreg():
                    yield member
            # tarfile takes a damaged header, and the end of the file, for the end of the archive.
            stream.seek(archive.offset)
            if whole and not _is_end(stream):
                raise UserError(
                    f"{path}: at offset {archive.offset}: neither a header nor the end mark",
                    hint="the file is truncated, damaged or several archives: write it again",
                )
    except tarfile.TarError as error:
        raise UserError(
            f"{path}: not a complete tar archive: {error}",
            hint="it is truncated, damaged or not a tar file: write it again",
        ) from error


def _is_end(stream: IO[bytes]) -> bool:
    """Whether zeros follow, at least a block of them, and nothing else."""
    rest = stream.read(_BLOCK)
    if len(rest) < _BLOCK:
        return False
    while rest:
        if any(rest):
            return False
        rest = stream.read(1 << 20)
    return True


def _block(file: DataFile, data: bytes, span: Span, columns: Sequence[str], number: int) -> Block:
    samples = list(_samples(io.BytesIO(data), file.path, len(data)))
    samples = samples[span.skip : span.skip + span.take]
    if len(samples) != span.take:
        raise UserError(f"{file.path}: at offset {span.begin}: the file changed")
    values: dict[str, list[bytes]] = {name: [] for name in columns}
    examples: list[str] = []
    good = 0
    for index, sample in enumerate(samples):
        missing = [name for name in columns if name != KEY and name not in sample.members]
        if missing:
            place = record_location(file.path, number + index)
            examples.append(f"{place} ({_shown(sample.key)}): it has no member .{missing[0]}")
            continue
        good += 1
        for name, column in values.items():
            column.append(_bytes(sample.key) if name == KEY else _data(data, sample, name))
    arrays = {name: _objects(column) for name, column in values.items()}
    return Block(arrays, span.take, span.take - good, tuple(examples[:_EXAMPLES]))


def _bytes(name: str) -> bytes:
    """A member's name as it is in the archive, in whatever encoding."""
    return name.encode("utf-8", "surrogateescape")


def _shown(name: str) -> str:
    return _bytes(name).decode("utf-8", "replace")


def _data(data: bytes, sample: _Sample, name: str) -> bytes:
    offset, size = sample.members[name]
    return data[offset : offset + size]


def _objects(values: Sequence[bytes]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array
