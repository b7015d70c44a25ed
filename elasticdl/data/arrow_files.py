"""Arrow IPC files and streams: records are columns; see `arrow_values` for their types.

Feather (version 2) is the file format. Hugging Face `datasets` writes streams. A column of structs
becomes one column for each of its fields: `image.bytes`, `image.path`.

One pass over the headers of messages, which skips their bodies, finds where record batches begin.
The footer of a file lists them; a stream is a chain of messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.arrow_messages import (
    END_MARK,
    MAGIC,
    Kind,
    batches_of,
    header_bytes,
    message_of,
)
from elasticdl.data.arrow_tables import Run, TableFile, TableFormat, runs_of
from elasticdl.data.files import DataFile, OpenFile
from elasticdl.data.record_index import RecordIndex, cached
from elasticdl.data.seekable import SeekableFile
from elasticdl.errors import UserError

_TAIL = struct.Struct("<i6s")
"""The end of a file: the size of its footer, and the magic."""
_WRITE_AGAIN = "it is damaged or truncated, or its writer was not closed: write it again"


@dataclass(frozen=True, slots=True)
class _ArrowFile(TableFile):
    """A file whose headers were read."""

    is_file: bool
    known: bytes
    """Of a file its footer; of a stream what is before its first batch: schema, dictionaries."""
    spans: list[tuple[int, int]]
    """(begin, end) of each record batch."""


@final
class ArrowFormat(TableFormat[_ArrowFile]):
    """Arrow IPC files and streams; see FileFormat.

    The smallest readable part is a record batch; up to 256 MiB of them are cached.
    """

    def _read_headers(self, file: DataFile) -> _ArrowFile:
        entries = cached(file, "arrow", _build).entries
        spans = list(zip(entries[:-1, 1].tolist(), entries[:-1, 2].tolist(), strict=True))
        sizes = [end - begin for begin, end in spans]
        try:
            with file.opened() as opened:
                is_file = _is_file(opened, file)
                begin = _footer_begin(file, opened) if is_file else 0
                known = opened.read(begin, file.size_bytes if is_file else int(entries[0, 1]))
            with _reader(file, known, (0, b""), is_file=is_file) as reader:
                schema = reader.schema.empty_table().flatten().schema
        except (pa.ArrowException, OSError, ValueError, struct.error) as error:
            raise UserError(
                f"{file.path}: cannot read the schema: {error}", hint=_WRITE_AGAIN
            ) from error
        runs = runs_of(np.diff(entries[:, 0]).tolist(), sizes)
        return _ArrowFile(schema, runs, is_file, known, spans)

    def _load(self, file: DataFile, names: Sequence[str], run: Run) -> pa.Table:
        known = self._headers(file)
        spans = known.spans[run.groups.start : run.groups.stop]
        begin = min(begin for begin, _ in spans)
        with file.opened() as opened:
            data = opened.read(begin, max(end for _, end in spans))
        try:
            with _reader(file, known.known, (begin, data), is_file=known.is_file) as reader:
                table = (
                    reader.read_all()
                    if isinstance(reader, pa.RecordBatchStreamReader)
                    else pa.Table.from_batches(map(reader.get_batch, run.groups), reader.schema)
                )
            # Offsets of strings and lists that are damaged would lead out of the memory.
            table.validate(full=True)
            if table.num_rows != run.last - run.first:
                raise pa.ArrowInvalid(f"{table.num_rows} records, expected {run.last - run.first}")
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{file.path}: cannot read records {run.first} to {run.last}: {error}",
                hint="the file is damaged: write it again",
            ) from error
        return table.flatten().select(list(names))

    def _first_length(self, file: DataFile, name: str) -> int:
        for run in self._headers(file).runs:
            lengths = pc.list_value_length(self._load(file, [name], run).column(0)).drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
        return 0


@final
class _Pieces(SeekableFile):
    """A file of which some pieces, as (offset, bytes), are in memory; others are read."""

    def __init__(self, file: DataFile, pieces: Sequence[tuple[int, bytes]]) -> None:
        super().__init__(file.size_bytes)
        self._file = file
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        """See `io.RawIOBase.read`. Raises as `OpenFile.read` does."""
        begin = self._at
        end = self._size if size < 0 else min(begin + size, self._size)
        if end <= begin:
            return b""
        self._at = end
        for first, piece in self._pieces:
            if first <= begin and end <= first + len(piece):
                return piece[begin - first : end - first]
        with self._file.opened() as opened:
            return opened.read(begin, end)


@contextmanager
def _reader(
    file: DataFile, known: bytes, data: tuple[int, bytes], *, is_file: bool
) -> Iterator[pa.RecordBatchStreamReader | pa.RecordBatchFileReader]:
    """Reads these batches of a stream with these first messages, or of a file with this footer."""
    if not is_file:
        with pa.ipc.open_stream(known + data[1]) as stream_reader:
            yield stream_reader
        return
    pieces = _Pieces(file, (data, (file.size_bytes - len(known), known)))
    with pa.ipc.open_file(pa.PythonFile(pieces, mode="r")) as reader:
        yield reader


def _build(file: DataFile) -> RecordIndex:
    """The entry (first record, begin, end) of each record batch, and one for the end of all.

    Raises UserError if the file is incomplete, or a stream with dictionaries after its first batch.
    """
    entries: list[tuple[int, int, int]] = []
    records = at = 0
    with file.opened() as opened:
        scan = _scan_file if _is_file(opened, file) else _scan_stream
        for begin, rows, at in scan(file, opened):
            if rows is not None:
                entries.append((records, begin, at))
                records += rows
    entries.append((records, at, at))
    return RecordIndex(np.array(entries, np.int64))


def _is_file(opened: OpenFile, file: DataFile) -> bool:
    return opened.read(0, min(len(MAGIC), file.size_bytes)) == MAGIC


def _footer_begin(file: DataFile, opened: OpenFile) -> int:
    """Where a file's footer begins. Raises ValueError, struct.error."""
    size = file.size_bytes
    footer_bytes, magic = _TAIL.unpack(opened.read(max(0, size - _TAIL.size), size))
    if magic != MAGIC:
        raise ValueError(f"it does not end with {MAGIC.decode()}")
    begin = size - _TAIL.size - int(footer_bytes)
    if not len(MAGIC) <= begin <= size - _TAIL.size:
        raise ValueError(f"a footer of {footer_bytes} bytes")
    return begin


