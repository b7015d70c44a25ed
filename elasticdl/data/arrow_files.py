"""Arrow IPC files and streams: records are columns; see `arrow_values` for their types.

Feather (version 2) is the file format. Hugging Face `datasets` writes streams. A column of structs
becomes one column for each of its fields: `image.bytes`, `image.path`.

Both formats are read as a stream: messages one after another, which the format of files permits.
One pass over the headers of messages, which skips their bodies, finds where record batches begin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.arrow_tables import (
    Run,
    TableBlocks,
    chosen_columns,
    lists_of,
    metadata_of_schema,
    runs_of,
)
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile
from elasticdl.data.places import record_location
from elasticdl.data.record_index import RecordIndex, cached
from elasticdl.errors import UserError

MAGIC = b"ARROW1"
CONTINUATION = b"\xff\xff\xff\xff"
END_MARK = CONTINUATION + bytes(4)
_START_OF_FILE = 8
"""Where the first message of a file is: after the magic and its padding."""
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_WRITE_AGAIN = "it is truncated, or its writer was not closed: write it again"


@dataclass(frozen=True, slots=True)
class _Message:
    """The header of a message: what it is, its rows if it is a batch, and the bytes behind it."""

    kind: int
    rows: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file whose headers were read."""

    prefix: bytes
    """The messages before the first record batch: the schema, and dictionaries."""
    schema: pa.Schema
    offsets: list[int]
    """Where each record batch begins, and the end of the last one."""
    runs: list[Run]


@final
class ArrowFormat:
    """Arrow IPC files and streams; see FileFormat.

    The smallest readable part is a record batch; up to 256 MiB of them are cached.
    """

    def __init__(self, columns: Sequence[str] = (), fill_null: float | None = None) -> None:
        self._names = tuple(columns)
        self._tables = TableBlocks(fill_null)
        self._lengths: dict[str, dict[str, int]] = {}
        self._files: dict[str, _Opened] = {}

    def metadata(self, file: DataFile) -> Metadata:
        schema = self._open(file).schema
        names = chosen_columns(schema, self._names, file.path)
        if file.path not in self._lengths:
            self._lengths[file.path] = {
                name: self._first_length(file, name) for name in lists_of(schema, names)
            }
        return metadata_of_schema(schema, names, self._lengths[file.path], file.path)

    def count(self, file: DataFile) -> int:
        runs = self._open(file).runs
        return runs[-1].last if runs else 0

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        names = self.metadata(file).column_names
        return self._tables.blocks(
            file,
            self._open(file).runs,
            partial(self._load, file, names),
            self._lengths[file.path],
            range(begin, end),
        )

    def place(self, file: DataFile, number: int) -> str:
        return record_location(file.path, number)

    def _open(self, file: DataFile) -> _Opened:
        if file.path not in self._files:
            entries = cached(file, "arrow", _build).entries
            offsets = entries[:, 1].tolist()
            with file.opened() as opened:
                beginning = opened.read(0, offsets[0])
            prefix = beginning[_START_OF_FILE if beginning.startswith(MAGIC) else 0 :]
            try:
                schema = pa.ipc.open_stream(prefix).schema.empty_table().flatten().schema
            except (pa.ArrowException, OSError) as error:
                raise UserError(
                    f"{file.path}: cannot read the schema: {error}", hint=_WRITE_AGAIN
                ) from error
            runs = runs_of(np.diff(entries[:, 0]).tolist(), np.diff(entries[:, 1]).tolist())
            self._files[file.path] = _Opened(prefix, schema, offsets, runs)
        return self._files[file.path]

    def _load(self, file: DataFile, names: Sequence[str], run: Run) -> pa.Table:
        opened_file = self._open(file)
        begin, end = (opened_file.offsets[group] for group in (run.groups.start, run.groups.stop))
        with file.opened() as opened:
            data = opened.read(begin, end)
        try:
            with pa.ipc.open_stream(b"".join((opened_file.prefix, data))) as stream:
                table = stream.read_all().flatten().select(list(names))
            # Offsets of strings and lists that are damaged would lead out of the memory.
            table.validate(full=True)
            if table.num_rows != run.last - run.first:
                raise pa.ArrowInvalid(f"{table.num_rows} records, expected {run.last - run.first}")
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{file.path}: cannot read records {run.first} to {run.last}: {error}",
                hint="the file is damaged: write it again",
            ) from error
        return table

    def _first_length(self, file: DataFile, name: str) -> int:
        """The length of the column's first list that is not null; 0 if there is none."""
        for run in self._open(file).runs:
            lengths = pc.list_value_length(self._load(file, [name], run).column(0)).drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
        return 0


