"""The protocol between training and the storage of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from elasticdl.shard import Shard, Source

Records: TypeAlias = NDArray[Any] | Mapping[str, NDArray[Any]]
"""A block of n records; the first axis is the record.

TFRecord: object[n] of bytes. CSV: object[n, columns] of bytes (UTF-8). Parquet and NumPy: one array
per column.
"""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Names and dtypes of the columns; the third argument of `feed`."""

    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of a shard, in file order; `records` holds the good ones only.

    `count` counts all records, including the `bad` ones. `bad_examples` describes up to three bad
    records ("train.csv:17: expected 5 fields, …").
    """

    records: Records
    count: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()


class Reader(Protocol):
    """Opened once per process, used by one thread at a time."""

    @property
    def metadata(self) -> Metadata:
        """Names and dtypes of the columns."""

    def sources(self) -> tuple[Source, ...]:
        """Every source with its exact number of records.

        May read all data once and cache an index. Raises UserError if data is missing, empty or
        unreadable.
        """

    def read(self, shard: Shard) -> Iterator[Block]:
        """The records of a shard, without reading the records before it.

        Raises UserError, with file and offset, if the file was truncated or changed since
        `sources()`.
        """

    def close(self) -> None:
        """Release files."""
