"""Pack many tensors into a few long vectors, which a ring reduces at once.

There is one vector per float type, cut into pieces of some megabytes, so that the reduction of the
last layers overlaps with the gradients of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import numpy as np
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor

BUCKET_BYTES = 16 << 20


class Reducer(Protocol):
    """The reductions that a step needs from the ring.

    Called while a function is traced; all members make the same calls in the same order.
    """

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """Sum of a float32 or float64 vector over all members; bit-identical on all of them."""

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """The rows of all members, in the order of their ranks; first axes may differ in length."""

    def guarded(self) -> AbstractContextManager[None]:
        """Wrap calls of functions that reduce: an error of the ring becomes an ElasticDLError."""


@final
class Packing:
    """Concatenates tensors into vectors to be reduced, and splits the results again.

    Half-precision types travel as float32.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._tensors: list[Tensor] = []
        self._results: list[Tensor] = []

    def add(self, tensor: Tensor) -> int:
        """Add a tensor; returns the number by which `get` returns its sum."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def added(self) -> list[Tensor]:
        return list(self._tensors)

    def reduce(self) -> None:
        """Begin all reductions.

        The last tensors go into the first vectors, because their gradients are ready first.
        """
        self._results = [None] * len(self._tensors)
        buckets: dict[Any, list[list[int]]] = {}
        for index in reversed(range(len(self._tensors))):
            tensor = self._tensors[index]
            # One type per vector: a float64 sum must not pass through float32.
            parts = buckets.setdefault(wide([tensor.dtype]), [[]])
            if parts[-1] and self._bytes([*parts[-1], index]) > BUCKET_BYTES:
                parts.append([])
            parts[-1].append(index)
        for dtype, parts in buckets.items():
            for number, part in enumerate(parts):
                self._reduce(f"{tf.as_dtype(dtype).name}.{number}", dtype, part)

    def get(self, number: int) -> Tensor:
        """The sum over all members."""
        return self._results[number]

    def _bytes(self, part: Sequence[int]) -> int:
        return sum(
            int(np.prod(self._tensors[index].shape.as_list())) * self._tensors[index].dtype.size
            for index in part
        )

    def _reduce(self, name: str, dtype: tf.DType, part: Sequence[int]) -> None:
        flat = tf.concat(
            [tf.cast(tf.reshape(self._tensors[index], [-1]), dtype) for index in part], 0
        )
        sizes = [int(np.prod(self._tensors[index].shape.as_list())) for index in part]
        for index, piece in zip(
            part, tf.split(self._reducer.reduced(name, flat), sizes), strict=True
        ):
            self._results[index] = tf.cast(
                tf.reshape(piece, self._tensors[index].shape), self._tensors[index].dtype
            )


def wide(dtypes: Sequence[tf.DType]) -> tf.DType:
    """float64 if any of the types is, else float32."""
    return tf.float64 if any(tf.as_dtype(dtype) == tf.float64 for dtype in dtypes) else tf.float32
