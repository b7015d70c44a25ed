"""The tables of an export, on disk: their values arrive in any order and are written in parts.

No process has memory for a whole table: a table may be larger than any of its machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np

from elasticdl.embedding.spec import Dtype, OptimizerKind, OptimizerSpec, TableSpec
from elasticdl.embedding.table import native_table
from elasticdl.rpc.parameters import Floats, Int64s

Pages: TypeAlias = Iterable[tuple[Int64s, Floats]]
"""All rows of a table that exist, in any order: ids int64[n], weights [n, dim] each. The last of
an id counts.
"""

_PART_BYTES = 64 << 20


@final
@dataclass(frozen=True, slots=True)
class ExportedTable:
    """`matrix`: [size, dim], a file. `ids`: the rows' ids ascending; None: those are 0 to size - 1.

    `order[i]` is the place in `matrix` of row i; None: its own.
    """

    matrix: Floats
    ids: Int64s | None = None
    order: Int64s | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.matrix) if self.order is None else len(self.order)

    def parts(self) -> Iterator[Floats]:
        """The rows, [n, dim] each, in order."""
        for begin, end in spans(self.rows, self.matrix.shape[1] * self.matrix.itemsize):
            if self.order is None:
                yield self.matrix[begin:end]
            else:
                yield self.matrix[self.order[begin:end]]


def spans(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of parts that need little memory."""
    step = max(1, _PART_BYTES // row_bytes)
    for begin in range(0, rows, step):
        yield begin, min(rows, begin + step)


def bounded(table: TableSpec, size: int, pages: Pages, dtype: Dtype, file: Path) -> ExportedTable:
    """A table of ids 0 to `size - 1`: the given rows, and initial values for all others.

    Raises OSError if the disk is full.
    """
    with file.open("wb") as out:
        # Without room, a mapped file kills the process by SIGBUS.
        os.posix_fallocate(out.fileno(), 0, size * table.dim * dtype.bytes)
    matrix: Floats = np.memmap(file, dtype.value, "r+", shape=(size, table.dim))
    untouched = native_table(table, OptimizerSpec(kind=OptimizerKind.SGD), dtype)
    for begin, end in spans(size, table.dim * dtype.bytes):
        matrix[begin:end] = untouched.peek(np.arange(begin, end))
    for ids, weights in pages:
        matrix[ids] = weights
    return ExportedTable(matrix)


def unbounded(table: TableSpec, pages: Pages, dtype: Dtype, file: Path) -> ExportedTable:
    """A table of the given rows only. Needs 33 bytes of memory a row. Raises OSError."""
    arrived = [np.empty(0, np.int64)]
    with file.open("wb") as out:
        for ids, weights in pages:
            arrived.append(ids)
            out.write(np.ascontiguousarray(weights, dtype.value).data)
    ids = np.concatenate(arrived)
    del arrived
    if not len(ids):  # a file without bytes cannot be mapped
        return ExportedTable(np.empty((0, table.dim), dtype.value), ids)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    last = np.append(ids[1:] != ids[:-1], True)
    matrix: Floats = np.memmap(file, dtype.value, "r", shape=(len(order), table.dim))
    return ExportedTable(matrix, ids[last], order[last])
