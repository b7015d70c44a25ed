"""Apply a function to the values of a dense, sparse or ragged tensor."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor


def map_values(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """The tensor with `function` of its values, which keeps their shape."""
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensor(tensor.indices, function(tensor.values), tensor.dense_shape)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(function(tensor.flat_values))
    return function(tf.convert_to_tensor(tensor))
