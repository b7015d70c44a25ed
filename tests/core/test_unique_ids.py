"""Duplicate ids are found and their gradients summed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.native import _native

pytestmark = pytest.mark.core


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), max_size=200))
def test_distinct_ids_come_in_order_of_first_appearance_with_each_ids_position(
    ids: list[int],
) -> None:
    array = np.array(ids, np.int64)
    found, positions = _native.unique_ids(array)
    assert found.tolist() == list(dict.fromkeys(ids))
    np.testing.assert_array_equal(found[positions], array)


def test_a_large_batch_of_skewed_ids_is_taken_apart_and_put_together() -> None:
    ids = np.random.default_rng(0).zipf(1.1, 100_000).astype(np.int64)
    found, positions = _native.unique_ids(ids)
    assert len(found) == len(np.unique(ids))
    np.testing.assert_array_equal(found[positions], ids)


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 32, 33])
def test_rows_at_one_position_are_summed_in_order(dim: int) -> None:
    random = np.random.default_rng(dim)
    values = random.normal(size=(5000, dim)).astype(np.float32)
    positions = random.integers(0, 700, 5000).astype(np.int32)
    expected = np.zeros((701, dim), np.float32)
    np.add.at(expected, positions, values)
    np.testing.assert_array_equal(_native.merge_rows(values, positions, 701), expected)


def test_positions_outside_the_result_are_refused() -> None:
    values = np.ones((2, 3), np.float32)
    for positions in ([0, 2], [0, -1], [-(2**31), 0]):
        with pytest.raises(ValueError, match="expected 0 to 2 - 1"):
            _native.merge_rows(values, np.array(positions, np.int32), 2)
    with pytest.raises(ValueError, match="expected one for each"):
        _native.merge_rows(values, np.array([0], np.int32), 2)


def _marked(marks: np.ndarray, count: int) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(marks.view(np.uint8), bitorder="little")[:count])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("count", "dim"), [(1, 1), (64, 3), (65, 8), (701, 16)])
def test_only_rows_with_several_values_get_the_sums_of_their_squares(
    count: int, dim: int, dtype: type[np.floating]
) -> None:
    random = np.random.default_rng(count)
    # Two lookups of one table; the last row has no value in either.
    positions = [random.integers(0, max(count - 1, 1), n).astype(np.int32) for n in (count, 7)]
    values = [random.normal(size=(len(places), dim)).astype(dtype) for places in positions]
    marks = _native.mark_repeated(positions, count)
    squares = _native.merge_squares(values, positions, marks, count)
    expected, times = np.zeros((count, dim), dtype), np.zeros(count, int)
    for value, places in zip(values, positions, strict=True):
        np.add.at(expected, places, value * value)
        np.add.at(times, places, 1)
    repeated = np.flatnonzero(times > 1)
    assert repeated.size and _marked(marks, count).tolist() == repeated.tolist()
    np.testing.assert_array_equal(squares, expected[repeated])


@pytest.mark.parametrize("count", [0, 3])
def test_without_a_repeated_row_there_are_no_squares(count: int) -> None:
    values, positions = [np.ones((count, 2), np.float32)], [np.arange(count, dtype=np.int32)]
    marks = _native.mark_repeated(positions, count)
    assert not marks.any() and marks.shape == (-(-count // 64),)
    assert _native.merge_squares(values, positions, marks, count).shape == (0, 2)


def test_marks_beyond_the_rows_do_not_count() -> None:
    values, positions = [np.full((2, 3), 2, np.float32)], [np.zeros(2, np.int32)]
    marks = np.full(1, 2**64 - 1, np.uint64)
    for _ in range(100):
        squares = _native.merge_squares(values, positions, marks, 2)
        np.testing.assert_array_equal(squares, [[8] * 3, [0] * 3])


def test_marks_of_other_rows_are_refused() -> None:
    values, positions = [np.ones((2, 3), np.float32)], [np.zeros(2, np.int32)]
    with pytest.raises(ValueError, match="marks are 2 words"):
        _native.merge_squares(values, positions, np.zeros(2, np.uint64), 2)
    with pytest.raises(ValueError, match="expected 0 to 1 - 1"):
        _native.mark_repeated([np.array([0, -1], np.int32)], 1)
