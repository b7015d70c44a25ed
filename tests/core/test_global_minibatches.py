"""Parts of global minibatches: whoever is in the ring, together they are the windows, each record
once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.clock import SystemClock
from elasticdl.data.base import Block, Metadata
from elasticdl.model.bad_record_filter import Feed
from elasticdl.rpc.conversation import Finished, Wait
from elasticdl.shard import Barrier, Lease, Shard, ShardId, Source, Task, WorkItem
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Draining, Shutdown
from elasticdl.worker.process.thread_queue import Ended
from elasticdl.worker.process.time_account import TimeAccount
from elasticdl.worker.ring.reading import (
    UNDER_WAY,
    AtBarrier,
    BatchPart,
    End,
    ReadPlan,
    RingReading,
    slice_of,
)

pytestmark = pytest.mark.core

SHARD, BATCH = 20, 6


class Reader:
    metadata = Metadata(())

    def sources(self) -> Any:
        return (Source("memory", SHARD),)

    def read(self, shard: Shard) -> Iterator[Block]:
        rows = np.arange(shard.begin, shard.end)
        yield Block(rows[:8], 8)
        yield Block(rows[8:-1], len(rows) - 8, bad=1, bad_examples=("row 19 is bad",))

    def close(self) -> None: ...


class Items:
    """Training, a pause, training, the end."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def request_item(
        self, number: int, wait_s: float, *, at_mark: bool = False
    ) -> Finished | Wait | WorkItem:
        self.asked.append(number)
        if number == 2:
            return WorkItem(2, None, mark=Barrier.PAUSE)
        if number > 3:
            return Finished() if self.asked.count(number) > 1 else Wait("not yet")
        return WorkItem(
            number,
            Lease(Task.TRAINING, Shard(ShardId(0), "memory", 0, SHARD), number, order_seed=number),
            batch=BATCH,
        )


class FirstItem(Items):
    """The first item, whichever is asked for."""

    def request_item(
        self, number: int, wait_s: float, *, at_mark: bool = False
    ) -> Finished | Wait | WorkItem:
        return super().request_item(1, wait_s)


class AtThree(Items):
    """A ring that is at item 3: the answer to who asks for none."""

    def request_item(
        self, number: int, wait_s: float, *, at_mark: bool = False
    ) -> Finished | Wait | WorkItem:
        return super().request_item(number or 3, wait_s)


class NoRing(Items):
    def request_item(self, number: int, wait_s: float, *, at_mark: bool = False) -> Wait:
        self.asked.append(number)
        return Wait("no worker is ready yet")


class Counting(Reader):
    def __init__(self) -> None:
        self.read_shards: list[Shard] = []
        self.second = threading.Event()

    def read(self, shard: Shard) -> Iterator[Block]:
        self.read_shards.append(shard)
        if len(self.read_shards) > 1:
            self.second.set()
        yield from super().read(shard)


@pytest.fixture
def shutdown() -> Iterator[Shutdown]:
    made = Shutdown()
    yield made
    made.fail(RuntimeError("the test is over"))


def same(window: Any) -> Any:
    """Features and labels are the rows."""
    return window, window


def unstarted(
    shutdown: Shutdown, items: Items, reader: Reader | None = None, feed: Feed = same
) -> RingReading:
    reader = reader or Reader()
    sources = Sources(lambda task: reader, lambda task: feed, BATCH)
    clock = SystemClock()
    watch, times = HangWatch(clock), TimeAccount(clock)
    return RingReading(items, sources, watch, shutdown, threading.Condition(), times)


def reading_of(
    shutdown: Shutdown, items: Items, reader: Reader | None = None, feed: Feed = same
) -> RingReading:
    reading = unstarted(shutdown, items, reader, feed)
    reading.start()
    return reading


def until_mark(reading: RingReading) -> list[BatchPart]:
    parts = []
    while isinstance(found := reading.next(lambda: False), BatchPart):
        parts.append(found)
    assert isinstance(found, (AtBarrier, End))
    return parts


