"""Arrays as tensors: which share memory, and that their memory lives as long as the tensor."""

from __future__ import annotations

import gc
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.model.array_tensors import tensor_of
from elasticdl.rpc.parameters import ALIGNMENT, Floats, aligned
from tests.contract.ps_stage import LIMIT_S, Stage, as_ids, counting_spec

pytestmark = pytest.mark.contract

SIZE = 10_000


def filled(dtype: str = "float32") -> Floats:
    array = aligned((SIZE // 10, 10), dtype)
    array[:] = np.arange(SIZE).reshape(array.shape)
    return array


def address(tensor: Any) -> int:
    return int(np.asarray(memoryview(tensor)).ctypes.data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_aligned_array_is_not_copied(dtype: str) -> None:
    array = filled(dtype)
    tensor = tensor_of(array)
    assert address(tensor) == array.ctypes.data
    assert array.ctypes.data % ALIGNMENT == 0
    assert (tensor.dtype.name, tensor.shape) == (dtype, array.shape)


def test_a_read_only_array_is_not_copied_and_stays_read_only() -> None:
    array = filled()
    array.flags.writeable = False
    assert address(tensor_of(array)) == array.ctypes.data
    assert not array.flags.writeable


@pytest.mark.parametrize(
    "array",
    [filled().reshape(-1)[1:], filled().T, filled()[:2, :3].copy(), np.empty((0, 10), np.float32)],
    ids=["elsewhere", "transposed", "small", "empty"],
)
def test_other_arrays_are_copied(array: Floats) -> None:
    tensor = tensor_of(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert array.size == 0 or address(tensor) != array.ctypes.data


def test_an_array_in_read_only_memory_is_copied() -> None:
    room = np.arange(SIZE + ALIGNMENT, dtype=np.float32).tobytes()
    begin = -np.frombuffer(room, np.uint8).ctypes.data % ALIGNMENT
    array = np.frombuffer(room, np.float32, SIZE, begin)
    np.testing.assert_array_equal(tensor_of(array).numpy(), array)


@pytest.mark.parametrize("array", [filled(), filled()[:2].copy()], ids=["shared", "copied"])
def test_every_tensor_is_on_the_host_whatever_the_default_device(array: Floats) -> None:
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device("GPU:7"):  # There is none, so what would go there fails.
            assert tensor_of(array).device.endswith("device:CPU:0")
    finally:
        tf.config.set_soft_device_placement(True)


def test_what_a_worker_pulls_is_not_copied() -> None:
    with closing(Stage(1)) as stage:
        pool = stage.pool("worker-0")
        spec = counting_spec(dense=SIZE)
        pool.initialise(spec, np.zeros(SIZE, np.float32), timeout_s=LIMIT_S)
        pulled = pool.pull([as_ids(list(range(SIZE)))], timeout_s=LIMIT_S)
        assert pulled.dense is not None
        for array in (pulled.dense, *pulled.rows):
            assert address(tensor_of(array)) == array.ctypes.data


def test_the_memory_lives_as_long_as_the_tensor() -> None:
    tensor = tensor_of(filled())
    gc.collect()
    # What was free would be used again.
    others = [np.full(SIZE, -1.0, np.float32) for _ in range(20)]
    np.testing.assert_array_equal(tensor.numpy().reshape(-1), np.arange(SIZE))
    assert len(others) == 20
