"""Windows over attempts cover each position exactly once, bad records or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.data.base import Block
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of
from tests.present import array

pytestmark = pytest.mark.core


def blocks_of(goods: list[tuple[int, int]]) -> tuple[Shard, list[Block]]:
    """Blocks with (good, bad) records each; good records are numbered from 0."""
    blocks, number = [], 0
    for good, bad in goods:
        names = tuple(f"bad {number}" for _ in range(min(bad, 3)))
        blocks.append(Block(np.arange(number, number + good), good + bad, bad, names))
        number += good
    return Shard(ShardId(1), "s", 0, sum(block.count for block in blocks)), blocks


block_lists = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=5
).filter(lambda goods: sum(map(sum, goods)) > 0)


@given(
    block_lists,
    st.integers(1, 12),
    st.none() | st.integers(0, 2**64 - 1),
    st.lists(st.integers(1, 4), max_size=5),
)
def test_windows_over_any_kills_cover_each_position_exactly_once(
    goods: list[tuple[int, int]], size: int, seed: int | None, kills: list[int]
) -> None:
    shard, blocks = blocks_of(goods)
    order = order_of(shard.records, seed)
    seen, bad, offset = [], 0, 0
    for done_before_kill in [*kills, shard.records]:
        attempt = LoadedShard.read(shard, blocks).windows(order, offset, size)
        for window, _ in zip(attempt, range(done_before_kill), strict=False):
            assert window.begin == offset
            assert len(window.records) == window.good <= window.end - window.begin <= size
            seen += array(window.records).tolist()
            bad += window.bad
            offset = window.end
    assert offset == shard.records
    assert sorted(seen) == list(range(sum(good for good, _ in goods)))
    assert bad == sum(bad for _, bad in goods)


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_an_order_is_a_permutation_that_depends_only_on_the_seed(records: int, seed: int) -> None:
    order = order_of(records, seed)
    assert sorted(order.tolist()) == list(range(records))
    assert np.array_equal(order, order_of(records, seed))


def test_the_order_is_the_same_in_every_release() -> None:
    assert (
        order_of(8, 7).tolist() == np.random.Generator(np.random.PCG64(7)).permutation(8).tolist()
    )
    assert order_of(4, None).tolist() == [0, 1, 2, 3]


def test_columns_are_cut_alike() -> None:
    block = Block({"a": np.arange(5), "b": np.arange(10).reshape(5, 2)}, 5)
    shard = Shard(ShardId(1), "s", 10, 15)
    first, *_ = LoadedShard.read(shard, [block]).windows(order_of(5, None), 2, 2)
    assert first.records["a"].tolist() == [2, 3]
    assert first.records["b"].tolist() == [[4, 5], [6, 7]]


def test_a_bad_record_is_left_out_and_counted_with_its_words() -> None:
    shard, blocks = blocks_of([(2, 1)])
    (window,) = LoadedShard.read(shard, blocks).windows(order_of(3, None), 0, 8)
    assert (window.good, window.bad, window.bad_examples) == (2, 1, ("bad 0",))


def test_a_reader_that_gives_fewer_records_than_promised_is_named() -> None:
    shard, blocks = blocks_of([(2, 0)])
    with pytest.raises(UserError, match="reader returned 2"):
        LoadedShard.read(Shard(shard.id, "s", 0, 3), blocks)
