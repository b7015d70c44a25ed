"""NumPy files: records are columns, one for each array, [n, ...].

`.npz` files from `np.savez` are read in place, range by range. Arrays that are compressed or in
Fortran order are loaded whole. A `.npy` file of a structured dtype has one column for each field,
any other one column named after the file. Python objects are refused, since they need pickle.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, final

import numpy as np
from numpy.lib import format as npy_format

from elasticdl.data.base import Block, Metadata
from elasticdl.data.columns import (
    Column,
    ColumnsReader,
    LoadedColumn,
    StoredColumn,
    blocks_of,
    metadata_of,
    records_of,
    select,
)
from elasticdl.data.files import DataFile, check_as_counted
from elasticdl.data.origins import look_at_all
from elasticdl.data.places import record_location
from elasticdl.errors import UserError
from elasticdl.shard import Source

_LOCAL_HEADER = struct.Struct("<4s22xHH")


@final
class NpzFormat:
    """`.npz` files, see FileFormat; columns are the named arrays, or all."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self._names = tuple(columns)
        self._columns: dict[str, dict[str, Column]] = {}

    def metadata(self, file: DataFile) -> Metadata:
        return metadata_of(self._open(file))

    def count(self, file: DataFile) -> int:
        return records_of(self._open(file), file.path)

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        return 0, ()

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        return blocks_of(self._open(file), begin, end)

    def place(self, file: DataFile, number: int) -> str:
        return record_location(file.path, number)

    def _open(self, file: DataFile) -> dict[str, Column]:
        if file.path not in self._columns:
            self._columns[file.path] = select(
                _columns_of_npz(file, self._names), self._names, file.path
            )
        return self._columns[file.path]


def read_npy(
    origin: str, paths: Sequence[str], names: Sequence[str] = (), counted: Source | None = None
) -> ColumnsReader:
    """`.npy` files side by side: `x.npy` and `y.npy` are columns `x` and `y` of one source.

    Raises UserError if they differ from what was `counted`.
    """
    files = look_at_all(paths)
    if counted is not None:
        check_as_counted(files, counted)
    columns: dict[str, Column] = {}
    for file in files:
        columns |= _columns_of_npy(file)
    return ColumnsReader(origin, select(columns, names, origin), files)


def _columns_of_npz(file: DataFile, names: Sequence[str]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    try:
        with (
            file.opened() as opened,
            opened.stream() as outer,
            zipfile.ZipFile(outer) as archive,
            opened.stream() as stream,
        ):
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if not names or name in names:
                    columns[name] = _member(file, archive, stream, info)
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error, struct.error) as error:
        raise UserError(
            f"{file.path}: not a complete .npz file: {error}",
            hint="it is truncated or not an .npz file: write it again",
        ) from error
    except OSError as error:
        raise UserError(f"{file.path}: cannot read: {error.strerror}") from error
    return columns


def _member(
    file: DataFile, archive: zipfile.ZipFile, stream: IO[bytes], info: zipfile.ZipInfo
) -> Column:
    if info.compress_type == zipfile.ZIP_STORED:
        stream.seek(info.header_offset)
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
        if magic != b"PK\3\4":
            raise zipfile.BadZipFile(f"no member at offset {info.header_offset}")
        stream.seek(name_bytes + extra_bytes, os.SEEK_CUR)
        column = _stored(file, stream)
        if column is not None:
            return column
    with archive.open(info) as member:
        return LoadedColumn(np.ascontiguousarray(npy_format.read_array(member, allow_pickle=False)))


def _stored(file: DataFile, stream: IO[bytes]) -> StoredColumn | None:
    """The array whose `.npy` header is at the stream's position; None if it is in Fortran order."""
    version = npy_format.read_magic(stream)
    read_header = (
        npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    )
    shape, fortran_order, dtype = read_header(stream)
    if fortran_order and len(shape) > 1:
        return None
    column = StoredColumn(file, stream.tell(), dtype, shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not dtype.hasobject and column.offset + size > file.size_bytes:
        raise ValueError(
            f"the array at offset {column.offset} needs {size} bytes, the file has"
            f" {file.size_bytes}"
        )
    return column


def _columns_of_npy(file: DataFile) -> dict[str, Column]:
    stem = Path(file.path).stem
    try:
        with file.opened() as opened, opened.stream() as stream:
            column: Column | None = _stored(file, stream)
            if column is not None and column.dtype.names is None:
                return {stem: column}
            stream.seek(0)
            array: Any = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(
            f"{file.path}: not a complete .npy file: {error}",
            hint="it is truncated or not an .npy file: write it again",
        ) from error
    except OSError as error:
        raise UserError(f"{file.path}: cannot read: {error.strerror}") from error
    if array.dtype.names is None:
        return {stem: LoadedColumn(np.ascontiguousarray(array))}
    return {name: LoadedColumn(np.ascontiguousarray(array[name])) for name in array.dtype.names}
