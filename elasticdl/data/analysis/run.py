"""A pass over data by processes side by side on this machine, which compute statistics.

The data is cut into ranges of records that depend on its size only. Their statistics are merged in
order, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.data.analysis import FORMAT
from elasticdl.data.analysis.column_summary import ColumnSummary
from elasticdl.data.base import Reader
from elasticdl.data.formats import open_reader
from elasticdl.errors import PermanentError, UserError
from elasticdl.flag_values import Scalar
from elasticdl.shard import Shard, ShardId, Source

_RANGE_RECORDS = 1 << 17
_MOST_RANGES = 512
"""Each range is merged once, which takes as long as some thousand records."""


@final
@dataclass(frozen=True, slots=True)
class Analysis:
    """What to analyze: no columns mean all. `quantiles` is the number of parts of equal size."""

    origin: str
    params: Mapping[str, Scalar]
    columns: tuple[str, ...] = ()
    max_bad_records: int = 0
    vocabulary_size: int = 10_000
    quantiles: int = 100


@dataclass(slots=True)
class _RangeStatistics:
    """The statistics of a range of records."""

    records: int
    bad: int
    bad_examples: tuple[str, ...]
    columns: dict[str, ColumnSummary]


def analyze(
    analysis: Analysis,
    processes: int,
    progress: Callable[[int, int], None] = lambda done, records: None,
) -> dict[str, Any]:
    """The statistics, ready for JSON. `progress` receives (records read, records in all).

    Raises UserError for data without columns, unknown columns, and too many bad records;
    PermanentError if a process is killed.
    """
    reader = _open(analysis, ())
    try:
        sources = reader.sources()
        names = _chosen(analysis, reader)
        total = sum(source.records for source in sources)
        whole = _RangeStatistics(0, 0, (), {name: ColumnSummary() for name in names})
        for part in _parts(analysis, reader, sources, names, processes):
            _merge(whole, part, analysis.max_bad_records)
            progress(whole.records, total)
    finally:
        reader.close()
    return {
        "format": FORMAT,
        "data": analysis.origin,
        "records": whole.records - whole.bad,
        "bad_records": whole.bad,
        "columns": {
            name: summary.as_json(analysis.vocabulary_size, analysis.quantiles)
            for name, summary in whole.columns.items()
        },
    }


def _open(analysis: Analysis, counted: Sequence[Source]) -> Reader:
    return open_reader(
        analysis.origin,
        analysis.params,
        max_bad_records=analysis.max_bad_records,
        counted=counted,
    )


def _chosen(analysis: Analysis, reader: Reader) -> tuple[str, ...]:
    available = reader.metadata.column_names
    if not available:
        raise UserError(
            f"{analysis.origin} has records without columns, such as TFRecord",
            hint="write the features to a format with columns: CSV, Parquet, Arrow, NumPy",
        )
    for name in analysis.columns:
        if name not in available:
            raise UserError(
                f"{analysis.origin} has no column {name!r}; available: {', '.join(available)}"
            )
    return analysis.columns or available


def _merge(whole: _RangeStatistics, part: _RangeStatistics, max_bad_records: int) -> None:
    whole.records += part.records
    whole.bad += part.bad
    whole.bad_examples = (*whole.bad_examples, *part.bad_examples)[:3]
    if whole.bad > max_bad_records:
        raise UserError(
            f"{whole.bad_examples[0]}\n{whole.bad} bad records so far, at most {max_bad_records}"
            " allowed",
            hint="correct the data, or leave such records out with --max-bad-records",
        )
    for name, summary in part.columns.items():
        whole.columns[name].merge(summary)


def _cut(sources: Sequence[Source]) -> list[Shard]:
    total = sum(source.records for source in sources)
    size = max(_RANGE_RECORDS, -(-total // _MOST_RANGES))
    return [
        Shard(ShardId(0), source.name, begin, min(begin + size, source.records))
        for source in sources
        for begin in range(0, source.records, size)
    ]


def _parts(
    analysis: Analysis,
    reader: Reader,
    sources: Sequence[Source],
    names: Sequence[str],
    processes: int,
) -> Iterator[_RangeStatistics]:
    """The statistics of all ranges, in order."""
    ranges = _cut(sources)
    processes = min(processes, len(ranges))
    if processes <= 1:
        yield from (_read(reader, names, shard) for shard in ranges)
        return
    # Not forked: pyarrow has threads.
    pool = ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),
        _begin_process,
        (analysis, tuple(sources), tuple(names), os.getpid()),
    )
    try:
        left = iter(ranges)
        under_way: deque[Future[_RangeStatistics]] = deque()
        while True:
            # Results wait for their turn, so there must not be many.
            for shard in islice(left, 2 * processes - len(under_way)):
                under_way.append(pool.submit(_read_here, shard))
            if not under_way:
                return
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise PermanentError(
            "a process that reads the data was killed, perhaps for lack of memory",
            hint="use fewer --processes, or fewer --columns",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_here: tuple[Reader, tuple[str, ...]] | None = None
"""Of a process of the pool: its reader, and the columns to analyze."""


def _begin_process(
    analysis: Analysis, sources: tuple[Source, ...], names: tuple[str, ...], parent_pid: int
) -> None:
    global _here
    die_with_parent(parent_pid)
    # Ctrl-C reaches all processes of the terminal; the parent ends the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here = (_open(analysis, sources), names)


def _read_here(shard: Shard) -> _RangeStatistics:
    assert _here is not None
    return _read(*_here, shard)


def _read(reader: Reader, names: Sequence[str], shard: Shard) -> _RangeStatistics:
    part = _RangeStatistics(0, 0, (), {name: ColumnSummary() for name in names})
    positions = {name: at for at, name in enumerate(reader.metadata.column_names)}
    for block in reader.read(shard):
        part.records += block.count
        part.bad += block.bad
        part.bad_examples = (*part.bad_examples, *block.bad_examples)[:3]
        for name, summary in part.columns.items():
            records = block.records
            summary.add(
                records[name] if isinstance(records, Mapping) else records[:, positions[name]]
            )
    return part
