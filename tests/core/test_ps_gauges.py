"""Quantiles of bucketed durations."""

from __future__ import annotations

import pytest

from elasticdl.ps.gauges import quantile_ms

pytestmark = pytest.mark.core


def test_no_durations_are_zero() -> None:
    assert quantile_ms([0] * 52, 0.5) == 0.0


def test_a_quantile_is_within_its_bucket() -> None:
    counts = [0] * 52
    counts[20], counts[26] = 98, 2  # about 1 ms and about 8 ms
    assert 1.024 <= quantile_ms(counts, 0.5) <= 1.449
    assert quantile_ms(counts, 0.98) == quantile_ms(counts, 0.5)
    assert 8.19 <= quantile_ms(counts, 0.99) <= 11.59
