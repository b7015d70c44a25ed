"""Columns of NumPy data, in a file or in memory: arrays with one record per item of axis 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataFile, check_within, fingerprints
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.errors import UserError
from elasticdl.shard import Shard, Source


class Column(Protocol):
    """An array [records, ...] with readable ranges."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[records, ...]."""

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Items [begin, end) of the first axis."""


@final
@dataclass(frozen=True, slots=True)
class StoredColumn:
    """An uncompressed array in C order, in a file from `offset` on."""

    file: DataFile
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Read only these items. Raises UserError if the file has become too short."""
        item_bytes = int(self.dtype.itemsize * np.prod(self.shape[1:], dtype=np.int64))
        with self.file.opened() as opened:
            data = opened.read(self.offset + begin * item_bytes, self.offset + end * item_bytes)
        return np.frombuffer(data, self.dtype).reshape(end - begin, *self.shape[1:])


@final
@dataclass(frozen=True, slots=True, eq=False)
class LoadedColumn:
    """An array in memory."""

    array: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """A view of these items."""
        return self.array[begin:end]


def records_of(columns: Mapping[str, Column], place: str) -> int:
    """The common number of records of all columns.

    Raises UserError if lengths differ, or if a column has no first axis or holds Python objects.
    """
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        if column.dtype.hasobject:
            raise UserError(
                f"{place}: array {name!r} holds Python objects",
                hint="save it with a numeric, boolean or bytes dtype; objects would need pickle",
            )
        if not column.shape:
            raise UserError(
                f"{place}: array {name!r} is a single value; expected [records, ...]",
                hint='select the other arrays with --data-reader-params "columns=a,b"',
            )
        lengths[name] = column.shape[0]
    if not lengths:
        raise UserError(f"{place} has no arrays")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise UserError(
            f"{place}: arrays differ in their number of records: {listed}",
            hint="all arrays need first axes of the same length",
        )
    return next(iter(lengths.values()))


def metadata_of(columns: Mapping[str, Column]) -> Metadata:
    """Names and dtypes."""
    return Metadata(tuple(columns), {name: str(column.dtype) for name, column in columns.items()})


def blocks_of(columns: Mapping[str, Column], begin: int, end: int) -> Iterator[Block]:
    """Records [begin, end) in blocks of BLOCK_RECORDS."""
    for start in range(begin, end, BLOCK_RECORDS):
        stop = min(end, start + BLOCK_RECORDS)
        yield Block(
            {name: column.read(start, stop) for name, column in columns.items()}, stop - start
        )


def select(columns: Mapping[str, Column], names: Sequence[str], place: str) -> dict[str, Column]:
    """The named columns, or all if there are no names."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise UserError(
            f"{place} has no array {missing[0]!r}; available: {', '.join(columns) or 'none'}"
        )
    return {name: columns[name] for name in names or columns}


@final
class ColumnsReader:
    """Reader of columns that form one source: arrays in memory, or a set of `.npy` files.

    A module's `custom_data_reader` may return one: `ColumnsReader.of_arrays({"x": x, "y": y})`.
    """

    def __init__(
        self, name: str, columns: Mapping[str, Column], files: Sequence[DataFile] = ()
    ) -> None:
        self._source = Source(name, records_of(columns, name))
        self._columns = columns
        self._files = tuple(files)
        if self._source.records == 0:
            raise UserError(f"{name} has no records")

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], name: str = "memory") -> ColumnsReader:
        """A reader over arrays [records, ...] in memory."""
        return cls(name, {key: LoadedColumn(np.asarray(array)) for key, array in arrays.items()})

    @property
    def metadata(self) -> Metadata:
        return metadata_of(self._columns)

    def sources(self) -> tuple[Source, ...]:
        return (replace(self._source, fingerprint="+".join(fingerprints(self._files))),)

    def read(self, shard: Shard) -> Iterator[Block]:
        check_within(self._source, shard)
        for block in blocks_of(self._columns, shard.begin, shard.end):
            for file in self._files:
                file.check_unchanged()
            yield block

    def close(self) -> None:
        """Do nothing: no file stays open between reads."""
