"""What the members of a new ring tell one another before they go on: who has what, and the state of the one that has most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.worker.ring import Ring, Tensor

_CHUNK_BYTES = 64 << 20


@final
class Exchange:
    """Compiled at the first call of each, so call them once before they are in a hurry. All raise RingBroken."""

    def __init__(self, ring: Ring, variables: Sequence[Any]) -> None:
        """`variables` are all that members have to have alike: the same ones, in the same order, everywhere."""
        self._ring = ring
        self._chunks = list(_chunks(variables))
        self._gather = tf.function(self._gathered, autograph=False)
        self._give = tf.function(self._given, input_signature=[tf.TensorSpec([], tf.bool)], autograph=False)

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """int64[size, len(numbers)]: each member's numbers, in the order of their ranks."""
        with self._ring.guarded():
            return np.asarray(self._gather(tf.constant([list(numbers)], tf.int64)).numpy(), np.int64)

    def hand_over(self, *, giving: bool) -> None:
        """All get the values of the one member that gives."""
        with self._ring.guarded():
            self._give(tf.constant(giving))

    def copied(self) -> list[NDArray[Any]]:
        """The values of all variables: copies."""
        return [np.array(one.numpy()) for chunk in self._chunks for one in chunk]

    def load(self, values: Sequence[NDArray[Any]]) -> None:
        """Set all variables to what `copied` gave."""
        for one, value in zip([one for chunk in self._chunks for one in chunk], values, strict=True):
            one.assign(value)

    def _gathered(self, numbers: Tensor) -> Tensor:
        return self._ring.gathered(f"numbers.{numbers.shape[1]}", numbers)

    def _given(self, giving: Tensor) -> Tensor:
        """Bytes: some types that variables have, Horovod does not. All but one give no rows, and only they take any."""
        for number, chunk in enumerate(self._chunks):
            sent = tf.cond(giving, partial(_packed, chunk), lambda: tf.zeros([0], tf.uint8))
            got = self._ring.gathered(f"state.{number}", sent)
            tf.cond(giving, lambda: False, partial(_unpacked, chunk, got))
        return giving


def _packed(chunk: Sequence[Any]) -> Tensor:
    return tf.concat([_bytes(one.value) for one in chunk], 0)


def _unpacked(chunk: Sequence[Any], got: Tensor) -> bool:
    sizes = [int(np.prod(one.shape)) * one.value.dtype.size for one in chunk]
    for one, piece in zip(chunk, tf.split(got, sizes), strict=True):
        one.assign(_value(piece, one))
    return True


def _bytes(value: Tensor) -> Tensor:
    """uint8[size in bytes]."""
    return tf.reshape(tf.cast(value, tf.uint8) if value.dtype == tf.bool else tf.bitcast(value, tf.uint8), [-1])


def _value(data: Tensor, variable: Any) -> Tensor:  # noqa: ANN401 - a Keras variable
    dtype = variable.value.dtype
    if dtype == tf.bool:
        return tf.reshape(tf.cast(data, tf.bool), variable.shape)
    whole = tf.reshape(data, [*variable.shape, dtype.size]) if dtype.size > 1 else tf.reshape(data, variable.shape)
    return tf.bitcast(whole, dtype)


def _chunks(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Parts of some megabytes, so that a large model is not in memory three times."""
    part: list[Any] = []
    size_bytes = 0
    for one in variables:
        part.append(one)
        size_bytes += int(np.prod(one.shape)) * one.value.dtype.size
        if size_bytes >= _CHUNK_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
