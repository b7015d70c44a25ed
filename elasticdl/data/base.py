"""The seam between training and whatever holds the records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from elasticdl.shard import Shard, Source

Records: TypeAlias = NDArray[Any] | Mapping[str, NDArray[Any]]
"""A block of n records, first axis = record.

TFRecord: object[n] of bytes. CSV: object[n, columns] of bytes (UTF-8). Parquet and NumPy: one array
    per column.
"""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What `feed` is told about the records, as its third argument."""

    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records of a shard, in file order. `len(rows)` counts the good ones only.

    `count` counts all, the `bad` ones too, of which up to three are described ("train.csv:17:
    expected 5 fields, …").
    """

    records: Records
    count: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()


class Reader(Protocol):
    """Opened once per process, used from one thread at a time."""

    @property
    def metadata(self) -> Metadata:
        """Names and types of the columns."""

    def sources(self) -> tuple[Source, ...]:
        """Every source with its exact number of records.

        May read all data once and keep an index beside or in a
        cache; raises UserError for missing, empty or unreadable data.
        """

    def read(self, shard: Shard) -> Iterator[Block]:
        """The shard's records without reading what comes before it.

        Raises UserError naming file and offset when the
        file was truncated or changed since `sources()`.
        """

    def close(self) -> None:
        """Release files."""
