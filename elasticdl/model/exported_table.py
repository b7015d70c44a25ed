"""The tables of an export: rows arrive in any order, and are written by ascending id, in parts.

No process has memory for a whole table, which may be larger than any of its machines. So rows are
sorted on disk: into runs as they arrive, and each range of ids is then read from all runs. The disk
reads and writes long pieces only.

Memory is some parts of 64 MB, and what grows with the table: of each run up to 64 KB of ids, and an
int64 for each range of each run. There are as many ranges as runs, or twice as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from elasticdl.embedding.spec import Dtype, OptimizerKind, OptimizerSpec, TableSpec
from elasticdl.embedding.table import native_table
from elasticdl.model.row_runs import Pages, RowRuns, RunRanges, latest
from elasticdl.native import _native
from elasticdl.rpc.parameters import Floats, Int64s

_PART_BYTES = 64 << 20


@final
@dataclass(frozen=True, slots=True)
class BoundedTable:
    """All ids of a bounded vocabulary: row i is that of id i.

    `shape`: rows, and values of each. The file of `ranges` must stay as long as this is used.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    ranges: RunRanges
    range_rows: int
    untouched: _native.Table

    def parts(self) -> Iterator[Floats]:
        """All rows, [n, dim] each, in order. Raises OSError."""
        begin = 0
        for slices in self.ranges.rows():
            end = min(self.shape[0], begin + self.range_rows)
            part = self.untouched.peek(np.arange(begin, end))
            for ids, weights in slices:
                part[ids - begin] = weights
            yield part
            begin = end


@final
@dataclass(frozen=True, slots=True)
class UnboundedTable:
    """The rows that exist, by ascending id. See `BoundedTable`."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    ranges: RunRanges

    def parts(self) -> Iterator[Floats]:
        """All rows, [n, dim] each, in order. Raises OSError."""
        for slices in self.ranges.rows():
            if slices:
                ids, weights = (np.concatenate(arrays) for arrays in zip(*slices, strict=True))
                yield weights[latest(ids)]

    def ids(self) -> Iterator[Int64s]:
        """The ids of the rows, int64[n] each. Raises OSError."""
        return self.ranges.ids()


ExportedTable: TypeAlias = BoundedTable | UnboundedTable


def bounded(table: TableSpec, size: int, pages: Pages, dtype: Dtype, file: Path) -> BoundedTable:
    """A table of ids 0 to `size - 1`: the given rows, and initial values for all others.

    Rows go to `file`. Raises OSError if the disk is full.
    """
    runs = RowRuns(file, table.dim, np.dtype(dtype.value), _PART_BYTES)
    runs.write(pages)
    range_rows = max(1, _PART_BYTES // (table.dim * dtype.bytes))
    ranges = runs.cut(np.arange(range_rows, size, range_rows))
    untouched = native_table(table, OptimizerSpec(kind=OptimizerKind.SGD), dtype)
    return BoundedTable((size, table.dim), np.dtype(dtype.value), ranges, range_rows, untouched)


def unbounded(table: TableSpec, pages: Pages, dtype: Dtype, file: Path) -> UnboundedTable:
    """A table of the given rows only. See `bounded`."""
    runs = RowRuns(file, table.dim, np.dtype(dtype.value), _PART_BYTES)
    runs.write(pages)
    # Ranges of half the length of a run: merging a range needs a copy of it.
    ranges = runs.cut(runs.splitters(2 * len(runs)))
    rows = sum(len(ids) for ids in ranges.ids())
    return UnboundedTable((rows, table.dim), np.dtype(dtype.value), ranges)
