"""The same additions in the same order, whoever has which leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.worker.ring.reading import slice_of
from elasticdl.worker.ring.sum_tree import nodes_within, sum_of

pytestmark = pytest.mark.core


def written(left: str, right: str) -> str:
    """A sum as text, which shows its order."""
    return f"({left}+{right})"


@given(count=st.integers(1, 70), size=st.integers(1, 75))
def test_the_order_of_additions_does_not_depend_on_the_members(count: int, size: int) -> None:
    root = (0, count)
    leaves = {(leaf, leaf + 1): str(leaf) for leaf in range(count)}
    brought = {}
    for rank in range(size):
        begin, end = slice_of(0, count, rank, size)
        mine = {node: leaves[node] for node in leaves if begin <= node[0] < end}
        for node in nodes_within(begin, end, root):
            assert node not in brought
            brought[node] = sum_of(node, mine, written)
    assert sum_of(root, brought, written) == sum_of(root, leaves, written)


def test_a_member_with_half_of_the_leaves_brings_one_sum() -> None:
    assert nodes_within(0, 4, (0, 8)) == [(0, 4)]
    assert nodes_within(1, 4, (0, 4)) == [(1, 2), (2, 4)]
    assert nodes_within(2, 2, (0, 4)) == []