def _build(file: DataFile) -> RecordIndex:
    """The entry (first record, offset, number) of each record batch, and one for the end.

    Raises UserError if the file is incomplete, or has dictionaries after its first batch.
    """
    entries: list[tuple[int, int, int]] = []
    with file.opened() as opened, opened.stream() as stream:
        in_file = stream.read(len(MAGIC)) == MAGIC
        at, records = _START_OF_FILE if in_file else 0, 0
        if in_file and opened.read(file.size_bytes - len(MAGIC), file.size_bytes) != MAGIC:
            raise UserError(
                f"{file.path}: the file does not end with {MAGIC.decode()}", hint=_WRITE_AGAIN
            )
        while True:
            begin = at
            found = _read_message(file, stream, begin)
            if found is None:
                if not in_file and begin + len(END_MARK) != file.size_bytes:
                    raise UserError(
                        f"{file.path}: at offset {begin}: the stream ends, but the file goes on",
                        hint="give each stream a file of its own",
                    )
                break
            message, at = found
            if message.kind == _BATCH:
                entries.append((records, begin, len(entries)))
                records += message.rows
            elif entries:
                raise UserError(
                    f"{file.path}: at offset {begin}: a dictionary comes after the first record"
                    " batch, so batches cannot be read alone",
                    hint="write it again with one dictionary per column (unify_dictionaries)",
                )
        entries.append((records, begin, len(entries)))
    return RecordIndex(np.array(entries, np.int64))


def _read_message(file: DataFile, stream: IO[bytes], begin: int) -> tuple[_Message, int] | None:
    """The message at an offset, and where the next one is; None at the end of the stream.

    Raises UserError if it is no message, or not whole.
    """
    place = f"{file.path}: at offset {begin}"
    stream.seek(begin)
    start = stream.read(len(END_MARK))
    if len(start) < len(END_MARK):
        raise UserError(f"{place}: the file ends without its end mark", hint=_WRITE_AGAIN)
    if not start.startswith(CONTINUATION):
        raise UserError(
            f"{place}: not a message of Arrow IPC",
            hint="the file is damaged, no Arrow file, or older than Arrow 0.15: write it again",
        )
    size = int.from_bytes(start[4:], "little", signed=True)
    if size == 0:
        return None
    try:
        if not 0 < size <= file.size_bytes - begin:
            raise ValueError(f"a header of {size} bytes")
        message = _parse(stream.read(size))
        end = begin + len(start) + size + message.body_bytes
        if message.body_bytes < 0 or message.rows < 0 or end > file.size_bytes:
            raise ValueError(f"{message} does not fit into the file")
    except (ValueError, struct.error) as error:
        raise UserError(
            f"{place}: a message of Arrow IPC is damaged or cut off: {error}", hint=_WRITE_AGAIN
        ) from error
    return message, end


def _parse(data: bytes) -> _Message:
    """The header of a message, a flatbuffer: see Message.fbs of Arrow's format.

    Raises ValueError and struct.error for other bytes.
    """
    (root,) = struct.unpack_from("<I", data)
    kind_at, header_at, body_at = (_field(data, root, number) for number in (1, 2, 3))
    if not kind_at or not header_at:
        raise ValueError("no header")
    kind = data[kind_at] if kind_at < len(data) else 0
    if kind not in (_SCHEMA, _DICTIONARY, _BATCH):
        raise ValueError(f"a header of type {kind}")
    (to_header,) = struct.unpack_from("<I", data, header_at)
    rows_at = _field(data, header_at + to_header, 0) if kind == _BATCH else 0
    return _Message(
        kind,
        struct.unpack_from("<q", data, rows_at)[0] if rows_at else 0,
        struct.unpack_from("<q", data, body_at)[0] if body_at else 0,
    )


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    directory = table - back
    if directory < 0:
        raise ValueError("an offset before the beginning")
    (size,) = struct.unpack_from("<H", data, directory)
    if size < 4 + 2 * (number + 1):
        return 0
    (offset,) = struct.unpack_from("<H", data, directory + 4 + 2 * number)
    return table + int(offset) if offset else 0
