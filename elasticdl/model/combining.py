"""Combine the embeddings of several ids per example, as `tf.nn.embedding_lookup_sparse` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor

COMBINERS: Final = ("sum", "mean", "sqrtn")


@final
@dataclass(frozen=True, slots=True)
class Bags:
    """The ids of a batch without padding: `ids[k]`, [n], belongs to example `examples[k]`.

    `count` is the number of examples, those without an id included. `weights[k]` is the id's
    weight; None: all are 1.
    """

    ids: Tensor
    examples: Tensor
    count: Tensor
    weights: Tensor | None

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor | None) -> Bags:
        """From a SparseTensor or dense tensor [batch, any], or a RaggedTensor [batch, None].

        Weights have the form of the ids. Raises ValueError for other ranks.
        """
        if ids.shape.rank != 2:
            raise ValueError(
                f"an Embedding with a combiner takes ids of rank 2, [batch, ids], got {ids.shape}"
            )
        values = None if weights is None else _values(weights)
        if isinstance(ids, tf.RaggedTensor):
            return cls(_values(ids), ids.value_rowids(), ids.nrows(), values)
        if isinstance(ids, tf.SparseTensor):
            return cls(ids.values, ids.indices[:, 0], ids.dense_shape[0], values)
        shape = tf.shape(ids, tf.int64)
        return cls(_values(ids), tf.repeat(tf.range(shape[0]), shape[1]), shape[0], values)

    def combined(self, rows: Tensor, combiner: str) -> Tensor:
        """Rows [n, dim] to [count, dim]; zeros for an example without ids, or of weight 0."""
        if self.weights is None:
            weights = tf.ones_like(rows[:, :1])
        else:
            with tf.control_dependencies([self._fitting_weights()]):
                weights = tf.cast(self.weights, rows.dtype)[:, None]
        total = self._sum(rows * weights)
        if combiner == "sum":
            return total
        if combiner == "mean":
            return tf.math.divide_no_nan(total, self._sum(weights))
        # The root of 0 has no finite derivative, so its example gets 1, and the sum is 0 anyway.
        squares = self._sum(weights**2)
        return total / tf.sqrt(tf.where(squares > 0, squares, tf.ones_like(squares)))

    def _sum(self, values: Tensor) -> Tensor:
        return tf.math.unsorted_segment_sum(values, self.examples, self.count)

    def _fitting_weights(self) -> Tensor:
        return tf.debugging.assert_equal(
            tf.size(self.weights), tf.size(self.ids), message="each id needs one weight"
        )


def _values(tensor: Tensor) -> Tensor:
    """All values in a vector."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.flat_values
    return tensor.values if isinstance(tensor, tf.SparseTensor) else tf.reshape(tensor, [-1])
