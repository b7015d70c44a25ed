r"""CSV (RFC 4180): records are rows of UTF-8 strings, object[n, columns] of bytes.

A quote is special only at the beginning of a field. Rows end at \n, \r\n or \r, and empty lines are
ignored. A row with a wrong number of fields, or with text behind a closing quote, is a bad record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    describe,
    from_native,
)
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.native import _native

_BOM = b"\xef\xbb\xbf"
_MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How rows are written; `column_names` replace those of the header."""

    delimiter: str = ","
    header: bool = True
    quoting: bool = True
    column_names: tuple[str, ...] = ()


@final
class CsvFormat:
    """CSV files; see FileFormat."""

    def __init__(self, dialect: CsvDialect) -> None:
        self._dialect = dialect
        self._indexes: dict[str, RecordIndex] = {}

    def metadata(self, file: DataFile) -> Metadata:
        """Names from `column_names`, else from the header, else `column_0` and so on."""
        dialect = self._dialect
        first = self._first_row(file)
        if dialect.column_names and len(first) != len(dialect.column_names):
            raise UserError(
                f"{file.path}:1: the first row has {len(first)} fields, but column_names has"
                f" {len(dialect.column_names)}",
                hint="name each column, in order",
            )
        if dialect.column_names:
            return Metadata(dialect.column_names)
        if not dialect.header:
            return Metadata(tuple(f"column_{i}" for i in range(len(first))))
        return Metadata(_names(file, first))

    def count(self, file: DataFile) -> int:
        return self._index(file).records - self._header_rows

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        index = self._index(file)
        return index.bad, index.examples

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        index = self._index(file)
        spans = list(index.spans(begin + self._header_rows, end + self._header_rows))
        with file.opened() as opened:
            parts = opened.ranges((span.begin, span.end) for span in spans)
            for span, data in zip(spans, parts, strict=True):
                yield self._block(file, data, span, index.columns)

    def place(self, file: DataFile, number: int) -> str:
        index, dialect = self._index(file), self._dialect
        row = number + self._header_rows
        span = next(index.spans(row, row + 1))
        with file.opened() as opened:
            data = opened.read(span.begin, span.end)
        # Expecting one column too many makes every row bad, and bad rows come with their lines.
        columns = index.columns + 1
        out = np.empty((span.take, columns), object)
        _, _, refused = _native.csv_rows(
            data, dialect.delimiter, dialect.quoting, span.skip, span.line, columns, out
        )
        return f"{file.path}:{refused[0][0]}" if refused else record_location(file.path, number)

    @property
    def _header_rows(self) -> int:
        return int(self._dialect.header)

    def _block(self, file: DataFile, data: bytes, span: Span, columns: int) -> Block:
        rows = np.empty((span.take, columns), object)
        dialect = self._dialect
        good, seen, bad = _native.csv_rows(
            data, dialect.delimiter, dialect.quoting, span.skip, span.line, columns, rows
        )
        # The same size and time do not prove the same content: a writer can restore both.
        if seen != span.take:
            raise UserError(
                f"{file.path}:{span.line}: the file changed: it has {amount(seen, 'row')} here,"
                f" its index {span.take}"
            )
        examples = tuple(describe(file, *row) for row in bad[:3])
        return Block(rows[:good], span.take, len(bad), examples)

    def _index(self, file: DataFile) -> RecordIndex:
        if file.path not in self._indexes:
            dialect = self._dialect
            options = f"csv {dialect.delimiter!r} {dialect.quoting} {len(dialect.column_names)}"
            self._indexes[file.path] = cached(file, options, self._build)
        return self._indexes[file.path]

    def _build(self, file: DataFile) -> RecordIndex:
        dialect = self._dialect
        with file.opened() as opened:
            start = opened.read(0, min(len(_BOM), file.size_bytes))
            # Excel writes a BOM; as part of the first field it would change a column name.
            begin = len(_BOM) if start == _BOM else 0
            facts = _native.csv_index(
                opened.native, begin, file.size_bytes, dialect.delimiter, dialect.quoting,
                len(dialect.column_names), STRIDE_RECORDS, STRIDE_BYTES,
            )  # fmt: skip
        return from_native(file, facts)

    def _first_row(self, file: DataFile) -> list[bytes]:
        with file.opened() as opened:
            size = 64 << 10
            while True:
                end = min(size, file.size_bytes)
                data = opened.read(0, end)
                _refuse_other_text(file, data)
                final = end == file.size_bytes
                row = _native.csv_first_row(
                    data.removeprefix(_BOM), final, self._dialect.delimiter, self._dialect.quoting
                )
                if row is not None:
                    return row
                if final or size > _MAX_HEADER_BYTES:
                    raise UserError(
                        f"{file.path}:1: the first row is missing or does not end",
                        hint="check that this is a CSV file",
                    )
                # Most headers are short, but thousands of columns need more.
                size *= 4


def _names(file: DataFile, header: list[bytes]) -> tuple[str, ...]:
    no_header = 'if the file has no header: --data-reader-params "header=false"'
    try:
        names = tuple(name.decode() for name in header)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file.path}:1: the header is not UTF-8: {error.object!r}",
            hint="convert the file to UTF-8",
        ) from error
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(
            f"{file.path}:1: the header has column {doubled[0]!r} more than once", hint=no_header
        )
    # Without this check a file without a header would silently lose its first record.
    if 2 * sum(map(_is_number, names)) >= len(names):
        raise UserError(
            f"{file.path}:1: the header looks like data: {', '.join(names[:8])}",
            hint=f"{no_header}; otherwise name the columns with column_names=a,b,…",
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_other_text(file: DataFile, data: bytes) -> None:
    refuse_compressed(file.path, data)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(
            f"{file.path} is UTF-16, expected UTF-8",
            hint=f"convert it: iconv -f UTF-16 -t UTF-8 {file.path} > NEW.csv",
        )
