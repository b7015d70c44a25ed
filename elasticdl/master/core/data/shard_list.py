"""Pages of shards, for people.

It only reads. The cost of a page grows with its rows and with the shards that are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard, Piece, Stage
from elasticdl.shard import ShardId

MOST_ROWS = 1000
_LONGEST_PROBLEM = 500


class ShardState(StrEnum):
    """The state of a shard, as shown."""

    LEASED = "leased"
    SETTLING = "settling"
    """Its worker is gone or leaving; the servers are asked what it did."""
    RETRIED = "retried"
    """Its rest waits for another attempt."""
    PARKED = "parked"
    TODO = "todo"
    """In the current epoch, never leased."""
    DONE = "done"
    """Done in the current epoch."""


@dataclass(frozen=True, slots=True)
class ShardQuery:
    """Which shards to show: in one state (None: all), from `offset` on, at most `limit`."""

    state: ShardState | None = None
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One shard.

    `age_s`: how long its owner has held it; `problem`: why its last attempt failed.
    """

    id: int
    task: str
    epoch: int
    records: int
    state: str
    owner: str = ""
    attempt: int = 0
    offset: int = 0
    age_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ShardPage:
    """One page; `total` counts all shards that match."""

    total: int
    rows: tuple[ShardRow, ...]


@dataclass(frozen=True, slots=True)
class _StateRows:
    """The shards of one ledger in one state: how many, and the rows from an offset on."""

    state: ShardState
    size: int
    rows: Callable[[int], Iterator[ShardRow]]


def shard_page(ledgers: Sequence[Ledger], wish: ShardQuery, now_s: float) -> ShardPage:
    """A page of the shards of several ledgers, held shards first."""
    parts = [
        part
        for ledger in ledgers
        for part in _parts(ledger, now_s)
        if wish.state in (None, part.state)
    ]
    rows: list[ShardRow] = []
    skip, limit = max(0, wish.offset), max(0, min(wish.limit, MOST_ROWS))
    for part in parts:
        if skip < part.size and len(rows) < limit:
            rows += islice(part.rows(skip), limit - len(rows))
        skip = max(0, skip - part.size)
    return ShardPage(sum(part.size for part in parts), tuple(rows))


def _parts(ledger: Ledger, now_s: float) -> list[_StateRows]:
    leased = [held for held in ledger.held.values() if held.stage is Stage.LEASED]
    settling = [held for held in ledger.held.values() if held.stage is not Stage.LEASED]
    end = len(ledger.order) if ledger.stopped_at is None else ledger.stopped_at
    begun = min(ledger.cursor, end)
    pieces = (*(held.piece for held in ledger.held.values()), *ledger.returned, *ledger.parked)
    not_done = {piece.number for piece in pieces if piece.epoch == ledger.epoch} | ledger.forgone
    return [
        _StateRows(
            ShardState.LEASED,
            len(leased),
            lambda skip: (_held_row(ledger, held, now_s) for held in leased[skip:]),
        ),
        _StateRows(
            ShardState.SETTLING,
            len(settling),
            lambda skip: (_held_row(ledger, held, now_s) for held in settling[skip:]),
        ),
        _pieces(ledger, ShardState.RETRIED, list(ledger.returned)),
        _pieces(ledger, ShardState.PARKED, ledger.parked),
        _StateRows(ShardState.TODO, end - begun, lambda skip: _fresh(ledger, begun + skip, end)),
        _StateRows(
            ShardState.DONE,
            begun - len(not_done),
            lambda skip: _done(ledger, begun, not_done, skip),
        ),
    ]


def _pieces(ledger: Ledger, state: ShardState, pieces: Sequence[Piece]) -> _StateRows:
    return _StateRows(
        state,
        len(pieces),
        lambda skip: (_piece_row(ledger, piece, state) for piece in pieces[skip:]),
    )


def _piece_row(ledger: Ledger, piece: Piece, state: ShardState) -> ShardRow:
    return ShardRow(
        piece.shard.id,
        ledger.task,
        piece.epoch,
        piece.shard.records,
        state,
        attempt=piece.attempt,
        offset=piece.offset,
        problem=piece.failures[-1][:_LONGEST_PROBLEM] if piece.failures else "",
    )


def _held_row(ledger: Ledger, held: HeldShard, now_s: float) -> ShardRow:
    state = ShardState.LEASED if held.stage is Stage.LEASED else ShardState.SETTLING
    return replace(
        _piece_row(ledger, held.piece, state),
        owner=str(held.worker),
        offset=held.offset,
        age_s=round(max(0.0, now_s - held.since_s), 3),
    )


def _fresh(ledger: Ledger, begin: int, end: int) -> Iterator[ShardRow]:
    for place in range(begin, end):
        shard = ledger.plan.shard(
            ledger.order[place], ShardId(ledger.first_id + ledger.order[place])
        )
        yield ShardRow(shard.id, ledger.task, ledger.epoch, shard.records, ShardState.TODO)


def _done(ledger: Ledger, begun: int, not_done: set[int], skip: int) -> Iterator[ShardRow]:
    """Done shards, the newest first, because people look at those most."""
    numbers = (
        number
        for number in islice(reversed(ledger.order), len(ledger.order) - begun, None)
        if number not in not_done
    )
    for number in islice(numbers, skip, None):
        shard = ledger.plan.shard(number, ShardId(ledger.first_id + number))
        yield ShardRow(
            shard.id,
            ledger.task,
            ledger.epoch,
            shard.records,
            ShardState.DONE,
            offset=shard.records,
        )
