"""Parquet: records are columns as NumPy arrays.

Numbers and booleans keep their type. Dates and times become int64, decimals float64, strings and
binary bytes (object[n]), lists of one length [n, length]. A null is b"" in strings and NaN in
floating point. In other columns it makes the record bad, unless `fill_null` gives a value for it.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile
from elasticdl.data.places import record_location
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.errors import UserError

_KEPT_BYTES = 256 << 20
_Lists: TypeAlias = "pa.ListArray[Any] | pa.LargeListArray[Any] | pa.FixedSizeListArray[Any, Any]"


@dataclass(frozen=True, slots=True)
class _Run:
    """Row groups that are read at once: one, or small ones with BLOCK_RECORDS records together."""

    groups: range
    first: int
    last: int
    """Its records are [first, last)."""

    def __str__(self) -> str:
        begin, end = self.groups[0], self.groups[-1]
        return f"row group {begin}" if begin == end else f"row groups {begin} to {end}"


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file's footer says. The footer of many row groups takes long to parse."""

    footer: pq.FileMetaData
    schema: pa.Schema
    runs: list[_Run]


@final
class ParquetFormat:
    """Parquet files; see FileFormat.

    The smallest readable part is a row group; up to 256 MiB of decoded groups are cached.
    """

    def __init__(self, columns: Sequence[str] = (), fill_null: float | None = None) -> None:
        self._names = tuple(columns)
        self._fill_null = fill_null
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._kept_bytes = 0
        self._lengths: dict[str, dict[str, int]] = {}
        self._footers: dict[str, _Footer] = {}

    def metadata(self, file: DataFile) -> Metadata:
        schema = self._open(file).schema
        names = self._names or tuple(schema.names)
        for name in names:
            if name not in schema.names:
                raise UserError(
                    f"{file.path} has no column {name!r}; available: {', '.join(schema.names)}"
                )
        if file.path not in self._lengths:
            lists = [name for name in names if _is_list(schema.field(name).type)]
            self._lengths[file.path] = {name: _first_length(file, name) for name in lists}
        lengths = self._lengths[file.path]
        return Metadata(
            names,
            {name: _numpy_name(schema.field(name), file.path, lengths.get(name)) for name in names},
        )

    def count(self, file: DataFile) -> int:
        return int(self._open(file).footer.num_rows)

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        runs = self._open(file).runs
        at = max(0, bisect_right(runs, begin, key=lambda run: run.first) - 1)
        for run in runs[at:]:
            if run.first >= end:
                return
            for start in range(max(begin, run.first), min(end, run.last), BLOCK_RECORDS):
                stop = min(end, run.last, start + BLOCK_RECORDS)
                table = self._table(file, run)
                yield self._block(file, table.slice(start - run.first, stop - start), start)

    def place(self, file: DataFile, number: int) -> str:
        return record_location(file.path, number)

    def _open(self, file: DataFile) -> _Footer:
        if file.path not in self._footers:
            try:
                with _parquet(file) as opened:
                    self._footers[file.path] = _Footer(
                        opened.metadata, opened.schema_arrow, _runs(opened.metadata)
                    )
            except (pa.ArrowException, OSError) as error:
                raise UserError(
                    f"{file.path}: not a complete Parquet file: {error}",
                    hint="it is truncated or not a Parquet file: write it again",
                ) from error
        return self._footers[file.path]

    def _table(self, file: DataFile, run: _Run) -> pa.Table:
        key = (file.path, run.first)
        if key not in self._tables:
            names = list(self.metadata(file).column_names)
            try:
                with _parquet(file, self._open(file).footer) as opened:
                    table = opened.read_row_groups(
                        list(run.groups), columns=names, use_threads=False
                    ).select(names)
            except (pa.ArrowException, OSError) as error:
                raise UserError(
                    f"{file.path}: cannot read {run}: {error}",
                    hint="the file is damaged: write it again",
                ) from error
            self._tables[key] = table
            self._kept_bytes += table.nbytes
            while len(self._tables) > 1 and self._kept_bytes > _KEPT_BYTES:
                # The least recently used: `move_to_end` keeps the order.
                self._kept_bytes -= self._tables.popitem(last=False)[1].nbytes
        self._tables.move_to_end(key)
        return self._tables[key]

    def _block(self, file: DataFile, table: pa.Table, first: int) -> Block:
        good = np.ones(table.num_rows, bool)
        examples: list[str] = []
        columns: dict[str, NDArray[Any]] = {}
        for name in table.column_names:
            chunked = table.column(name).combine_chunks()
            array = chunked.combine_chunks() if isinstance(chunked, pa.ChunkedArray) else chunked
            columns[name], fits, why = _convert(
                array, self._fill_null, self._lengths[file.path].get(name)
            )
            for row in np.flatnonzero(~fits & good)[: 3 - len(examples)]:
                examples.append(f"{file.path}: record {first + int(row)}: column {name!r} {why}")
            good &= fits
        bad = int(np.count_nonzero(~good))
        if bad:
            columns = {name: column[good] for name, column in columns.items()}
        return Block(columns, table.num_rows, bad, tuple(examples))


