"""NumPy arrays as tensors in the same memory."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.rpc.parameters import ALIGNMENT

Numbers: TypeAlias = NDArray[np.floating[Any] | np.integer[Any]]

_LEAST_BYTES = 4096
"""A smaller array is copied as fast."""


def tensor_of(array: Numbers) -> Tensor:
    """The array as an eager tensor, without a copy if it begins at a multiple of `ALIGNMENT`.

    Nobody may write to the array while the tensor lives. `tf.convert_to_tensor` copies every array,
    some twice. Tensors are on the host, whatever their size: TensorFlow prepares its kernels again
    for each combination of the devices of their arguments.
    """
    small = array.nbytes < _LEAST_BYTES
    if small or not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
        return _copied(array)
    if not array.flags.writeable:
        # NumPy and TensorFlow do not exchange read-only arrays. Operations do not write to their
        # inputs, and `Tracer` keeps the array from Python in the user's graph.
        array = array.view()
        try:
            array.flags.writeable = True
        except ValueError:  # its memory is read-only
            return _copied(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _copied(array: Numbers) -> Tensor:
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(array)
