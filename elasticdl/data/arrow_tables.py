"""Formats of Arrow tables that are read in runs: row groups of Parquet, record batches of Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, Generic, TypeVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticdl.data.arrow_values import convert, is_list, numpy_name
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile
from elasticdl.data.places import record_location
from elasticdl.data.record_index import BLOCK_BYTES, BLOCK_RECORDS
from elasticdl.errors import UserError

_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Groups that are read at once: one, or small ones of BLOCK_RECORDS records together."""

    groups: range
    first: int
    last: int
    """Its records are [first, last)."""


def runs_of(rows: Iterable[int], sizes_bytes: Iterable[int] = ()) -> list[Run]:
    """The groups of these numbers of rows and, if known, bytes; small ones together."""
    runs: list[Run] = []
    first = size = 0
    for group, (count, count_bytes) in enumerate(
        zip(rows, chain(sizes_bytes, repeat(0)), strict=False)
    ):
        last = first + count
        size += count_bytes
        if runs and last - runs[-1].first <= BLOCK_RECORDS and size <= BLOCK_BYTES:
            runs[-1] = Run(range(runs[-1].groups.start, group + 1), runs[-1].first, last)
        else:
            runs.append(Run(range(group, group + 1), first, last))
            size = count_bytes
        first = last
    return runs


def metadata_of_schema(
    schema: pa.Schema, names: Sequence[str], lengths: Mapping[str, int], path: str
) -> Metadata:
    """The named columns; `lengths` are those of their lists.

    Raises UserError if a column has no NumPy form.
    """
    return Metadata(
        tuple(names),
        {name: numpy_name(schema.field(name), path, lengths.get(name)) for name in names},
    )


def chosen_columns(schema: pa.Schema, names: Sequence[str], path: str) -> tuple[str, ...]:
    """The names, or all if there are none. Raises UserError if the schema lacks one."""
    for name in names:
        if name not in schema.names:
            raise UserError(f"{path} has no column {name!r}; available: {', '.join(schema.names)}")
    return tuple(names) or tuple(schema.names)


@dataclass(frozen=True, slots=True)
class TableFile:
    """What the headers of a file say."""

    schema: pa.Schema
    runs: list[Run]


F = TypeVar("F", bound=TableFile)


class TableFormat(ABC, Generic[F]):
    """A format of files with a schema, whose tables are read in runs; see FileFormat."""

    def __init__(self, columns: Sequence[str] = (), fill_null: float | None = None) -> None:
        """No columns mean all. `fill_null` replaces nulls, which are bad records without it."""
        self._names = tuple(columns)
        self._tables = _TableBlocks(fill_null)
        self._lengths: dict[str, dict[str, int]] = {}
        self._files: dict[str, F] = {}

    def metadata(self, file: DataFile) -> Metadata:
        schema = self._headers(file).schema
        names = chosen_columns(schema, self._names, file.path)
        if file.path not in self._lengths:
            lists = [name for name in names if is_list(schema.field(name).type)]
            self._lengths[file.path] = {name: self._first_length(file, name) for name in lists}
        return metadata_of_schema(schema, names, self._lengths[file.path], file.path)

    def count(self, file: DataFile) -> int:
        runs = self._headers(file).runs
        return runs[-1].last if runs else 0

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        """See FileFormat: bad records are found as they are read."""
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        names = self.metadata(file).column_names
        return self._tables.blocks(
            file,
            self._headers(file).runs,
            partial(self._load, file, names),
            self._lengths[file.path],
            range(begin, end),
        )

    def place(self, file: DataFile, number: int) -> str:
        return record_location(file.path, number)

    def _headers(self, file: DataFile) -> F:
        if file.path not in self._files:
            self._files[file.path] = self._read_headers(file)
        return self._files[file.path]

    @abstractmethod
    def _read_headers(self, file: DataFile) -> F:
        """Raises UserError if the file is incomplete."""

    @abstractmethod
    def _load(self, file: DataFile, names: Sequence[str], run: Run) -> pa.Table:
        """The columns of one run. Raises UserError if the file is damaged."""

    @abstractmethod
    def _first_length(self, file: DataFile, name: str) -> int:
        """The length of the column's first list that is not null, which all others must equal.

        0 if there is none.
        """


@final
class _TableBlocks:
    """Cuts the tables of runs into blocks, and keeps the last ones, up to 256 MiB."""

    def __init__(self, fill_null: float | None) -> None:
        self._fill_null = fill_null
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._kept_bytes = 0

    def blocks(
        self,
        file: DataFile,
        runs: Sequence[Run],
        load: Callable[[Run], pa.Table],
        lengths: Mapping[str, int],
        span: range,
    ) -> Iterator[Block]:
        """The records of `span`. `load` reads a run; `lengths` are those of lists, by column."""
        begin, end = span.start, span.stop
        at = max(0, bisect_right(runs, begin, key=lambda run: run.first) - 1)
        for run in runs[at:]:
            if run.first >= end:
                return
            for start in range(max(begin, run.first), min(end, run.last), BLOCK_RECORDS):
                stop = min(end, run.last, start + BLOCK_RECORDS)
                table = self._table(file, run, load)
                yield block_of(
                    table.slice(start - run.first, stop - start),
                    lengths,
                    self._fill_null,
                    partial(_location, file.path, start),
                )

    def _table(self, file: DataFile, run: Run, load: Callable[[Run], pa.Table]) -> pa.Table:
        key = (file.path, run.first)
        if key not in self._tables:
            table = self._tables[key] = load(run)
            self._kept_bytes += table.nbytes
            while len(self._tables) > 1 and self._kept_bytes > _KEPT_BYTES:
                # The least recently used: `move_to_end` keeps the order.
                self._kept_bytes -= self._tables.popitem(last=False)[1].nbytes
        self._tables.move_to_end(key)
        return self._tables[key]


def block_of(
    table: pa.Table,
    lengths: Mapping[str, int],
    fill_null: float | None,
    place: Callable[[int], str],
) -> Block:
    """The good rows of a table; `place` says where a row is, by its number from 0."""
    good = np.ones(table.num_rows, bool)
    examples: list[str] = []
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        chunked = table.column(name).combine_chunks()
        array = chunked.combine_chunks() if isinstance(chunked, pa.ChunkedArray) else chunked
        columns[name], fits, why = convert(array, fill_null, lengths.get(name))
        for row in np.flatnonzero(~fits & good)[: 3 - len(examples)]:
            examples.append(f"{place(int(row))}: column {name!r} {why}")
        good &= fits
    bad = int(np.count_nonzero(~good))
    if bad:
        columns = {name: column[good] for name, column in columns.items()}
    return Block(columns, table.num_rows, bad, tuple(examples))


def _location(path: str, first: int, row: int) -> str:
    return record_location(path, first + row)
