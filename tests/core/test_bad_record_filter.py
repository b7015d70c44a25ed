"""Records of a minibatch that `feed` cannot take are reported, and left out up to the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.base import Block, Metadata
from elasticdl.data.places import number_of
from elasticdl.errors import UserError
from elasticdl.model.bad_record_filter import BadRecordFilter, BadRecords, RecordsRefused, named_in
from elasticdl.shard import Shard, ShardId, Source

pytestmark = pytest.mark.core
SHARD = Shard(ShardId(0), "table", 100, 150)


class Table:
    """Record n is the row (n, 2n); those in `unreadable` are bad already for the reader, in blocks
    of seven.
    """

    metadata = Metadata(("one", "two"))

    def __init__(self, unreadable: frozenset[int] = frozenset()) -> None:
        self.unreadable = unreadable

    def sources(self) -> tuple[Source, ...]:
        return (Source("table", 1000),)

    def read(self, shard: Shard) -> Iterator[Block]:
        for begin in range(shard.begin, shard.end, 7):
            numbers = range(begin, min(begin + 7, shard.end))
            good = [number for number in numbers if number not in self.unreadable]
            yield Block(rows(*good), len(numbers), len(numbers) - len(good))

    def close(self) -> None: ...


def rows(*numbers: int) -> np.ndarray:
    return np.array([[b"%d" % number, b"%d" % (2 * number)] for number in numbers], object).reshape(
        -1, 2
    )


def feed_without(*bad: int) -> Any:
    """Refuses windows that have any of these numbers, with a word about the first."""

    def feed(window: Any) -> tuple[Any, Any]:
        numbers = [int(row[0]) for row in window]
        for number in numbers:
            if number in bad:
                raise RecordsRefused(
                    "m.py:3: feed raised: no",
                    reason=f"feed raised: no number: {number}",
                    where="m.py:3",
                )
        return numbers, None

    return feed


@given(st.sets(st.integers(100, 149)), st.permutations(range(50)))
def test_exactly_the_records_that_are_refused_alone_are_left_out(
    bad: set[int], order: list[int]
) -> None:
    numbers = [100 + place for place in order]
    sieve = BadRecordFilter(feed_without(*bad), Table(), max_bad_records=50)
    fed = sieve(rows(*numbers), SHARD, order)
    kept = [number for number in numbers if number not in bad]
    assert fed.minibatch == ((kept, None) if kept else None)
    assert fed.bad == len(bad)
    first = [number for number in numbers if number in bad][:3]
    assert fed.bad_examples == tuple(
        f"table: record {number}: column 'one' is '{number}': feed raised: no number: {number} (at"
        " m.py:3)"
        for number in first
    )


@given(st.sets(st.integers(100, 149), max_size=49))
def test_a_record_is_reported_by_its_number_whatever_else_cannot_be_read(
    unreadable: set[int],
) -> None:
    reader = Table(frozenset(unreadable))
    good = [number for number in range(100, 150) if number not in unreadable]
    assert [number_of(reader, SHARD, index) for index in range(len(good))] == good


def test_one_record_too_many_is_an_error_that_names_the_first() -> None:
    window = rows(*range(100, 120))
    with pytest.raises(BadRecords) as caught:
        BadRecordFilter(feed_without(107, 111), Table())(window, SHARD, range(20))
    assert (
        caught.value.message
        == "table: record 107: column 'one' is '107': feed raised: no number: 107 (at m.py:3)"
    )
    assert "--max-bad-records" in caught.value.hint
    with pytest.raises(
        BadRecords, match=r"record 107: .*\nmore than 1 record of one minibatch cannot be processed"
    ):
        BadRecordFilter(feed_without(107, 111), Table(), max_bad_records=1)(
            window, SHARD, range(20)
        )
    assert (
        BadRecordFilter(feed_without(107, 111), Table(), max_bad_records=2)(
            window, SHARD, range(20)
        ).bad
        == 2
    )


def test_the_search_for_one_record_takes_a_few_calls() -> None:
    calls = 0
    refusing = feed_without(137)

    def feed(window: Any) -> tuple[Any, Any]:
        nonlocal calls
        calls += 1
        return refusing(window)

    assert (
        BadRecordFilter(feed, Table(), max_bad_records=1)(
            rows(*range(100, 150)), SHARD, range(50)
        ).bad
        == 1
    )
    assert calls <= 1 + 2 * 6 + 1


def test_a_feed_that_takes_no_record_at_all_is_to_blame_itself() -> None:
    with pytest.raises(BadRecords) as caught:
        BadRecordFilter(feed_without(*range(100, 150)), Table())(
            rows(*range(100, 150)), SHARD, range(50)
        )
    assert caught.value.hint.startswith("m.py:3 raises for every record tried")


def test_what_no_record_is_to_blame_for_is_raised_as_it_is() -> None:
    def feed(window: Any) -> tuple[Any, Any]:
        if len(window) > 3:
            raise RecordsRefused("m.py:3: feed raised: too many at once")
        return window, None

    with pytest.raises(RecordsRefused, match="too many at once"):
        BadRecordFilter(feed, Table(), max_bad_records=50)(rows(*range(100, 110)), SHARD, range(10))


def test_errors_of_the_code_are_not_searched_for_in_the_data() -> None:
    def feed(window: Any) -> tuple[Any, Any]:
        raise UserError("m.py:3: feed raised NameError: x")

    with pytest.raises(UserError, match="NameError") as caught:
        BadRecordFilter(feed, Table(), max_bad_records=50)(rows(100), SHARD, [0])
    assert type(caught.value) is UserError


@pytest.mark.parametrize(
    ("records", "told"),
    [
        (np.array([b"7", b"\xff"], object), "table: record 101: no (at m.py:3); the record is '�'"),
        (
            {"a": np.array([1, 2]), "b": np.array([[1.0, 2.0], [3.0, 4.0]])},
            "no (at m.py:3); the record is '2,[3.0, 4.0]'",
        ),
        (np.array([[1, 2], [3, 4]]), "no (at m.py:3); the record is '3,4'"),
        (np.array([["a", "x" * 500]] * 2, object), "the record is 'a,xxx"),
    ],
)
def test_records_of_any_kind_are_shown_in_a_short_line(records: Any, told: str) -> None:
    def feed(window: Any) -> tuple[Any, Any]:
        one = window["a"] if isinstance(window, dict) else window
        if len(one) > 1 or np.array_equal(
            one[0], (records["a"] if isinstance(records, dict) else records)[1]
        ):
            raise RecordsRefused("", reason="no", where="m.py:3")
        return window, None

    with pytest.raises(BadRecords) as caught:
        BadRecordFilter(feed, Table())(records, SHARD, [0, 1])
    assert told in caught.value.message
    assert len(caught.value.message) < 300


def test_the_cell_that_an_operation_names_is_reported() -> None:
    cells = {"a": "1", "b": "x", "c": "", "d": " x "}
    assert named_in("could not correctly convert string: x", cells) == {"b": "x", "d": " x "}
    assert named_in("could not correctly convert string: ", cells) == {"c": ""}
    assert named_in("Field 0 in record 0 is not a valid float: 11", cells) == {}
