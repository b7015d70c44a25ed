"""A first batch without a lease, for models that need one to be built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId, Task
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.structure import Structure

_SHARDS_TRIED = 8


def first_features(sources: Sources, task: Task) -> Structure:
    """Features of the first batch; see `first_batch`."""
    return first_batch(sources, task)[0]


def first_batch(sources: Sources, task: Task) -> tuple[Structure, Structure]:
    """(features, labels) of the first records that `feed` keeps; none of them counts as read.

    Raises UserError if there are none in the first few minibatches.
    """
    reader, feed = sources.reader(task), sources.sieve(task)
    source = reader.sources()[0]
    for number in range(_SHARDS_TRIED):
        begin = number * sources.minibatch_size
        end = min(begin + sources.minibatch_size, source.records)
        if begin >= end:
            break
        shard = Shard(ShardId(-1), source.name, begin, end)
        for window in LoadedShard.read(shard, reader.read(shard)).windows(
            order_of(shard.records, None), 0, shard.records
        ):
            batch = feed(window.records, shard, window.places).minibatch if window.good else None
            if batch is not None:
                return batch
    raise UserError(
        f"`feed` kept none of the first records of {source.name}", hint="check what it filters"
    )
