"""Layers from text to numbers, and from numbers to ids.

All take dense, sparse and ragged tensors.
"""

from __future__ import annotations

from typing import Any, final

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.preprocessing.values import map_values

Layer: Any = keras.layers.Layer
"""Keras has no types."""


@final
class ToNumber(Layer):  # type: ignore[misc]
    """Strings to numbers of type `out_type`; `default_value` for an empty string."""

    def __init__(self, out_type: str = "float32", default_value: float = 0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.out_type = tf.as_dtype(out_type).name
        self.default_value = default_value

    def call(self, inputs: Tensor) -> Tensor:
        """Numbers in the form of the strings. TensorFlow raises for text that is no number."""
        return map_values(self._number, inputs)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:  # noqa: ANN401
        """The same shape, of type `out_type`."""
        return keras.KerasTensor(inputs.shape, self.out_type, sparse=inputs.sparse)

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        own = {"out_type": self.out_type, "default_value": self.default_value}
        return {**super().get_config(), **own}

    def _number(self, text: Tensor) -> Tensor:
        if text.dtype != tf.string:
            return tf.cast(text, self.out_type)
        empty = tf.equal(text, "")
        numbers = tf.strings.to_number(tf.where(empty, "0", text), self.out_type)
        default = tf.as_dtype(self.out_type).as_numpy_dtype(self.default_value)
        return tf.where(empty, default, numbers)


class _ToId(Layer):  # type: ignore[misc]
    """Numbers to ids of type int64; `default_value` for what is below 0 or too large."""

    def __init__(self, default_value: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        # Otherwise Keras casts the inputs to float32, which has no exact integer above 2^24.
        self.autocast = False
        self.default_value = default_value

    def call(self, inputs: Tensor) -> Tensor:
        """Ids in the form of the numbers."""
        return map_values(self._id, inputs)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:  # noqa: ANN401
        """The same shape, of type int64."""
        return keras.KerasTensor(inputs.shape, "int64", sparse=inputs.sparse)

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        return {**super().get_config(), "default_value": self.default_value}

    def _bounded(self, ids: Tensor, count: int) -> Tensor:
        """`ids`, rounded and finite or not, as int64 in 0..count - 1, else the default."""
        if ids.dtype.is_integer:
            # The bound may not fit a small type.
            ids = tf.cast(ids, tf.int64)
        fits = tf.logical_and(ids >= 0, ids < tf.cast(count, ids.dtype))
        # A cast of NaN and infinity is undefined, so they are replaced first.
        safe = tf.where(fits, ids, tf.zeros_like(ids))
        return tf.where(fits, tf.cast(safe, tf.int64), tf.cast(self.default_value, tf.int64))

    def _id(self, numbers: Tensor) -> Tensor:
        raise NotImplementedError


@final
class RoundIdentity(_ToId):
    """The nearest integer as the id; `default_value` outside 0..num_buckets - 1."""

    def __init__(self, num_buckets: int, default_value: int = 0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(default_value, **options)
        self.num_buckets = num_buckets

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        return {**super().get_config(), "num_buckets": self.num_buckets}

    def _id(self, numbers: Tensor) -> Tensor:
        return self._bounded(tf.round(numbers), self.num_buckets)


@final
class LogRound(_ToId):
    """The rounded logarithm as the id; `default_value` outside 0..num_bins - 1.

    `base` None is the natural logarithm.
    """

    def __init__(
        self,
        num_bins: int,
        base: float | None = None,
        default_value: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(default_value, **options)
        self.num_bins = num_bins
        self.base = base

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        return {**super().get_config(), "num_bins": self.num_bins, "base": self.base}

    def _id(self, numbers: Tensor) -> Tensor:
        kind = numbers.dtype if numbers.dtype.is_floating else tf.float64
        logarithms = tf.math.log(tf.cast(numbers, kind))
        if self.base is not None:
            logarithms /= tf.math.log(tf.cast(self.base, kind))
        return self._bounded(tf.round(logarithms), self.num_bins)