@given(begin=st.integers(0, 50), length=st.integers(0, 40), size=st.integers(1, 9))
def test_slices_follow_one_another_and_differ_by_at_most_one(
    begin: int, length: int, size: int
) -> None:
    slices = [slice_of(begin, begin + length, rank, size) for rank in range(size)]
    assert [one for low, high in slices for one in range(low, high)] == list(
        range(begin, begin + length)
    )
    lengths = {high - low for low, high in slices}
    assert max(lengths) - min(lengths) <= 1


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 5), offset=st.integers(0, SHARD))
def test_members_together_read_each_record_of_each_window_once(size: int, offset: int) -> None:
    shutdown = Shutdown()
    try:
        of_all = []
        for rank in range(size):
            reading = reading_of(shutdown, Items())
            reading.begin(ReadPlan(1, offset, rank, size))
            of_all.append(until_mark(reading))
        order = np.random.Generator(np.random.PCG64(1)).permutation(SHARD)
        for parts in zip(*of_all, strict=True):
            begin, end = parts[0].begin, parts[0].end
            assert {(part.begin, part.end, part.bad) for part in parts} == {
                (begin, end, int(19 in order[begin:end]))
            }
            read = [
                row
                for part in parts
                for batch in part.batches
                if batch is not None
                for row in batch[0].tolist()
            ]
            assert read == [row for row in order[begin:end].tolist() if row != 19]
            assert sum(part.mine for part in parts) == end - begin
        assert sum(parts[0].records for parts in zip(*of_all, strict=True)) == SHARD - offset
    finally:
        shutdown.fail(RuntimeError("the test is over"))


def test_a_new_plan_drops_what_was_made_for_the_old_one_and_reads_no_shard_again(
    shutdown: Shutdown,
) -> None:
    items = Items()
    reading = reading_of(shutdown, items)
    reading.begin(ReadPlan(1, None, 0, 2))
    first = reading.next(lambda: False)
    reading.begin(ReadPlan(1, 0, 0, 1))
    again = reading.next(lambda: False)
    assert isinstance(first, BatchPart) and isinstance(again, BatchPart)
    assert (first.begin, first.mine) == (0, 3) and (again.begin, again.mine) == (0, 6)
    assert items.asked.count(1) == 1
    until_mark(reading)
    assert shutdown.reason is None


def test_what_the_ring_is_at_is_read_before_there_is_a_plan_and_not_again(
    shutdown: Shutdown,
) -> None:
    items, reader = AtThree(), Counting()
    reading = unstarted(shutdown, items, reader)
    reading.read_ahead()
    assert (items.asked, len(reader.read_shards)) == ([3, 4], 1)
    reading.start()
    reading.begin(ReadPlan(3, 0, 0, 1))
    assert isinstance(reading.next(lambda: False), BatchPart)
    assert 3 not in items.asked[2:]
    assert len(reader.read_shards) == 1


def test_a_plan_that_is_being_made_is_not_begun_again(shutdown: Shutdown) -> None:
    fed: list[int] = []
    first = threading.Event()

    def feed(window: Any) -> Any:
        fed.append(len(window))
        first.set()
        return window, window

    reading = reading_of(shutdown, Items(), feed=feed)
    plan = ReadPlan(1, 0, 0, 1)
    reading.begin(plan)
    assert first.wait(60)
    reading.begin(plan)
    assert len(until_mark(reading)) == len(fed) == 4
    reading.begin(plan)
    assert len(until_mark(reading)) == 4
    assert len(fed) == 8


def test_no_shard_is_read_ahead_before_the_ring_is_under_way(shutdown: Shutdown) -> None:
    reader = Counting()
    reading = reading_of(shutdown, FirstItem(), reader)
    reading.begin(ReadPlan(1, 0, 0, 1))
    for _ in range(UNDER_WAY):
        assert len(reader.read_shards) <= 1
        reading.next(lambda: False)
    assert reader.second.wait(60)


