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
class TableKeys:
    """Records are at the keys from `first` on without a gap, or after the `fences`.

    A fence is the key of each BLOCK_RECORDS-th record.
    """

    first: Any
    fences: Sequence[Any] | None

    def at(self, number: int) -> tuple[Any, int]:
        """A key, and how many records after it record `number` is."""
        if self.fences is None:
            return self.first + number, 0
        fence, skip = divmod(number, BLOCK_RECORDS)
        return self.fences[fence], skip


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
