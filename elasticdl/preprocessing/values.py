"""Apply a function, or a layer, to the values of a dense, sparse or ragged tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor


def map_values(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """The tensor with `function` of its values, which keeps their shape."""
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensor(tensor.indices, function(tensor.values), tensor.dense_shape)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(function(tensor.flat_values))
    return function(tf.convert_to_tensor(tensor))


class OfValues(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Each value becomes one of type `made_dtype`, in the same form: dense, sparse or ragged."""

    made_dtype = "int64"

    def call(self, inputs: Tensor) -> Tensor:
        """Map the values."""
        return map_values(self._made, inputs)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:  # noqa: ANN401
        """The same shape."""
        return keras.KerasTensor(inputs.shape, self.made_dtype, sparse=inputs.sparse)

    def _made(self, values: Tensor) -> Tensor:
        """What becomes of values of any shape."""
        raise NotImplementedError
