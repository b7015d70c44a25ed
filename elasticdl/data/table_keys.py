"""Where the records of a table are, by a unique key that orders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from elasticdl.data.record_index import BLOCK_RECORDS


@dataclass(frozen=True, slots=True)
class TableParams:
    """What to read: `key` orders the records and is unique; no columns mean all.

    `fill_null` replaces nulls that are bad records without it.
    """

    key: str = ""
    columns: tuple[str, ...] = ()
    fill_null: float | None = None


@final
@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `first` up to `end`, which `inclusive` says is one of them; None is no end.

    They are those of `records` records, of which the wanted ones come after `skip` others.
    """

    first: Any
    end: Any
    inclusive: bool
    records: int
    skip: int

    @property
    def ends(self) -> tuple[Any, ...]:
        """The parameters of `condition`."""
        return (self.first,) if self.end is None else (self.first, self.end)

    def condition(self, key: str) -> str:
        """The SQL of it; `key` is quoted."""
        upper = "" if self.end is None else f" AND {key} {'<=' if self.inclusive else '<'} $2"
        return f"{key} >= $1{upper}"


@final
@dataclass(frozen=True, slots=True)
class TableKeys:
    """Records are at the keys from `first` on without a gap, or after the `fences`.

    A fence is the key of each BLOCK_RECORDS-th record.
    """

    records: int
    first: Any
    fences: Sequence[Any] | None

    def at(self, number: int) -> tuple[Any, int]:
        """A key, and how many records after it record `number` is."""
        if self.fences is None:
            return self.first + number, 0
        fence, skip = divmod(number, BLOCK_RECORDS)
        return self.fences[fence], skip

    def range(self, begin: int, count: int) -> KeyRange:
        """A range that has `count` records from `begin` on: these alone, or one whole block.

        A range with an end cannot pass over records that were inserted or deleted before it.
        """
        key, skip = self.at(begin)
        if self.fences is None:
            return KeyRange(key, key + count - 1, True, count, 0)
        following = begin // BLOCK_RECORDS + 1
        end = self.fences[following] if following < len(self.fences) else None
        records = min(BLOCK_RECORDS, self.records - (begin - skip))
        return KeyRange(key, end, False, records, skip)


def without_gaps(first: object, last: object, records: int) -> bool:
    """Whether unique keys from `first` to `last` have no gap, by the number of records."""
    return isinstance(first, int) and isinstance(last, int) and last - first + 1 == records


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def fences_query(key: str, table: str) -> str:
    """The query of the fences; `key` and `table` are quoted."""
    numbered = f"ROW_NUMBER() OVER (ORDER BY {key}) - 1 AS n"
    return (
        f"SELECT k FROM (SELECT {key} AS k, {numbered} FROM {table}) AS numbered"
        f" WHERE n % {BLOCK_RECORDS} = 0 ORDER BY n"
    )