@contextmanager
def _parquet(file: DataFile, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    with file.opened() as opened:
        if isinstance(opened.native, int):
            with pq.ParquetFile(file.path, metadata=footer) as parquet:
                yield parquet
            return
        # Through our stream, for its retries. `pre_buffer` joins ranges into few large requests.
        with (
            opened.stream() as stream,
            pq.ParquetFile(
                pa.PythonFile(cast(io.IOBase, stream), mode="r"), metadata=footer, pre_buffer=True
            ) as parquet,
        ):
            yield parquet


def _runs(footer: pq.FileMetaData) -> list[_Run]:
    """The row groups of a file, those of few records together."""
    runs: list[_Run] = []
    first = 0
    for group in range(footer.num_row_groups):
        last = first + footer.row_group(group).num_rows
        if runs and last - runs[-1].first <= BLOCK_RECORDS:
            runs[-1] = _Run(range(runs[-1].groups.start, group + 1), runs[-1].first, last)
        else:
            runs.append(_Run(range(group, group + 1), first, last))
        first = last
    return runs


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The Arrow type that values of `kind` are converted to first; None if there is none."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return pa.large_binary()
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_temporal(kind):
        return pa.int64()
    return None


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _numpy_name(column: pa.Field[Any], path: str, length: int | None) -> str:
    kind = column.type.value_type if _is_list(column.type) else column.type
    plain = _plain_type(kind)
    if plain is None:
        raise UserError(
            f"{path}: column {column.name!r} has type {column.type}, which has no NumPy form",
            hint='name the columns to read: --data-reader-params "columns=a,b"',
        )
    name = "object" if plain == pa.large_binary() else str(np.dtype(plain.to_pandas_dtype()))
    return name if length is None else f"{name}[{length}]"


def _first_length(file: DataFile, name: str) -> int:
    """The length of the column's first list that is not null, which all others must equal.

    0 if there is none.
    """
    with _parquet(file) as opened:
        for batch in opened.iter_batches(batch_size=1024, columns=[name], use_threads=False):
            lengths = pc.list_value_length(batch.column(0)).drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
    return 0


def _convert(
    array: pa.Array[Any], fill_null: float | None, length: int | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """Values [n, ...], which of them are usable [n], and what is wrong with the others."""
    if isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return _convert_lists(array, fill_null, length or 0)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    plain = _plain_type(array.type)
    if plain is None:
        raise UserError(f"values of type {array.type} have no NumPy form")
    if array.type != plain:
        # Arrow casts 32-bit times to int32 only.
        if pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
            array = array.cast(pa.int32())
        array = array.cast(plain)
    # Every row fits unless a null has no replacement.
    everything = np.ones(len(array), bool)
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False), everything, ""
    fill = b"" if plain == pa.large_binary() else fill_null
    if fill is None and pa.types.is_floating(plain):
        fill = float("nan")
    fits = everything if fill is not None else ~array.is_null().to_numpy(zero_copy_only=False)
    filled = array.fill_null(pa.scalar(fill if fill is not None else 0).cast(plain))
    return filled.to_numpy(zero_copy_only=False), fits, "is null"


def _convert_lists(
    array: _Lists, fill_null: float | None, length: int
) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """Lists of this length as [n, length]; others do not fit."""
    lengths = pc.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
    fits = lengths == length
    # Filter first: `flatten` drops list boundaries, so every list must have the same length.
    values, value_fits, why = _convert(array.filter(pa.array(fits)).flatten(), fill_null)
    result = np.zeros((len(array), length), values.dtype)
    count = int(np.count_nonzero(fits))
    result[fits] = values.reshape(count, length)
    fits[fits] = value_fits.reshape(count, length).all(axis=1)
    return (
        result,
        fits,
        f"is not a list of {length} values" + (f", or one of them {why}" if why else ""),
    )
