"""Exchange the gradients of embedding rows between the members of a ring.

With Keras such a gradient is a `tf.IndexedSlices` with one slice for each occurrence of an id, and
most optimizers square each slice. So slices with equal ids stay apart, also on their way to
other members, unless `RingModel.sums_rows` allows to sum them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.packing import Reducer, wide

RowSlices: TypeAlias = tuple[Tensor, Tensor]
"""Ids, int64[n], and a row for each."""


def gathered(
    reducer: Reducer, gradients: Mapping[int, tf.IndexedSlices], *, summed: bool
) -> dict[int, RowSlices]:
    """The slices of all members, by rank and then by position.

    Tables with rows of one shape and type share an exchange. `summed`: slices with equal ids become
    one, on each member before they travel, and then over all members.
    """
    groups: dict[Any, list[int]] = {}
    for index, gradient in gradients.items():
        kind = tuple(gradient.values.shape[1:]), wide([gradient.values.dtype])
        groups.setdefault(kind, []).append(index)
    slices: dict[int, RowSlices] = {}
    for number, ((_, dtype), indices) in enumerate(groups.items()):
        tables = len(indices)
        # A key has the id and its table, so that one exchange has the ids of all tables.
        keys = tf.concat(
            [
                tf.cast(gradients[index].indices, tf.int64) * tables + table
                for table, index in enumerate(indices)
            ],
            0,
        )
        rows = tf.concat([tf.cast(gradients[index].values, dtype) for index in indices], 0)
        if summed:
            keys, rows = merged(keys, rows)
        # Ids are known before their rows are: together they cost one round of negotiation.
        with tf.control_dependencies([rows]):
            keys = tf.identity(keys)
        keys = reducer.gathered(f"ids.{number}", keys)
        rows = reducer.gathered(f"rows.{number}", rows)
        if summed:
            keys, rows = merged(keys, rows)
        slices |= zip(indices, _by_table(keys, rows, tables), strict=True)
    return slices


def merged(ids: Tensor, rows: Tensor) -> RowSlices:
    """Distinct ids, and for each the sum of its rows, in the order in which they come."""
    distinct, places = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(rows, places, tf.size(distinct))


def add_in_order(variable: tf.Variable) -> None:
    """Make `scatter_add` and `scatter_sub` of a variable merge slices with equal ids.

    TensorFlow adds them with several threads in any order, so the members' weights would drift
    apart.
    """
    for name in ("scatter_add", "scatter_sub"):
        setattr(variable, name, partial(_scatter, getattr(variable, name)))


def _scatter(
    scatter: Callable[..., Tensor],
    slices: tf.IndexedSlices,
    use_locking: bool = False,
    name: str | None = None,
) -> Tensor:
    ids, rows = merged(slices.indices, slices.values)
    return scatter(tf.IndexedSlices(rows, ids, slices.dense_shape), use_locking, name)


def _by_table(keys: Tensor, rows: Tensor, tables: int) -> list[RowSlices]:
    if tables == 1:
        return [(keys, rows)]
    table = tf.cast(keys % tables, tf.int32)
    ids = tf.dynamic_partition(keys // tables, table, tables)
    return list(zip(ids, tf.dynamic_partition(rows, table, tables), strict=True))
