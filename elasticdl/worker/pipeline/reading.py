"""From leases to batches, in two threads: one reads whole shards, the other feeds windows of them.

While one shard is fed, the next is read. Everything comes out in the order in which leases were
granted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from elasticdl.data.base import Reader
from elasticdl.model.bad_record_filter import BadRecordFilter, Feed
from elasticdl.shard import Task
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of
from elasticdl.worker.pipeline.trainer import Batch
from elasticdl.worker.process.thread_queue import Ended, ThreadQueue
from elasticdl.worker.process.time_account import Stage

DEPTH = 2
"""Batches that are fed ahead of the one being pulled."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Readers and feeds, opened once per task at first use."""

    reader: Callable[[Task], Reader]
    feed: Callable[[Task], Feed]
    minibatch_size: int
    max_bad_records: int = 0
    reading: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    """Held while a reader is used: readers are for one thread at a time."""
    open_features: Callable[[Task], Any] = lambda task: None
    """Specs of the features of any batch, lengths that `feed` leaves open unknown.

    None before a batch.
    """
    training_window: int = 0
    """Records of a window of training data, if fewer than a minibatch."""

    def window(self, task: Task) -> int:
        """Records that `feed` gets at once."""
        return (task is Task.TRAINING and self.training_window) or self.minibatch_size

    def sieve(self, task: Task) -> BadRecordFilter:
        """`feed` of a task, which skips and reports the records that it cannot process."""
        return BadRecordFilter(
            self.feed(task), self.reader(task), self.max_bad_records, self.reading
        )


_Read: TypeAlias = tuple[HeldLease, LoadedShard | None]


@final
class ShardReading:
    """Thread 1: leases to shards in memory, one ahead."""

    def __init__(self, sources: Sources, context: WorkerContext) -> None:
        self._sources = sources
        self._keeper = context.keeper
        self._shutdown = context.shutdown
        self._gauges = context.gauges
        self._watch = context.watch
        self.shards: ThreadQueue[_Read] = ThreadQueue(depth=1)
        context.shutdown.listen(self.shards.close)

    def start(self) -> None:
        threading.Thread(target=self._run, name="reader", daemon=True).start()

    def _run(self) -> None:
        self._gauges.times.join(Stage.READ)
        try:
            while True:
                held = self._keeper.next()
                with self._shutdown.failing_for(held.lease), self._watch.doing("reading a shard"):
                    loaded = self._read(held)
                self.shards.put((held, loaded))
        except Ended:
            self.shards.finish()

    def _read(self, held: HeldLease) -> LoadedShard | None:
        shard = held.lease.shard
        if shard is None or self._keeper.is_void(held):
            return None
        reader = self._sources.reader(held.lease.task)
        # The bad record filter reads from the feeder's thread to describe a record.
        with self._sources.reading, self._gauges.timed("read_ms", TimeUse.READ):
            return LoadedShard.read(shard, reader.read(shard))


@final
class Feeding:
    """Thread 2: shards in memory to batches. The consumer drops batches of void leases."""

    def __init__(self, reading: ShardReading, sources: Sources, context: WorkerContext) -> None:
        self._shards = reading.shards
        self._sources = sources
        self._keeper = context.keeper
        self._shutdown = context.shutdown
        self._gauges = context.gauges
        self._watch = context.watch
        self.batches: ThreadQueue[Batch] = ThreadQueue(DEPTH)
        context.shutdown.listen(self.batches.close)

    def start(self) -> None:
        threading.Thread(target=self._run, name="feeder", daemon=True).start()

    def _run(self) -> None:
        self._gauges.times.join(Stage.FEED)
        try:
            while True:
                held, loaded = self._shards.get()
                with self._shutdown.failing_for(held.lease):
                    self._feed(held, loaded)
        except Ended:
            self.batches.finish()

    def _feed(self, held: HeldLease, loaded: LoadedShard | None) -> None:
        """All batches of one lease.

        Windows of which `feed` keeps nothing count with the batch after them.
        """
        lease, shard = held.lease, held.lease.shard
        if shard is None:
            self.batches.put(Batch(held))
            return
        if loaded is None:
            return
        feed = self._sources.sieve(lease.task)
        reported = lease.offset
        bad = 0
        examples: tuple[str, ...] = ()
        if reported >= shard.records:
            # Nothing is left of it, so no window would report that it is done.
            self.batches.put(Batch(held, end=reported))
        for window in loaded.windows(
            order_of(shard.records, lease.order_seed),
            lease.offset,
            self._sources.window(lease.task),
        ):
            if self._keeper.is_void(held):
                return
            bad, examples = bad + window.bad, (*examples, *window.bad_examples)[:3]
            pair = None
            if window.good:
                with self._gauges.timed("feed_ms", TimeUse.FEED), self._watch.doing("feed"):
                    fed = feed(window.records, shard, window.places)
                pair, bad, examples = (
                    fed.minibatch,
                    bad + fed.bad,
                    (*examples, *fed.bad_examples)[:3],
                )
            last = window.end == shard.records
            # Its records count with the next batch, which pushes: the servers must not have gaps.
            if pair is None and not last:
                continue
            features, labels = pair if pair is not None else (None, None)
            self.batches.put(
                Batch(
                    held,
                    window.end,
                    window.end - reported,
                    bad,
                    examples,
                    last,
                    pair is not None,
                    features,
                    labels,
                )
            )
            reported, bad, examples = window.end, 0, ()
