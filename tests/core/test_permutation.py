"""An order of many shards that is computed, not kept."""

from __future__ import annotations

import itertools

import pytest

from elasticdl.job_choices import Shuffle
from elasticdl.master.core.data.permutation import Permutation
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.shard import Source

pytestmark = pytest.mark.core


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096, 5000])
def test_every_number_comes_once(size: int) -> None:
    order = Permutation(size, "seed")
    assert sorted(order) == list(range(size))
    assert list(reversed(order)) == list(order)[::-1]
    assert order[-1] == order[size - 1] and list(order[1:3]) == list(order)[1:3]
    with pytest.raises(IndexError):
        order[size]


def test_the_order_depends_on_the_seed_only() -> None:
    one, same, other = (list(Permutation(1000, seed)) for seed in ("1/0", "1/0", "1/1"))
    assert one == same != other
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 20


def test_neighbours_are_spread_over_all_numbers() -> None:
    """Mean distance of neighbours, share of rises, and how many come near their own place."""
    size = 20_000
    order = list(Permutation(size, "7/3"))
    steps = [abs(a - b) for a, b in itertools.pairwise(order)]
    assert sum(steps) / len(steps) == pytest.approx(size / 3, rel=0.03)
    rises = sum(a < b for a, b in itertools.pairwise(order)) / size
    assert rises == pytest.approx(0.5, abs=0.02)
    near = sum(abs(number - place) < size // 100 for place, number in enumerate(order)) / size
    assert near == pytest.approx(0.02, abs=0.005)


def test_a_plan_of_a_million_shards_has_an_order_at_once() -> None:
    plan = ShardPlan((Source("a", 1_000_000),), 1, shuffle=Shuffle.SHARDS, seed=3)
    order = plan.order(0)
    assert isinstance(order, Permutation) and len(order) == 1_000_000
    assert len({order[place] for place in range(0, 1_000_000, 997)}) == 1004
    assert list(plan.order(1)[:5]) != list(order[:5])