def test_the_rest_of_a_shard_that_is_read_ahead_waits_while_the_ring_is_formed_again(
    shutdown: Shutdown,
) -> None:
    begun, go, rest = threading.Event(), threading.Event(), threading.Event()

    class Slow(Reader):
        reads = 0

        def read(self, shard: Shard) -> Iterator[Block]:
            self.reads += 1
            blocks = list(super().read(shard))
            if self.reads == 2:
                begun.set()
                assert go.wait(60)
            yield blocks[0]
            if self.reads == 2:
                rest.set()
            yield blocks[1]

    reading = reading_of(shutdown, FirstItem(), Slow())
    reading.begin(ReadPlan(1, 0, 0, 1))
    for _ in range(UNDER_WAY):
        reading.next(lambda: False)
    assert begun.wait(60)
    reading.begin(ReadPlan(1, 0, 0, 2))
    go.set()
    for _ in range(UNDER_WAY):
        assert not rest.is_set()
        reading.next(lambda: False)
    assert rest.wait(60)


def test_a_plan_that_goes_back_to_a_forgotten_item_gets_it_though_a_later_shard_is_being_read(
    shutdown: Shutdown,
) -> None:
    """Items of one step each: the stages were so far ahead that the item of the last step was
    forgotten.
    """
    begun, go = threading.Event(), threading.Event()

    class Slow(Reader):
        def read(self, shard: Shard) -> Iterator[Block]:
            if shard.id == 4 and not go.is_set():
                begun.set()
                assert go.wait(60)
            yield from super().read(shard)

    class Short(Items):
        def request_item(self, number: int, wait_s: float, *, at_mark: bool = False) -> WorkItem:
            self.asked.append(number)
            return WorkItem(
                number,
                Lease(Task.TRAINING, Shard(ShardId(number), "memory", 0, SHARD), 1),
                batch=SHARD,
            )

    items = Short()
    reading = reading_of(shutdown, items, Slow())
    reading.begin(ReadPlan(1, None, 0, 1))
    first = [reading.next(lambda: False) for _ in range(2)]
    assert [one.item.number for one in first if isinstance(one, BatchPart)] == [1, 2]
    assert begun.wait(60)
    with reading._changed:  # the feeder forgets it when it comes to the item that is being read
        assert reading._changed.wait_for(lambda: 2 not in reading._items, 60)
    reading.begin(ReadPlan(2, SHARD, 0, 2))
    go.set()
    deadline_s = time.monotonic() + 60
    found = reading.next(lambda: time.monotonic() > deadline_s)
    assert isinstance(found, BatchPart) and found.item.number == 3
    assert items.asked.count(2) == 2, "it had been forgotten"


def test_where_there_is_no_ring_yet_nothing_is_read_ahead(shutdown: Shutdown) -> None:
    items, reader = NoRing(), Counting()
    unstarted(shutdown, items, reader).read_ahead()
    assert items.asked and not reader.read_shards


def test_nothing_after_a_pause_is_asked_for_before_the_pause_is_over(shutdown: Shutdown) -> None:
    items = Items()
    reading = reading_of(shutdown, items)
    reading.begin(ReadPlan(1, None, 0, 1))
    until_mark(reading)
    assert set(items.asked) == {1, 2}
    reading.begin(ReadPlan(3, None, 0, 1))
    assert len(until_mark(reading)) == 4


def test_who_waits_for_a_part_can_be_called_away_and_a_drain_does_not_end_it(
    shutdown: Shutdown,
) -> None:
    reading = reading_of(shutdown, Items())
    assert reading.next(lambda: True) is None
    shutdown.end(Draining("test"))
    reading.begin(ReadPlan(1, None, 0, 1))
    assert isinstance(reading.next(lambda: False), BatchPart)
    shutdown.fail(RuntimeError("gone"))
    with pytest.raises(Ended):
        while True:
            reading.next(lambda: False)
