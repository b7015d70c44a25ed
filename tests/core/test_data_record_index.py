"""Cutting records into byte ranges, and the form in which an index is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.record_index import BLOCK_BYTES, BLOCK_RECORDS, RecordIndex, decode, encode
from elasticdl.errors import Corrupted
from tests.present import present

pytestmark = pytest.mark.core

steps = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 3 << 20)), min_size=1, max_size=60)


def index_of(moves: list[tuple[int, int]]) -> RecordIndex:
    records = np.cumsum([0] + [move[0] for move in moves])
    offsets = 7 + np.cumsum([0] + [move[1] for move in moves])
    return RecordIndex(np.stack([records, offsets, records + 1], axis=1).astype(np.int64))


@given(steps, st.data())
def test_spans_cover_a_range_once_and_begin_at_index_entries(
    moves: list[tuple[int, int]], data: Any
) -> None:
    index = index_of(moves)
    begin = data.draw(st.integers(0, index.records))
    end = data.draw(st.integers(begin, index.records))
    entries = {int(offset): int(record) for record, offset, _ in index.entries}
    position = begin
    for span in index.spans(begin, end):
        assert entries[span.begin] + span.skip == position
        assert span.take > 0
        assert entries[span.end] >= position + span.take
        assert span.line == entries[span.begin] + 1
        position += span.take
    assert position == end


@given(steps)
def test_spans_are_bounded_by_records_and_bytes_unless_one_entry_is_larger(
    moves: list[tuple[int, int]],
) -> None:
    index = index_of(moves)
    largest = max(move[1] for move in moves)
    for span in index.spans(0, index.records):
        assert span.take <= max(BLOCK_RECORDS, 600)
        assert span.end - span.begin <= max(BLOCK_BYTES, largest)


@given(steps, st.integers(0, 5), st.lists(st.text(), max_size=3))
def test_an_index_survives_being_kept(
    moves: list[tuple[int, int]], bad: int, examples: list[str]
) -> None:
    index = RecordIndex(index_of(moves).entries, 4, bad, tuple(examples))
    again = present(decode(encode(index, "key"), "key"))
    assert np.array_equal(again.entries, index.entries)
    assert (again.columns, again.bad, again.examples) == (4, bad, tuple(examples))


@given(st.data())
def test_a_kept_index_with_a_flipped_bit_or_a_missing_end_is_refused(data: Any) -> None:
    kept = bytearray(encode(index_of([(3, 10), (4, 12)]), "key"))
    at = data.draw(st.integers(0, len(kept) - 1))
    kept[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupted):
        decode(bytes(kept), "key")
    whole = encode(index_of([(3, 10), (4, 12)]), "key")
    with pytest.raises(Corrupted):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))], "key")


def test_the_index_of_another_file_is_not_taken() -> None:
    assert decode(encode(index_of([(1, 1)]), "other"), "key") is None


def test_an_index_cut_off_behind_its_magic_is_refused() -> None:
    whole = encode(index_of([(1, 1)]), "key")
    for length in range(len(whole)):
        with pytest.raises(Corrupted):
            decode(whole[:length], "key")
