"""Which records of a minibatch `feed` cannot take. No TensorFlow here.

`feed` runs over whole windows, and its errors do not say over which record. Where it raises,
windows are fed again in halves
until the records to blame are found; they count as bad ones, up to the user's limit.
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
    """`feed` raised while it ran over records, not while it was compiled: some of them may be to
    blame.

    `reason` is what it raised, in a line, and `where` the place in the user's module.
    """

    def __init__(self, message: str, *, hint: str = "", reason: str = "", where: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason or message
        self.where = where


class BadRecords(UserError):
    """More records than the user allows cannot be used: no worker would fare better with them."""


class Feed(Protocol):
    """`model.input.Feeder` of one task."""

    def __call__(self, window: Records) -> tuple[Any, Any] | None:
        """(features, labels) of a window; None if nothing of it is left.

        Raises UserError, of it RecordsRefused.
        """


@dataclass(frozen=True, slots=True)
class Fed:
    """What `feed` made of the records that it can take; `bad` others were left out, of which up to
    three are described.
    """

    made: tuple[Any, Any] | None
    bad: int = 0
    bad_examples: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class BadRecordFilter:
    """`feed`, and where its records come from.

    `reading` is held whenever the reader is used, which is only when something has to be told of a
    record.
    """

    feed: Feed
    reader: Reader
    max_bad_records: int = 0
    reading: AbstractContextManager[Any] = field(default_factory=nullcontext)

    def __call__(
        self, records: Records, shard: Shard, places: Sequence[int] | NDArray[np.int64]
    ) -> Fed:
        """Feed records, of which the i-th came as the `places[i]`-th good one of the shard.

        Raises BadRecords for the record after the last that may be bad, and what `feed` raised if
        no record alone is to
        blame for it.
        """
        try:
            return Fed(self.feed(records))
        except RecordsRefused as error:
            refused = error
        count = count_of(records)
        found: dict[int, RecordsRefused] = {}
        self._narrow(records, range(count), refused, found)
        if not found:
            raise refused
        examples = tuple(
            self._described(records, index, shard, int(places[index]), found[index])
            for index in list(found)[:_EXAMPLES]
        )
        if len(found) > self.max_bad_records:
            raise self._too_many(records, found, examples)
        good = [index for index in range(count) if index not in found]
        return Fed(self.feed(_part(records, good)) if good else None, len(found), examples)

    def _narrow(
        self,
        records: Records,
        part: Sequence[int],
        refused: RecordsRefused,
        found: dict[int, RecordsRefused],
    ) -> None:
        """Find those of `part`, all of which together were refused, that are refused alone; one
        more than allowed at most.
        """
        if len(part) == 1:
            found[part[0]] = refused
            return
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            if len(found) > self.max_bad_records:
                return
            error = self._error(records, half)
            if error is not None:
                self._narrow(records, half, error, found)

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
        self, records: Records, found: Mapping[int, RecordsRefused], examples: Sequence[str]
    ) -> BadRecords:
        allowed = self.max_bad_records
        more = (
            f"\nmore than {amount(allowed, 'record')} of one minibatch cannot be used"
            if allowed
            else ""
        )
        others = [index for index in range(count_of(records)) if index not in found]
        probed = others[:: max(1, len(others) // _PROBED)][:_PROBED]
        if probed and all(self._error(records, [index]) is not None for index in probed):
            where = next(iter(found.values())).where
            hint = (
                f"it raises for every record that was tried, so look at {where or 'feed'} rather"
                " than at the data"
            )
        else:
            hint = "correct the data, or allow for it with --max-bad-records"
        return BadRecords(f"{examples[0]}{more}", hint=hint)


def named_in(reason: str, cells: Mapping[str, str]) -> dict[str, str]:
    """The cells that an error is about: TensorFlow's messages end with the text that could not be
    used, after a colon.
    """
    said = reason.rstrip()
    return {
        name: text for name, text in cells.items() if said.endswith(f": {text.strip()}".rstrip())
    }


def _shown(cells: Collection[str]) -> str:
    text = ",".join(cells)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _part(records: Records, indices: Sequence[int]) -> Records:
    return taken(records, np.asarray(indices, dtype=np.int64))
