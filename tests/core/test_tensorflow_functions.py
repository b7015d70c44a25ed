"""TensorFlow functions of Keras' symbolic tensors, after one import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.model import tensorflow_functions

pytestmark = [
    pytest.mark.core,
    # Keras 3.15 on NumPy 2.4, in `save`: nothing of ours.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

GIVEN = np.array([[1.0, 2.0, 3.0], [4.0, -5.0, 6.0]], "float32")
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: tf.reshape(x, shape=(-1, 1)),
    "reshape of a list": lambda x: tf.reshape([x, x], (-1, 6)),
    "concat": lambda x: tf.concat([x, x * 2], 1),
    "sum": lambda x: tf.reduce_sum(x, 1, keepdims=True),
    "sum of a product": lambda x: tf.reduce_sum(0.5 * x, axis=1),
    "sigmoid": tf.sigmoid,
    "cast": lambda x: tf.cast(x, tf.int32),
    "squeeze": lambda x: tf.squeeze(tf.expand_dims(x, 1), 1),
    "split": lambda x: tf.split(x, 3, axis=1)[1],
    "where": lambda x: tf.where(x > 0, x, tf.zeros_like(x)),
    "einsum": lambda x: tf.einsum("bi,bj->bij", x, x),
    "text": tf.strings.as_string,
    "backend": lambda x: tf.keras.backend.sum(tf.keras.backend.square(x), axis=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_node_has_the_value_of_the_function(name: str) -> None:
    inputs = keras.Input((3,))
    made = FUNCTIONS[name](inputs)
    value = FUNCTIONS[name](tf.constant(GIVEN))
    assert (made.dtype, len(made.shape)) == (value.dtype.name, value.shape.rank)
    np.testing.assert_array_equal(keras.Model(inputs, made)(GIVEN), value)


def test_sparse_tensors_stay_sparse_and_are_refused_where_the_function_needs_dense_ones() -> None:
    inputs = keras.Input((3,), sparse=True)
    assert tf.cast(inputs, tf.int32).sparse
    for given in (inputs, inputs * 2, keras.layers.Identity()(inputs)):
        with pytest.raises((TypeError, ValueError), match="SparseTensor"):
            tf.reshape(given, (-1, 1))


def test_a_model_of_such_nodes_is_saved_and_loaded(tmp_path: Path) -> None:
    inputs = keras.Input((3,), name="x")
    both = tf.concat([inputs, keras.layers.Dense(2)(inputs)], axis=1)
    model = keras.Model(inputs, tf.cast(tf.math.log1p(tf.nn.relu(both)), tf.float64))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(GIVEN), model(GIVEN))


def test_functions_with_side_effects_take_no_symbolic_tensor() -> None:
    with pytest.raises(ValueError, match="KerasTensor cannot be used"):
        tf.io.write_file("/nowhere", keras.Input((), dtype="string"))
    for name in ("io.write_file", "print", "py_function", "raw_ops.WriteFile"):
        with pytest.raises(ValueError, match=f"tf.{name} is not one of the functions"):
            tensorflow_functions.TensorFlowFunction(name)


def test_other_mistakes_keep_their_message() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="reshape"):
        tf.reshape(tf.constant(GIVEN), (4,))
