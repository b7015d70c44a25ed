"""Parquet: records are columns as NumPy arrays; see `arrow_values` for their types."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
from elasticdl.errors import UserError


@dataclass(frozen=True, slots=True)
class _Footer:
    """What a file's footer says. The footer of many row groups takes long to parse."""

    footer: pq.FileMetaData
    schema: pa.Schema
    runs: list[Run]


@final
class ParquetFormat:
    """Parquet files; see FileFormat.

    The smallest readable part is a row group; up to 256 MiB of decoded groups are cached.
    """

    def __init__(self, columns: Sequence[str] = (), fill_null: float | None = None) -> None:
        self._names = tuple(columns)
        self._tables = TableBlocks(fill_null)
        self._lengths: dict[str, dict[str, int]] = {}
        self._footers: dict[str, _Footer] = {}

    def metadata(self, file: DataFile) -> Metadata:
        schema = self._open(file).schema
        names = chosen_columns(schema, self._names, file.path)
        if file.path not in self._lengths:
            self._lengths[file.path] = {
                name: _first_length(file, name) for name in lists_of(schema, names)
            }
        return metadata_of_schema(schema, names, self._lengths[file.path], file.path)

    def count(self, file: DataFile) -> int:
        return int(self._open(file).footer.num_rows)

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        names = list(self.metadata(file).column_names)
        return self._tables.blocks(
            file,
            self._open(file).runs,
            partial(self._load, file, names),
            self._lengths[file.path],
            range(begin, end),
        )

    def place(self, file: DataFile, number: int) -> str:
        return record_location(file.path, number)

    def _open(self, file: DataFile) -> _Footer:
        if file.path not in self._footers:
            try:
                with _parquet(file) as opened:
                    footer = opened.metadata
                    rows = (
                        footer.row_group(group).num_rows for group in range(footer.num_row_groups)
                    )
                    self._footers[file.path] = _Footer(footer, opened.schema_arrow, runs_of(rows))
            except (pa.ArrowException, OSError) as error:
                raise UserError(
                    f"{file.path}: not a complete Parquet file: {error}",
                    hint="it is truncated or not a Parquet file: write it again",
                ) from error
        return self._footers[file.path]

    def _load(self, file: DataFile, names: list[str], run: Run) -> pa.Table:
        try:
            with _parquet(file, self._open(file).footer) as opened:
                return opened.read_row_groups(
                    list(run.groups), columns=names, use_threads=False
                ).select(names)
        except (pa.ArrowException, OSError) as error:
            begin, end = run.groups[0], run.groups[-1]
            groups = f"row group {begin}" if begin == end else f"row groups {begin} to {end}"
            raise UserError(
                f"{file.path}: cannot read {groups}: {error}",
                hint="the file is damaged: write it again",
            ) from error


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
