"""NumPy arrays as tensors in the same memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.rpc.parameters import ALIGNMENT

_LEAST_BYTES = 4096
"""A smaller array is copied as fast."""


def tensor_of(array: NDArray[Any]) -> Tensor:
    """The array as an eager tensor, without a copy if it begins at a multiple of `ALIGNMENT`.

    Nobody may write to the array while the tensor lives. `tf.convert_to_tensor` copies every array,
    some twice.
    """
    small = array.nbytes < _LEAST_BYTES
    if small or not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT:
        return tf.convert_to_tensor(array)
    if not array.flags.writeable:
        # NumPy does not hand a read-only array over. TensorFlow does not write to its inputs.
        array = array.view()
        try:
            array.flags.writeable = True
        except ValueError:  # its memory is read-only
            return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
