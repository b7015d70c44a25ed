"""Rows of a table in a file, as runs that are sorted by id: the first half of an external sort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.rpc.parameters import Floats, Int64s

Pages: TypeAlias = Iterable[tuple[Int64s, Floats]]
"""All rows of a table that exist, in any order: ids int64[n], weights [n, dim] each. The last of
an id counts.
"""

_ID_BYTES = 8
_SAMPLES = 4096
"""Of a longer run `splitters` sees this many ids, and fewer than twice as many."""


@final
@dataclass(frozen=True, slots=True)
class _Run:
    """`rows` distinct ids at `offset` of the file, ascending, and then their weights."""

    offset: int
    rows: int
    sample: Int64s


@final
class RowRuns:
    """A file of sorted runs, each of at most `run_bytes`, or of one row.

    Writing needs that memory once, an eighth of it for a part in order, and the order of the rows.
    Of each run up to 64 KB of ids stay in memory.
    """

    def __init__(self, file: Path, dim: int, dtype: np.dtype[Any], run_bytes: int) -> None:
        """`dtype` is that of the weights. `write` makes the file."""
        self._file = file
        self._dim, self._dtype = dim, dtype
        self._capacity = max(1, run_bytes // (dim * dtype.itemsize + _ID_BYTES))
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def write(self, pages: Pages) -> None:
        """Write all rows. Raises OSError, for example if the disk is full."""
        ids = np.empty(self._capacity, np.int64)
        weights = np.empty((self._capacity, self._dim), self._dtype)
        filled = 0
        with self._file.open("wb", buffering=0) as out:
            for page_ids, page in pages:
                begin = 0
                while begin < len(page_ids):
                    end = min(len(page_ids), begin + self._capacity - filled)
                    upto = filled + end - begin
                    ids[filled:upto], weights[filled:upto] = page_ids[begin:end], page[begin:end]
                    begin, filled = end, upto
                    if filled == self._capacity:
                        self._append(out, ids, weights)
                        filled = 0
            if filled:
                self._append(out, ids[:filled], weights[:filled])

    def _append(self, out: FileIO, ids: Int64s, weights: Floats) -> None:
        order = latest(ids)
        ids, step = ids[order], max(1, len(order) // _SAMPLES)
        self._runs.append(_Run(out.tell(), len(ids), ids[::step].copy()))
        _write(out, ids)
        # A copy of the whole run would double the memory.
        for part in np.array_split(order, 8):
            _write(out, weights[part])

    def splitters(self, parts: int) -> Int64s:
        """At most `parts` - 1 ids that divide all rows into ranges of about the same length.

        Source: regular sampling, Li et al., "On the versatility of parallel sorting by regular
        sampling", 1993. It bounds the length of a range, whatever the ids are.
        """
        if not self._runs:
            return np.empty(0, np.int64)
        sample = np.sort(np.concatenate([run.sample for run in self._runs]))
        return np.unique(sample[:: max(1, -(-len(sample) // parts))][1:])

    def cut(self, splitters: Int64s) -> RunRanges:
        """The rows by ranges of ids, each from one of `splitters` to the next. Raises OSError."""
        cuts = np.zeros((len(self._runs), len(splitters) + 2), np.int64)
        with self._file.open("rb", buffering=0) as file:
            for cut, run in zip(cuts, self._runs, strict=True):
                ids = _read(file, run.offset, np.empty(run.rows, np.int64))
                cut[1:-1], cut[-1] = np.searchsorted(ids, splitters), run.rows
        return RunRanges(self, cuts)

    def read(self, file: FileIO, run: int, begin: int, end: int) -> tuple[Int64s, Floats]:
        """Rows [begin, end) of a run. Raises OSError."""
        return self.read_ids(file, run, begin, end), _read(
            file,
            self._runs[run].offset
            + self._runs[run].rows * _ID_BYTES
            + begin * self._dim * self._dtype.itemsize,
            np.empty((end - begin, self._dim), self._dtype),
        )

    def read_ids(self, file: FileIO, run: int, begin: int, end: int) -> Int64s:
        """The ids of rows [begin, end) of a run. Raises OSError."""
        offset = self._runs[run].offset + begin * _ID_BYTES
        return _read(file, offset, np.empty(end - begin, np.int64))

    def open(self) -> FileIO:
        """The file, for `read`. Raises OSError."""
        return self._file.open("rb", buffering=0)


@final
@dataclass(frozen=True, slots=True)
class RunRanges:
    """Rows by ranges of ids: of run r, range k has the rows `cuts[r, k]` to `cuts[r, k + 1]`."""

    runs: RowRuns
    cuts: Int64s

    def __len__(self) -> int:
        return int(self.cuts.shape[1]) - 1

    def rows(self) -> Iterator[list[tuple[Int64s, Floats]]]:
        """Range by range, what each run has: distinct ids int64[n] ascending, weights [n, dim].

        Of an id that several runs have, the last one counts.
        """
        with self.runs.open() as file:
            for index in range(len(self)):
                yield [
                    self.runs.read(file, run, begin, end) for run, begin, end in self._slices(index)
                ]

    def ids(self) -> Iterator[Int64s]:
        """Range by range, the distinct ids, ascending; nothing of an empty range."""
        with self.runs.open() as file:
            for index in range(len(self)):
                parts = [
                    self.runs.read_ids(file, run, begin, end)
                    for run, begin, end in self._slices(index)
                ]
                if parts:
                    yield np.unique(np.concatenate(parts))

    def _slices(self, index: int) -> list[tuple[int, int, int]]:
        pairs = self.cuts[:, index : index + 2].tolist()
        return [(run, begin, end) for run, (begin, end) in enumerate(pairs) if begin < end]


def latest(ids: Int64s) -> Int64s:
    """The places of distinct ids, ascending by id: of each id the last one."""
    order: Int64s = np.argsort(ids, kind="stable")
    ordered = ids[order]
    return order[np.append(ordered[1:] != ordered[:-1], True)] if len(ids) else order


def _write(out: FileIO, values: NDArray[Any]) -> None:
    view = _bytes_of(np.ascontiguousarray(values))
    while view:
        view = view[out.write(view) :]


def _read(file: FileIO, offset: int, values: NDArray[Any]) -> NDArray[Any]:
    """Fill an array from the file; return it."""
    file.seek(offset)
    view = _bytes_of(values)
    while view:
        count = file.readinto(view)
        if not count:
            raise OSError(f"{file.name!r} has become shorter")
        view = view[count:]
    return values


def _bytes_of(values: NDArray[Any]) -> memoryview:
    return memoryview(values.reshape(-1).view(np.uint8).data)
