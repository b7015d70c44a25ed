"""Find the records of a minibatch that `feed` cannot process. It does not import TensorFlow.

`feed` runs over whole windows, and its errors do not name the record. When it raises, the filter
feeds halves of the window until it has isolated the bad records. They count against the user's
limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Reader, Records
from elasticdl.data.places import number_of, place_of
from elasticdl.data.records import cells_of, count_of, taken
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import Shard

_PROBED = 4
_EXAMPLES = 3
_SHOWN_CHARACTERS = 120


class RecordsRefused(UserError):
    """`feed` raised while it ran over records, not while it was compiled; some records may be bad.

    `reason` is the cause in one line, and `where` the place in the user's module.
    """

    def __init__(self, message: str, *, hint: str = "", reason: str = "", where: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason or message
        self.where = where


class BadRecords(UserError):
    """There are more bad records than the user allows; another worker would fail, too."""


class Feed(Protocol):
    """`model.input.Feeder` of one task."""

    def __call__(self, window: Records) -> tuple[Any, Any] | None:
        """(features, labels) of a window; None if `feed` keeps nothing of it.

        Raises:
            RecordsRefused: some records may be bad.
            UserError: `feed` fails for another reason.
        """


@dataclass(frozen=True, slots=True)
class Fed:
    """The output of `feed` for the good records.

    `bad` records were left out; `bad_examples` describes up to three of them.
    """

    minibatch: tuple[Any, Any] | None
    bad: int = 0
    bad_examples: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class BadRecordFilter:
    """`feed`, and the reader that its records come from.

    The filter holds `reading` while it uses the reader, which it does only to describe a record.
    """

    feed: Feed
    reader: Reader
    max_bad_records: int = 0
    reading: AbstractContextManager[Any] = field(default_factory=nullcontext)

    def __call__(
        self, records: Records, shard: Shard, places: Sequence[int] | NDArray[np.int64]
    ) -> Fed:
        """Feed records; `places[i]` is the i-th one's position among the good records of the shard.

        Raises:
            BadRecords: there are more bad records than `max_bad_records`.
            RecordsRefused: `feed` raises for the window, but for none of its records alone.
        """
        try:
            return Fed(self.feed(records))
        except RecordsRefused as error:
            refused = error
        count = count_of(records)
        refusals: dict[int, RecordsRefused] = {}
        self._narrow(records, range(count), refused, refusals)
        if not refusals:
            raise refused
        examples = tuple(
            self._described(records, index, shard, int(places[index]), refusals[index])
            for index in list(refusals)[:_EXAMPLES]
        )
        if len(refusals) > self.max_bad_records:
            raise self._too_many(records, refusals, examples)
        good = [index for index in range(count) if index not in refusals]
        return Fed(self.feed(_part(records, good)) if good else None, len(refusals), examples)

    def _narrow(
        self,
        records: Records,
        part: Sequence[int],
        refused: RecordsRefused,
        refusals: dict[int, RecordsRefused],
    ) -> None:
        """Find the records of a refused `part` that fail alone; stop at one more than allowed."""
        if len(part) == 1:
            refusals[part[0]] = refused
            return
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            if len(refusals) > self.max_bad_records:
                return
            error = self._error(records, half)
            if error is not None:
                self._narrow(records, half, error, refusals)

    def _error(self, records: Records, part: Sequence[int]) -> RecordsRefused | None:
        try:
            self.feed(_part(records, part))
        except RecordsRefused as error:
            return error
        return None

    def _described(
        self, records: Records, index: int, shard: Shard, place: int, error: RecordsRefused
    ) -> str:
        with self.reading:
            where = place_of(self.reader, shard.source, number_of(self.reader, shard, place))
            names = self.reader.metadata.column_names
        cells = cells_of(records, index, names)
        at = f" (at {error.where})" if error.where else ""
        named = named_in(error.reason, cells)
        if named and "" not in named:
            which = ", ".join(f"column {name!r} is {text!r}" for name, text in named.items())
            return f"{where}: {which}: {error.reason}{at}"
        return f"{where}: {error.reason}{at}; the record is {_shown(cells.values())}"

    def _too_many(
        self, records: Records, refusals: Mapping[int, RecordsRefused], examples: Sequence[str]
    ) -> BadRecords:
        allowed = self.max_bad_records
        more = (
            f"\nmore than {amount(allowed, 'record')} of one minibatch cannot be processed"
            if allowed
            else ""
        )
        others = [index for index in range(count_of(records)) if index not in refusals]
        # Other records of the window: if these fail too, the code is at fault, not the data.
        probed = others[:: max(1, len(others) // _PROBED)][:_PROBED]
        if probed and all(self._error(records, [index]) is not None for index in probed):
            where = next(iter(refusals.values())).where
            hint = (
                f"{where or 'feed'} raises for every record tried, so the code is the likely cause,"
                " not the data"
            )
        else:
            hint = "correct the data, or skip such records with --max-bad-records"
        return BadRecords(f"{examples[0]}{more}", hint=hint)


def named_in(reason: str, cells: Mapping[str, str]) -> dict[str, str]:
    """The cells that an error is about.

    TensorFlow's messages end with a colon and the text that could not be parsed.
    """
    message = reason.rstrip()
    return {
        name: text for name, text in cells.items() if message.endswith(f": {text.strip()}".rstrip())
    }


def _shown(cells: Collection[str]) -> str:
    text = ",".join(cells)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _part(records: Records, indices: Sequence[int]) -> Records:
    return taken(records, np.asarray(indices, dtype=np.int64))
