"""Layers that put ids of several features together, and leave values out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.preprocessing.values import map_values

Layer: Any = keras.layers.Layer
"""Keras has no types."""


@final
class ConcatenateWithOffset(Layer):  # type: ignore[misc]
    """Concatenates ids of several features, so that they share one embedding without a clash.

    `offsets[k]` is added to the ids of input k: usually the number of ids of all inputs before. All
    inputs are dense, all are sparse, or all are ragged.
    """

    def __init__(self, offsets: Sequence[int] | None, axis: int = -1, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.offsets = None if offsets is None else tuple(offsets)
        self.axis = axis

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """The ids of all inputs along the axis; integers of several types become int64.

        Raises ValueError if there is another number of inputs than of offsets.
        """
        offsets = self.offsets or (0,) * len(inputs)
        if len(offsets) != len(inputs):
            raise ValueError(f"{len(offsets)} offsets for {len(inputs)} inputs: give one for each")
        types = {tf.as_dtype(tensor.dtype) for tensor in inputs}
        # StringLookup gives int64 and Discretization int32.
        mixed = len(types) > 1 and all(dtype.is_integer for dtype in types)
        moved = [
            map_values(partial(_moved, offset=offset, mixed=mixed), tensor)
            for tensor, offset in zip(inputs, offsets, strict=True)
        ]
        if isinstance(moved[0], tf.SparseTensor):
            return tf.sparse.concat(self.axis, moved)
        return tf.concat(moved, self.axis)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "offsets": self.offsets, "axis": self.axis}


@final
class ToSparse(Layer):  # type: ignore[misc]
    """A dense tensor as a sparse one without `ignore_value`: by default "" or -1."""

    def __init__(self, ignore_value: float | str | None = None, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.ignore_value = ignore_value

    def call(self, inputs: Tensor) -> Tensor:
        """A SparseTensor of the same shape; sparse inputs as they are."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        return without(self.ignore_value, tf.convert_to_tensor(inputs))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:  # noqa: ANN401
        """The same shape and type, sparse."""
        return keras.KerasTensor(inputs.shape, inputs.dtype, sparse=True)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ignore_value": self.ignore_value}


@final
class ToRagged(Layer):  # type: ignore[misc]
    """Rows without `ignore_value`, [batch, None]; strings are first split at `sep`.

    The default for `ignore_value` is "" or -1. Keras' functional models have no ragged tensors:
    call it in `feed` or in a subclassed model.
    """

    def __init__(
        self,
        sep: str = ",",
        ignore_value: float | str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**options)
        self.sep = sep
        self.ignore_value = ignore_value

    def call(self, inputs: Tensor) -> Tensor:
        """A RaggedTensor of ragged rank 1, from [batch, any]."""
        if not isinstance(inputs, tf.RaggedTensor):
            inputs = tf.RaggedTensor.from_tensor(tf.convert_to_tensor(inputs))
        if inputs.dtype == tf.string:
            inputs = tf.strings.split(inputs, self.sep).merge_dims(1, 2)
        kept = tf.not_equal(inputs.flat_values, _ignored(self.ignore_value, inputs.dtype))
        return tf.ragged.boolean_mask(inputs, inputs.with_flat_values(kept))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sep": self.sep, "ignore_value": self.ignore_value}


def without(value: float | str | None, tensor: Tensor) -> Tensor:
    """A dense tensor as a sparse one without `value`; None: "" or -1."""
    indices = tf.where(tf.not_equal(tensor, _ignored(value, tensor.dtype)))
    return tf.SparseTensor(indices, tf.gather_nd(tensor, indices), tf.shape(tensor, tf.int64))


def _moved(ids: Tensor, offset: int, mixed: bool) -> Tensor:
    if mixed:
        ids = tf.cast(ids, tf.int64)
    return ids + tf.cast(offset, ids.dtype)


def _ignored(value: float | str | None, dtype: tf.DType) -> Tensor:
    if value is None:
        value = "" if dtype == tf.string else -1
    return tf.constant(value, dtype)
