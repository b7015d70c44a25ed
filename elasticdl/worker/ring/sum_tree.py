"""A sum whose order of additions does not depend on who adds: a fixed binary tree.

Floating-point addition is not associative. So the sum over `count` virtual workers is always that
of the two halves of [0, count), and so on down to single workers. A member computes the sums of the
largest subtrees that it has in full (*nodes*), and all members add the nodes of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Node: TypeAlias = tuple[int, int]
"""The virtual workers [begin, end) of a subtree."""


def nodes_within(begin: int, end: int, node: Node) -> list[Node]:
    """The largest subtrees of `node` within [begin, end), in order."""
    if begin >= node[1] or end <= node[0]:
        return []
    if begin <= node[0] and node[1] <= end:
        return [node]
    left, right = _halves(node)
    return [*nodes_within(begin, end, left), *nodes_within(begin, end, right)]


def sum_of(node: Node, known: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """The sum of a subtree, from the sums of some of its subtrees."""
    if node in known:
        return known[node]
    left, right = _halves(node)
    return add(sum_of(left, known, add), sum_of(right, known, add))


def _halves(node: Node) -> tuple[Node, Node]:
    middle = (node[0] + node[1]) // 2
    return (node[0], middle), (middle, node[1])
