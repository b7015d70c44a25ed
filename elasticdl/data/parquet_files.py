"""Parquet: records are columns as NumPy arrays; see `arrow_values` for their types."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasticdl.data.arrow_tables import Run, TableFile, TableFormat, runs_of
from elasticdl.data.files import DataFile
from elasticdl.errors import UserError


@dataclass(frozen=True, slots=True)
class _ParquetFile(TableFile):
    """What a file's footer says. The footer of many row groups takes long to parse."""

    footer: pq.FileMetaData


@final
class ParquetFormat(TableFormat[_ParquetFile]):
    """Parquet files; see FileFormat.

    The smallest readable part is a row group; up to 256 MiB of decoded groups are cached.
    """

    def _read_headers(self, file: DataFile) -> _ParquetFile:
        try:
            with _parquet(file) as opened:
                footer = opened.metadata
                rows = (footer.row_group(group).num_rows for group in range(footer.num_row_groups))
                return _ParquetFile(opened.schema_arrow, runs_of(rows), footer)
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{file.path}: not a complete Parquet file: {error}",
                hint="it is truncated or not a Parquet file: write it again",
            ) from error

    def _load(self, file: DataFile, names: Sequence[str], run: Run) -> pa.Table:
        columns = list(names)
        try:
            with _parquet(file, self._headers(file).footer) as opened:
                return opened.read_row_groups(
                    list(run.groups), columns=columns, use_threads=False
                ).select(columns)
        except (pa.ArrowException, OSError) as error:
            begin, end = run.groups[0], run.groups[-1]
            groups = f"row group {begin}" if begin == end else f"row groups {begin} to {end}"
            raise UserError(
                f"{file.path}: cannot read {groups}: {error}",
                hint="the file is damaged: write it again",
            ) from error

    def _first_length(self, file: DataFile, name: str) -> int:
        with _parquet(file) as opened:
            for batch in opened.iter_batches(batch_size=1024, columns=[name], use_threads=False):
                lengths = pc.list_value_length(batch.column(0)).drop_null()
                if len(lengths):
                    return int(lengths[0].as_py())
        return 0


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
