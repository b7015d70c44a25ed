"""Layers from text to numbers, and from numbers to ids.

All take dense, sparse and ragged tensors.
"""

from __future__ import annotations

from typing import Any, final

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.preprocessing.values import OfValues


@final
class ToNumber(OfValues):
    """Strings to numbers of type `out_type`; `default_value` for an empty string.

    TensorFlow raises for text that is no number.
    """

    def __init__(self, out_type: str = "float32", default_value: float = 0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.out_type = self.made_dtype = tf.as_dtype(out_type).name
        self.default_value = default_value

    def get_config(self) -> dict[str, Any]:
        own = {"out_type": self.out_type, "default_value": self.default_value}
        return {**super().get_config(), **own}

    def _made(self, values: Tensor) -> Tensor:
        if values.dtype != tf.string:
            return tf.cast(values, self.out_type)
        empty = tf.equal(values, "")
        numbers = tf.strings.to_number(tf.where(empty, "0", values), self.out_type)
        default = tf.as_dtype(self.out_type).as_numpy_dtype(self.default_value)
        return tf.where(empty, default, numbers)


class _ToId(OfValues):
    """Numbers to ids of type int64; `default_value` for what is below 0 or too large."""

    def __init__(self, default_value: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        # Otherwise Keras casts the inputs to float32, which has no exact integer above 2^24.
        self.autocast = False
        self.default_value = default_value

    def get_config(self) -> dict[str, Any]:
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


@final
class RoundIdentity(_ToId):
    """The nearest integer as the id; `default_value` outside 0..num_buckets - 1."""

    def __init__(self, num_buckets: int, default_value: int = 0, **options: Any) -> None:  # noqa: ANN401
        super().__init__(default_value, **options)
        self.num_buckets = num_buckets

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_buckets": self.num_buckets}

    def _made(self, values: Tensor) -> Tensor:
        return self._bounded(tf.round(values), self.num_buckets)


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
        return {**super().get_config(), "num_bins": self.num_bins, "base": self.base}

    def _made(self, values: Tensor) -> Tensor:
        kind = values.dtype if values.dtype.is_floating else tf.float64
        logarithms = tf.math.log(tf.cast(values, kind))
        if self.base is not None:
            logarithms /= tf.math.log(tf.cast(self.base, kind))
        return self._bounded(tf.round(logarithms), self.num_bins)
