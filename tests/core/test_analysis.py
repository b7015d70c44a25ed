"""Partial statistics merge to those of the whole; sketches keep the bounds that they state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.analysis.column_summary import LONGEST_BYTES, ColumnSummary
from elasticdl.data.analysis.moments import Moments
from elasticdl.data.analysis.quantile_sketch import QuantileSketch
from elasticdl.data.analysis.value_counts import ValueCounts

pytestmark = pytest.mark.core

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=50)


@given(st.lists(NUMBERS, max_size=6))
def test_moments_of_parts_merge_to_those_of_the_whole(parts: list[list[float]]) -> None:
    merged = Moments()
    for part in parts:
        merged = merged.merged(Moments.of(np.array(part, np.float64)))
    whole = np.array([value for part in parts for value in part])
    assert merged.count == len(whole)
    if not len(whole):
        assert merged.variance is None
        return
    assert (merged.low, merged.high) == (whole.min(), whole.max())
    assert merged.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-6)
    assert merged.variance == pytest.approx(whole.var(), rel=1e-6, abs=1e-3)


def test_a_large_mean_does_not_spoil_the_variance() -> None:
    merged = Moments()
    for part in np.split(1e9 + np.tile([0.0, 1.0], 50_000), 10):
        merged = merged.merged(Moments.of(part))
    assert merged.variance == pytest.approx(0.25, rel=1e-6)


def test_integers_beyond_those_of_floats_keep_their_extremes() -> None:
    moments = Moments.of(np.array([2**62 + 1, -(2**62) - 1]))
    assert (moments.low, moments.high) == (-(2**62) - 1, 2**62 + 1)


def test_quantiles_are_exact_up_to_the_capacity_however_they_are_split() -> None:
    values = np.random.default_rng(1).integers(0, 1000, 1000).astype(float)
    sketch = QuantileSketch(1000)
    for part in np.array_split(values, 7):
        other = QuantileSketch(1000)
        other.add(part)
        sketch.merge(other)
    shares = [0.001, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0]
    assert sketch.rank_error == 0
    assert sketch.quantiles(shares) == np.quantile(values, shares, method="inverted_cdf").tolist()
    assert QuantileSketch().quantiles(shares) == []


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "zigzag"])
@pytest.mark.parametrize("parts", [1, 13])
def test_quantiles_beyond_the_capacity_keep_the_error_that_is_stated(
    order: str, parts: int
) -> None:
    count, capacity = 50_000, 256
    ranks = np.arange(count, dtype=float)
    values = {
        "random": np.random.default_rng(2).permutation(ranks),
        "ascending": ranks,
        "descending": ranks[::-1],
        "zigzag": np.where(ranks % 2 == 0, ranks, count - ranks),
    }[order]
    sketch = QuantileSketch(capacity)
    for part in np.array_split(values, parts):
        other = QuantileSketch(capacity)
        for block in np.array_split(part, 20):
            other.add(block)
        sketch.merge(other)
    shares = [part / 100 for part in range(1, 100)]
    exact = np.sort(values)
    for share, value in zip(shares, sketch.quantiles(shares), strict=True):
        low, high = np.searchsorted(exact, value, "left"), np.searchsorted(exact, value, "right")
        wanted = share * count
        assert low - sketch.rank_error - 1 <= wanted <= high + sketch.rank_error + 1
    assert 0 < sketch.rank_error < count / capacity * np.log2(count / capacity)
    assert sum(len(part) for level in sketch._levels for part in level) < 10 * capacity


@given(st.lists(st.lists(st.integers(0, 30), max_size=60), max_size=8), st.integers(2, 6))
def test_counts_are_never_too_high_and_too_low_by_the_bound_only(
    parts: list[list[int]], capacity: int
) -> None:
    merged = ValueCounts(capacity)
    for part in parts:
        other = ValueCounts(capacity)
        other.add(Counter(part))
        merged.merge(other)
    exact = Counter(value for part in parts for value in part)
    counted: dict[Any, int] = dict(merged.most_common(1000))
    assert merged.undercount <= sum(exact.values()) / capacity
    for value, count in exact.items():
        assert count - merged.undercount <= counted.get(value, 0) <= count
    if len(exact) <= 2 * capacity and not merged.undercount:
        assert merged.distinct == len(exact)
    ordered = merged.most_common(1000)
    assert ordered == sorted(ordered, key=lambda item: (-item[1], item[0]))


def summary(*columns: Any) -> dict[str, Any]:
    merged = ColumnSummary()
    for column in columns:
        part = ColumnSummary()
        part.add(np.asarray(column))
        merged.merge(part)
    return merged.as_json(10, 4)


def texts(*values: bytes) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def test_text_of_numbers_has_numbers_and_a_vocabulary() -> None:
    facts = summary(texts(b"1", b"", b"2.5"), texts(b"nan", b"inf", b"1"))
    assert facts["count"] == 4 and facts["missing"] == 2 and facts["infinite"] == 1
    assert (facts["min"], facts["max"], facts["mean"], facts["variance"]) == (1, 2.5, 1.5, 0.5)
    assert facts["quantiles"] == [1, 1, 2.5] and facts["quantile_rank_error"] == 0
    assert facts["vocabulary"]["values"][0] == "1" and facts["vocabulary"]["counts"][0] == 2


@pytest.mark.parametrize("words", [(b"1", b"x"), (b"1_0",), (b"9" * 65,), (b"1 2",)])
def test_text_with_one_word_that_is_no_number_has_a_vocabulary_only(
    words: tuple[bytes, ...],
) -> None:
    facts = summary(texts(b"1", b"1"), texts(*words))
    assert facts["mean"] is None and facts["quantiles"] is None and facts["min"] is None
    assert facts["vocabulary"]["values"][0] == "1"
    assert facts["vocabulary"]["distinct"] == len({b"1", *words})


def test_integers_have_both_and_floats_no_vocabulary() -> None:
    facts = summary(np.array([[3, 1], [3, 3]]), np.array([[2, 2]]))
    assert facts["vocabulary"]["values"] == [3, 2, 1] and facts["vocabulary"]["counts"] == [3, 2, 1]
    assert (facts["count"], facts["mean"]) == (6, 14 / 6)
    assert summary(np.array([True, False, True]))["vocabulary"]["values"] == [1, 0]
    floats = summary(np.array([0.5, np.nan], np.float32))
    assert floats["vocabulary"] is None
    assert (floats["count"], floats["missing"], floats["min"]) == (1, 1, 0.5)


def test_long_and_binary_texts_do_not_fill_the_vocabulary() -> None:
    facts = summary(texts(b"a" * LONGEST_BYTES, b"a" * (LONGEST_BYTES + 1)))
    assert facts["vocabulary"]["too_long"] == 1 and facts["vocabulary"]["distinct"] == 1
    assert summary(texts(b"\xff\xfe"))["vocabulary"] is None
    assert summary(texts())["mean"] is None
