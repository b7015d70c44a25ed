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
