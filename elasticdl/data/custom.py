"""Readers that users write: `custom_data_reader` of a model module.

Two kinds are accepted: this package's `Reader` protocol (`sources`, `read`), and ElasticDL's
`AbstractDataReader` (`create_shards`, `read_records`), which is adapted to the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import index
from typing import Any, Protocol, SupportsIndex, cast, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Block, Metadata, Reader, Records
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.errors import UserError
from elasticdl.flag_values import Scalar
from elasticdl.formatting import amount
from elasticdl.shard import Shard, Source


class AbstractDataReader(Protocol):
    """The protocol of ElasticDL's readers; `metadata` and `records_output_types` are optional."""

    def create_shards(self) -> Mapping[str, tuple[int, int]] | Iterable[tuple[str, int, int]]:
        """{name: (start, records)}, or an iterable of (name, start, records)."""

    def read_records(self, task: ReadTask) -> Iterable[Any]:
        """Records [task.start, task.end) of task.shard_name, one at a time."""


@dataclass(frozen=True, slots=True)
class NamedRange:
    """`task.shard` of ElasticDL's readers."""

    name: str
    start: int
    end: int
    indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The argument of `read_records`."""

    shard_name: str
    start: int
    end: int
    type: str = "training"
    extended_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def shard(self) -> NamedRange:
        return NamedRange(self.shard_name, self.start, self.end)


class NotAReader(UserError):
    """`custom_data_reader` returned something else."""


def open_custom_reader(
    factory: Callable[..., Any],
    origin: str,
    params: Mapping[str, Scalar],
    *,
    records_per_task: int | None = None,
) -> Reader:
    """Open the reader that the module's `custom_data_reader` returns.

    It is called as `custom_data_reader(data_origin, records_per_task=None, **params)`. Errors of
    user code pass unchanged. Raises NotAReader if the result is neither kind of reader.
    """
    reader = factory(origin, records_per_task=records_per_task, **params)
    if callable(getattr(reader, "sources", None)) and callable(getattr(reader, "read", None)):
        return cast(Reader, reader)
    if callable(getattr(reader, "create_shards", None)) and callable(
        getattr(reader, "read_records", None)
    ):
        return AdaptedReader(reader)
    raise NotAReader(
        f"custom_data_reader returned a {type(reader).__name__}, which is not a reader",
        hint=(
            "return an object with sources() and read(shard), or with create_shards() and"
            " read_records(task)"
        ),
    )


@final
class AdaptedReader:
    """An `AbstractDataReader` as a Reader.

    Adjoining shards of one name form one source; the master cuts it into shards again.
    """

    def __init__(self, inner: AbstractDataReader) -> None:
        self._inner = inner
        self._ranges: dict[str, NamedRange] = {}

    @property
    def metadata(self) -> Metadata:
        theirs = getattr(self._inner, "metadata", None)
        names = getattr(theirs, "column_names", None) or ()
        dtypes = getattr(theirs, "column_dtypes", None) or {}
        return Metadata(
            tuple(names),
            {name: getattr(kind, "name", str(kind)) for name, kind in dict(dtypes).items()},
        )

    def sources(self) -> tuple[Source, ...]:
        """The sources. Raises UserError if `create_shards` returns a wrong value or no records."""
        # Sorted by name and start: all processes must derive the same sources.
        pieces = sorted(_pieces(self._inner.create_shards()))
        ranges: list[NamedRange] = []
        for name, start, count in pieces:
            if ranges and ranges[-1].name == name and start < ranges[-1].end:
                raise UserError(
                    f"create_shards() returned records {start} to {ranges[-1].end} of {name!r}"
                    " twice"
                )
            if ranges and ranges[-1].name == name and start == ranges[-1].end:
                ranges[-1] = NamedRange(name, ranges[-1].start, start + count)
            else:
                ranges.append(NamedRange(name, start, start + count))
        if not ranges:
            raise UserError(
                "create_shards() of the module's reader returned no records",
                hint="return at least one shard with records",
            )
        names = [piece.name for piece in ranges]
        self._ranges = {
            piece.name if names.count(piece.name) == 1 else f"{piece.name}@{piece.start}": piece
            for piece in ranges
        }
        return tuple(Source(key, piece.end - piece.start) for key, piece in self._ranges.items())

    def read(self, shard: Shard) -> Iterator[Block]:
        """Records from `read_records`.

        Raises UserError if it returns more or fewer records than the shard has.
        """
        if not self._ranges:
            self.sources()
        if shard.source not in self._ranges:
            raise UserError(
                f"create_shards() no longer returns {shard.source!r}, only"
                f" {', '.join(self._ranges)}"
            )
        whole = self._ranges[shard.source]
        task = ReadTask(whole.name, whole.start + shard.begin, whole.start + shard.end)
        left = task.end - task.start
        records = iter(self._inner.read_records(task))
        while left:
            taken = list(islice(records, min(left, BLOCK_RECORDS)))
            if not taken:
                raise UserError(
                    f"read_records() returned {amount(task.end - task.start - left, 'record')} of"
                    f" {task}, expected {task.end - task.start}"
                )
            left -= len(taken)
            yield Block(stack(taken), len(taken))
        # Extra records mean that the reader ignores the end of the range.
        if next(records, None) is not None:
            raise UserError(
                f"read_records() returned more than the"
                f" {amount(task.end - task.start, 'record')} of {task}"
            )

    def close(self) -> None:
        close = getattr(self._inner, "close", None)
        if callable(close):
            close()


def _pieces(shards: object) -> list[tuple[str, int, int]]:
    rows: list[Any] = (
        [_flat(name, what) for name, what in shards.items()]
        if isinstance(shards, Mapping)
        else list(cast(Iterable[Any], shards))
    )
    pieces = []
    for row in rows:
        match row:
            case (str(name), SupportsIndex() as start, SupportsIndex() as count) if (
                index(start) >= 0 and index(count) >= 0
            ):
                pieces.append((name, index(start), index(count)))
            case _:
                raise UserError(
                    f"create_shards() returned {row!r}",
                    hint="expected {name: (start, records)} or (name, start, records)",
                )
    # Empty shards have nothing to lease.
    return [piece for piece in pieces if piece[2]]


def _flat(name: object, what: object) -> tuple[object, ...]:
    return (name, *what) if isinstance(what, Sequence) else (name, what)


def stack(records: Sequence[Any]) -> Records:
    """Combine single records into a block.

    Strings and bytes become object[n]. Dicts become a column for each key. Sequences become [n,
    columns], as text if any value is text. Numbers and arrays become [n, ...].
    """
    first = records[0]
    if isinstance(first, Mapping):
        return {key: _column([record[key] for record in records]) for key in first}
    return _column(records)


def _column(values: Sequence[Any]) -> NDArray[Any]:
    first = values[0]
    if isinstance(first, (str, bytes)):
        return _objects([_bytes(value) for value in values], (len(values),))
    if isinstance(first, (list, tuple)) and any(
        isinstance(item, (str, bytes)) for value in values for item in value
    ):
        widths = {len(value) for value in values}
        if len(widths) > 1:
            raise UserError(
                f"read_records() returned records of {sorted(widths)} fields; all need the same"
                " number"
            )
        return _objects(
            [_bytes(item) for value in values for item in value], (len(values), len(first))
        )
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise UserError(
            f"read_records() returned records of different shapes or types: {error}"
        ) from error


def _objects(values: list[bytes], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
