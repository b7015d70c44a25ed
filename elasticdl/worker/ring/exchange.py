"""Exchanges of members of a new ring before they train: progress and the most advanced state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.worker.ring.base import Ring, Tensor

CHUNK_BYTES = 64 << 20


@final
class Exchange:
    """Compiles at the first call of each method, so call them once before time matters.

    All methods that communicate raise RingBroken.
    """

    def __init__(
        self, ring: Ring, variables: Sequence[Any], *, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """`variables` must be equal on all members: the same ones, in the same order."""
        self._ring = ring
        self._gather = tf.function(self._gathered, autograph=False)
        self._chunks = [
            _Chunk(ring, number, part) for number, part in enumerate(_parts(variables, chunk_bytes))
        ]

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """int64[size, len(numbers)]: each member's numbers, in the order of their ranks."""
        with self._ring.guarded():
            return np.asarray(
                self._gather(tf.constant([list(numbers)], tf.int64)).numpy(), np.int64
            )

    def hand_over(self, *, giving: bool, whole: bool = False) -> None:
        """Give all members the values of the one with `giving`.

        If the ring breaks on the way, a member has some of these values and some of its own, which
        is useless. With `whole` it keeps its own instead: it takes nothing before everything has
        arrived, which needs memory for the state once more. Use it if a member's state differs from
        the common one, but may be all that is left a moment later.
        """
        waiting = deque[tuple[_Chunk, Tensor]]()
        for chunk in self._chunks:
            with self._ring.guarded():
                got = chunk.send(tf.constant(giving))
            # Assign nothing yet: a later chunk may still break.
            if whole and not giving:
                waiting.append((chunk, got))
            elif not giving:
                chunk.take(got)
        while waiting:
            chunk, got = waiting.popleft()
            chunk.take(got)

    def copied(self) -> list[NDArray[Any]]:
        """Copies of the values of all variables."""
        return [np.array(each.numpy()) for chunk in self._chunks for each in chunk.variables]

    def load(self, values: Sequence[NDArray[Any]]) -> None:
        """Set all variables to values from `copied`."""
        left = deque(values)
        for chunk in self._chunks:
            chunk.take(
                tf.constant(
                    np.concatenate(
                        [np.frombuffer(left.popleft().tobytes(), np.uint8) for _ in chunk.variables]
                    )
                )
            )

    def _gathered(self, numbers: Tensor) -> Tensor:
        return self._ring.gathered(f"numbers.{numbers.shape[1]}", numbers)


@final
class _Chunk:
    """Some of the variables, as bytes, since Horovod lacks some of their types."""

    def __init__(self, ring: Ring, number: int, variables: Sequence[Any]) -> None:
        self.variables = variables
        self._ring = ring
        self._name = f"state.{number}"
        self.send = tf.function(
            self._sent, input_signature=[tf.TensorSpec([], tf.bool)], autograph=False
        )
        self.take = tf.function(
            self._taken, input_signature=[tf.TensorSpec([None], tf.uint8)], autograph=False
        )

    def _sent(self, giving: Tensor) -> Tensor:
        """uint8[size in bytes] of the giving member; the others contribute no rows."""
        # An allgather with one non-empty member is a broadcast whose root need not be known when
        # the graph is compiled.
        mine = tf.cond(giving, self._packed, lambda: tf.zeros([0], tf.uint8))
        return self._ring.gathered(self._name, mine)

    def _packed(self) -> Tensor:
        return tf.concat([_bytes(variable.value) for variable in self.variables], 0)

    def _taken(self, got: Tensor) -> None:
        sizes = [_size_bytes(variable) for variable in self.variables]
        for variable, piece in zip(self.variables, tf.split(got, sizes), strict=True):
            variable.assign(_value(piece, variable))


def _bytes(value: Tensor) -> Tensor:
    """uint8[size in bytes]."""
    return tf.reshape(
        # tf.bitcast does not support bool.
        tf.cast(value, tf.uint8) if value.dtype == tf.bool else tf.bitcast(value, tf.uint8),
        [-1],
    )


def _value(data: Tensor, variable: keras.Variable) -> Tensor:
    dtype = variable.value.dtype
    if dtype == tf.bool:
        return tf.reshape(tf.cast(data, tf.bool), variable.shape)
    whole = (
        tf.reshape(data, [*variable.shape, dtype.size])
        if dtype.size > 1
        else tf.reshape(data, variable.shape)
    )
    return tf.bitcast(whole, dtype)


def _size_bytes(variable: keras.Variable) -> int:
    return int(np.prod(variable.shape)) * int(variable.value.dtype.size)


def _parts(variables: Sequence[Any], chunk_bytes: int) -> Iterator[list[Any]]:
    """Parts of some megabytes, so that a large model is not in memory three times."""
    part: list[Any] = []
    size_bytes = 0
    for variable in variables:
        part.append(variable)
        size_bytes += _size_bytes(variable)
        if size_bytes >= chunk_bytes:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
