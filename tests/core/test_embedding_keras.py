"""Update rules equal the Keras optimizers of the same name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.embedding.spec import (
    Dtype,
    InitializerKind,
    InitializerSpec,
    OptimizerKind,
    OptimizerSpec,
    TableSpec,
)
from elasticdl.embedding.table import native_optimizer, native_table
from elasticdl.native import _native
from tests.reference_table import ReferenceTable

pytestmark = pytest.mark.core

K = keras.optimizers
SGD, ADAM, ADAGRAD, FTRL = (
    OptimizerKind.SGD,
    OptimizerKind.ADAM,
    OptimizerKind.ADAGRAD,
    OptimizerKind.FTRL,
)
PAIRS = {
    "sgd": (lambda rate: K.SGD(rate), OptimizerSpec(kind=SGD)),
    "momentum": (lambda rate: K.SGD(rate, momentum=0.9), OptimizerSpec(kind=SGD, momentum=0.9)),
    "nesterov": (
        lambda rate: K.SGD(rate, momentum=0.8, nesterov=True),
        OptimizerSpec(kind=SGD, momentum=0.8, nesterov=True),
    ),
    "sgd with decay": (
        lambda rate: K.SGD(rate, weight_decay=0.02),
        OptimizerSpec(kind=SGD, weight_decay=0.02),
    ),
    "adam": (lambda rate: K.Adam(rate), OptimizerSpec(kind=ADAM)),
    "adam tuned": (
        lambda rate: K.Adam(rate, beta_1=0.8, beta_2=0.99, epsilon=1e-4),
        OptimizerSpec(kind=ADAM, beta_1=0.8, beta_2=0.99, epsilon=1e-4),
    ),
    "adamw": (
        lambda rate: K.AdamW(rate, weight_decay=0.004),
        OptimizerSpec(kind=ADAM, weight_decay=0.004),
    ),
    "amsgrad": (lambda rate: K.Adam(rate, amsgrad=True), OptimizerSpec(kind=ADAM, amsgrad=True)),
    "adagrad": (lambda rate: K.Adagrad(rate), OptimizerSpec(kind=ADAGRAD)),
    "adagrad tuned": (
        lambda rate: K.Adagrad(rate, initial_accumulator_value=0.5, epsilon=1e-3),
        OptimizerSpec(kind=ADAGRAD, initial_accumulator_value=0.5, epsilon=1e-3),
    ),
    "ftrl": (lambda rate: K.Ftrl(rate), OptimizerSpec(kind=FTRL)),
    "ftrl tuned": (
        lambda rate: K.Ftrl(
            rate,
            learning_rate_power=-0.7,
            initial_accumulator_value=0.2,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
            l2_shrinkage_regularization_strength=0.03,
            beta=0.04,
        ),
        OptimizerSpec(
            kind=FTRL,
            learning_rate_power=-0.7,
            initial_accumulator_value=0.2,
            l1=0.01,
            l2=0.02,
            l2_shrinkage=0.03,
            beta=0.04,
        ),
    ),
}
STEPS, ROWS, DIM = 100, 10, 16
IDS = np.arange(-5, ROWS - 5, dtype=np.int64)
ROWS_SPEC = TableSpec(
    name="t",
    dim=DIM,
    initializer=InitializerSpec(kind=InitializerKind.NORMAL, a=0.0, b=0.3),
    seed=4,
)


def rate_at(step: int) -> float:
    """A schedule, as workers evaluate it."""
    return 0.01 * 0.99**step


def all_gradients() -> np.ndarray:
    return np.random.default_rng(3).normal(scale=0.3, size=(STEPS, ROWS, DIM)).astype(np.float32)


def keras_weights(name: str, start: np.ndarray) -> np.ndarray:
    """Weights after all gradients. All start with the same rows, so Keras runs once."""
    return _keras_weights(name, start.tobytes(), start.dtype.name)


@functools.cache
def _keras_weights(name: str, start: bytes, dtype: str) -> np.ndarray:
    optimizer = cast(Callable[..., Any], PAIRS[name][0])(rate_at(1))
    variable = keras.Variable(np.frombuffer(start, dtype).reshape(ROWS, DIM), dtype=dtype)
    optimizer.build([variable])
    # As in `fit`: a step without a function takes ten times as long.
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]), autograph=False)
    for step, gradient in enumerate(all_gradients().astype(dtype), 1):
        optimizer.learning_rate = rate_at(step)
        apply(tf.constant(gradient))
    return variable.value.numpy()  # of TensorFlow: Keras' own conversion warns under NumPy 2


@pytest.fixture(scope="module")
def gradients() -> np.ndarray:
    return all_gradients()


@pytest.mark.parametrize("name", sorted(PAIRS))
@pytest.mark.parametrize("make", [native_table, ReferenceTable])
def test_rows_touched_at_every_step_equal_kerass_over_a_hundred_steps(
    name: str, make: Callable[..., Any] | type[ReferenceTable], gradients: np.ndarray
) -> None:
    table = make(ROWS_SPEC, PAIRS[name][1])
    start = table.lookup(IDS)
    for step, gradient in enumerate(gradients, 1):
        table.apply(IDS, gradient, rate_at(step), step)
    np.testing.assert_allclose(table.lookup(IDS), keras_weights(name, start), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["adagrad", "adam", "adam tuned", "amsgrad", "momentum", "nesterov"]
)
@pytest.mark.parametrize("make", [native_table, ReferenceTable])
def test_rows_touched_now_and_then_equal_kerass(
    name: str, make: Callable[..., Any] | type[ReferenceTable], gradients: np.ndarray
) -> None:
    table = make(ROWS_SPEC, PAIRS[name][1])
    start = table.lookup(IDS)
    for step, (gradient, rows) in enumerate(zip(gradients, touched(), strict=True), 1):
        table.apply(IDS[rows], gradient[rows], 0.01, step)
    assert step == STEPS
    expected = keras_weights_of_some_rows(name, start.tobytes())
    np.testing.assert_allclose(table.lookup(IDS), expected, rtol=1e-5, atol=1e-4)  # epsilon


def touched() -> list[np.ndarray]:
    """The rows of each step: the first always, others now and then."""
    random, chances = np.random.default_rng(5), 1 / np.arange(1, ROWS + 1)
    return [np.flatnonzero(random.random(ROWS) < chances) for _ in range(STEPS)]


@functools.cache
def keras_weights_of_some_rows(name: str, start: bytes) -> np.ndarray:
    optimizer = cast(Callable[..., Any], PAIRS[name][0])(0.01)
    begin = np.frombuffer(start, np.float32).reshape(ROWS, DIM)
    variable, slices = keras.Variable(begin, dtype="float32"), cast(Any, tf.IndexedSlices)
    optimizer.build([variable])
    shape = tf.constant(begin.shape, tf.int64)
    apply = tf.function(
        lambda values, rows: optimizer.apply([slices(values, rows, shape)], [variable]),
        input_signature=[tf.TensorSpec([None, DIM]), tf.TensorSpec([None], tf.int64)],
        autograph=False,
    )
    for gradient, rows in zip(all_gradients(), touched(), strict=True):
        apply(gradient[rows], rows)
    return variable.value.numpy()


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_dense_weights_equal_kerass_over_a_hundred_steps(name: str, gradients: np.ndarray) -> None:
    spec = PAIRS[name][1]
    start = ReferenceTable(ROWS_SPEC, spec).lookup(IDS)
    weights = start.copy().reshape(-1)
    first = _native.Table(
        weights.size, _native.InitializerSpec("constant", 0.0, 0.0), native_optimizer(spec), 0
    )
    first.lookup(np.zeros(1, np.int64))
    slots = [slot.copy() for slot in first.read(-1, 0, 1)[1].reshape(1 + spec.slots, -1)[1:]]
    for step, gradient in enumerate(gradients, 1):
        _native.update_dense(
            native_optimizer(spec), weights, slots, gradient.reshape(-1), rate_at(step), step
        )
    np.testing.assert_allclose(
        weights.reshape(ROWS, DIM), keras_weights(name, start), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", sorted(PAIRS))
@pytest.mark.parametrize("make", [native_table, ReferenceTable])
def test_in_float64_rows_equal_kerass_but_for_the_last_digits(
    name: str, make: Callable[..., Any] | type[ReferenceTable], gradients: np.ndarray
) -> None:
    table = make(ROWS_SPEC, PAIRS[name][1], Dtype.FLOAT64)
    start, every = table.lookup(IDS), gradients.astype(np.float64)
    for step, gradient in enumerate(every, 1):
        table.apply(IDS, gradient, rate_at(step), step)
    # The rate is of `floatx`, too: in float32 it would differ by 1e-8.
    keras.config.set_floatx("float64")
    try:
        expected = keras_weights(name, start)
    finally:
        keras.config.set_floatx("float32")
    np.testing.assert_allclose(table.lookup(IDS), expected, rtol=1e-11, atol=1e-13)