def _scan_file(file: DataFile, opened: OpenFile) -> Iterator[tuple[int, int, int]]:
    """(begin, rows, end) of each record batch of a file, by its footer."""
    try:
        begin = _footer_begin(file, opened)
        places = batches_of(opened.read(begin, file.size_bytes - _TAIL.size))
        if any(place.end > begin for place in places):
            raise ValueError("a record batch does not fit into the file")
        headers = opened.ranges((each.offset, each.offset + each.header_bytes) for each in places)
        for place, header in zip(places, headers, strict=True):
            header_bytes(header)  # refuses what is no message
            yield place.offset, message_of(header[len(END_MARK) :]).rows, place.end
    except (ValueError, struct.error) as error:
        raise UserError(
            f"{file.path}: not a complete file of Arrow IPC: {error}", hint=_WRITE_AGAIN
        ) from error


def _scan_stream(file: DataFile, opened: OpenFile) -> Iterator[tuple[int, int | None, int]]:
    """(begin, rows, end) of each message of a stream; rows are None if it is no record batch."""
    at, batches = 0, 0
    with opened.stream() as stream:
        while True:
            stream.seek(at)
            start = stream.read(len(END_MARK))
            try:
                if len(start) < len(END_MARK):
                    raise ValueError("the file ends without its end mark")
                size = header_bytes(start)
                if size == 0:
                    break
                message = message_of(stream.read(min(size, file.size_bytes)))
                end = at + len(start) + size + message.body_bytes
                if end > file.size_bytes:
                    raise ValueError("the file ends inside a message")
            except (ValueError, struct.error) as error:
                raise UserError(
                    f"{file.path}: at offset {at}: {error}", hint=_WRITE_AGAIN
                ) from error
            if message.kind is Kind.BATCH:
                batches += 1
            elif batches:
                raise UserError(
                    f"{file.path}: at offset {at}: a dictionary comes after the first record"
                    " batch, so batches cannot be read alone",
                    hint="write a file, not a stream, with one dictionary per column"
                    " (unify_dictionaries)",
                )
            yield at, message.rows if message.kind is Kind.BATCH else None, end
            at = end
    if at + len(END_MARK) != file.size_bytes:
        raise UserError(
            f"{file.path}: at offset {at}: the stream ends, but the file continues",
            hint="give each stream a file of its own",
        )
    yield at, None, at
