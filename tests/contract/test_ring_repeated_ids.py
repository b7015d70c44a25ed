"""A step of a ring gives what plain Keras gives on the whole minibatch, also for ids that occur
several times: Keras keeps a slice for each occurrence, and most optimizers square each slice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from elasticdl.model.contribution import SMALL_BYTES
from tests.contract.ring_members import Member, module_of

pytestmark = pytest.mark.contract

IDS = 7
"""So few that each occurs several times, within a part and in several."""
COUNTS = (9, 8, 7)
"""Records of the steps."""
FEW = (*COUNTS[:2], 2)
"""In the last step, a member of three has none. It compiles another step for that."""

opt = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: opt.SGD(0.1),
    "SGD, momentum": lambda: opt.SGD(0.1, momentum=0.9, nesterov=True),
    "SGD, clipnorm": lambda: opt.SGD(0.1, clipnorm=0.01),
    "SGD, clipvalue": lambda: opt.SGD(0.1, clipvalue=0.01),
    "SGD, global_clipnorm": lambda: opt.SGD(0.1, global_clipnorm=0.01),
    "SGD, accumulating": lambda: opt.SGD(0.1, gradient_accumulation_steps=2),
    "Adam": lambda: opt.Adam(0.1),
    "Adam, amsgrad": lambda: opt.Adam(0.1, amsgrad=True),
    "Adam, clipnorm": lambda: opt.Adam(0.1, clipnorm=0.01),
    "Adam, clipvalue": lambda: opt.Adam(0.1, clipvalue=0.01),
    "Adam, global_clipnorm": lambda: opt.Adam(0.1, global_clipnorm=0.01),
    "Adam, average": lambda: opt.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
    "AdamW": lambda: opt.AdamW(0.1, weight_decay=0.01),
    "Adamax": lambda: opt.Adamax(0.1),
    "Nadam": lambda: opt.Nadam(0.1),
    "Adagrad": lambda: opt.Adagrad(0.1),
    "Adadelta": lambda: opt.Adadelta(0.1),
    "Adafactor": lambda: opt.Adafactor(0.1),
    "RMSprop": lambda: opt.RMSprop(0.1),
    "RMSprop, centered": lambda: opt.RMSprop(0.1, momentum=0.9, centered=True),
    "Ftrl": lambda: opt.Ftrl(0.1, l1_regularization_strength=0.001),
    "Lamb": lambda: opt.Lamb(0.1),
    "Lion": lambda: opt.Lion(0.1),
}


def one_table(dtype: str = "float64") -> keras.Model:
    """One that is looked up twice: an optimizer does with it what it does with one of many, but for
    a norm over all.
    """
    ids = keras.Input((3,), dtype="int64", name="ids")
    numbers = keras.Input((2,), dtype=dtype, name="numbers")
    shared = layers.Embedding(IDS, 3, dtype=dtype, name="shared")
    flat = [layers.Flatten(dtype=dtype)(shared(ids[:, 1:])), shared(ids[:, 0]), numbers]
    joined = layers.Concatenate(dtype=dtype)(flat)
    return keras.Model({"ids": ids, "numbers": numbers}, layers.Dense(1, dtype=dtype)(joined))


def tables(dtype: str = "float64", *, large: bool = False) -> keras.Model:
    """Two tables of one width, one of another, one that is looked up twice, and tied weights.

    `large`: the first table is not small.
    """
    rows = SMALL_BYTES // 32 + 1 if large else IDS
    ids = keras.Input((3,), dtype="int64", name="ids")
    numbers = keras.Input((2,), dtype=dtype, name="numbers")
    first = layers.Embedding(rows, 4, dtype=dtype, name="first")(ids)
    second = layers.Embedding(IDS, 4, dtype=dtype, name="second")(ids[:, :2])
    narrow = layers.Embedding(IDS, 1, dtype=dtype, name="narrow")(ids)
    shared = layers.Embedding(IDS, 3, dtype=dtype, name="shared")
    tied = layers.ReversibleEmbedding(IDS, 2, dtype=dtype, name="tied")
    parts = [first, second, narrow, shared(ids[:, 0]), shared(ids[:, 1:])]
    flat = [
        *(layers.Flatten(dtype=dtype)(part) for part in parts),
        tied(tied(ids[:, 0]), reverse=True),
        numbers,
    ]
    hidden = layers.Dense(5, activation="tanh", dtype=dtype)(layers.Concatenate(dtype=dtype)(flat))
    return keras.Model({"ids": ids, "numbers": numbers}, layers.Dense(1, dtype=dtype)(hidden))


def loss(labels: Any, predictions: Any) -> Any:
    return tf.square(tf.cast(labels, predictions.dtype) - predictions[:, 0])


def batches_of(counts: tuple[int, ...], dtype: str = "float64") -> list[Any]:
    return [batch(count, seed, dtype) for seed, count in enumerate(counts)]


def batch(count: int, seed: int = 0, dtype: str = "float64", ids: int = IDS) -> Any:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, 2)).astype(dtype)
    features = {"ids": random.integers(0, ids, (count, 3)), "numbers": numbers}
    return features, random.normal(size=count)


def plain_keras(member: Member, batches: list[Any]) -> dict[str, Any]:
    """The state after Keras has applied the gradient of each whole minibatch, without the step."""
    member.reset(member.values)
    built = member.model
    for features, labels in batches:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(labels, built.model(features, training=True)))
        variables = [variable.value for variable in built.trainable]
        built.optimizer.apply(tape.gradient(value, variables), list(built.trainable))
    return {name: variable.numpy() for name, variable in built.state().items()}


def ring(member: Member, batches: list[Any], size: int) -> dict[str, Any]:
    """The state after steps of a ring. `member` plays all members, and another one in each step."""
    member.reset(member.values)
    for iteration, whole in enumerate(batches):
        rank = iteration % size
        brought = [
            {} if other == rank else member.brings(whole, other, size, iteration)
            for other in range(size)
        ]
        member.others.tell(brought, rank)
        assert member.run(whole, rank, size, iteration).applied
    return dict(zip(member.model.state(), member.state(), strict=True))


def assert_equal(mine: dict[str, Any], theirs: dict[str, Any], rel: float = 1e-9) -> None:
    for name, value in theirs.items():
        np.testing.assert_allclose(mine[name], value, rtol=rel, atol=rel / 1e3, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_each_optimizer_of_keras_makes_the_update_of_plain_keras(optimizer: Any) -> None:
    batches = batches_of(COUNTS)
    member = Member(module_of(loss, one_table, optimizer), batch(4))
    expected = plain_keras(member, batches)
    for size in (1, 3):
        assert_equal(ring(member, batches, size), expected)


@pytest.mark.parametrize("name", ["SGD", "Adam, global_clipnorm", "Adagrad"])
def test_a_large_table_and_others_get_the_update_of_plain_keras(name: str) -> None:
    module = module_of(loss, partial(tables, large=True), OPTIMIZERS[name])
    batches, member = batches_of(FEW), Member(module, batch(4))
    assert_equal(ring(member, batches, 3), plain_keras(member, batches))


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RMSprop"])
def test_a_table_in_float32_gets_the_update_of_plain_keras(name: str) -> None:
    module = module_of(loss, partial(one_table, "float32"), OPTIMIZERS[name])
    batches = batches_of(COUNTS, "float32")
    member = Member(module, batch(4, dtype="float32"))
    assert_equal(ring(member, batches, 3), plain_keras(member, batches), 1e-3)


@pytest.mark.parametrize("name", ["SGD", "SGD, clipnorm", "Adam", "Adagrad"])
def test_virtual_workers_make_the_update_of_plain_keras_in_the_same_bits_for_any_ring(
    name: str,
) -> None:
    module = module_of(loss, partial(tables, large=True), OPTIMIZERS[name])
    batches = batches_of(FEW)
    member = Member(module, batch(4), virtual=4)
    alone, *others = (ring(member, batches, size) for size in (1, 2, 3, 4))
    assert_equal(alone, plain_keras(member, batches))
    for other in others:
        for variable, value in alone.items():
            np.testing.assert_array_equal(other[variable], value, variable)


def wide_rows() -> keras.Model:
    ids = keras.Input((3,), dtype="int64", name="ids")
    numbers = keras.Input((2,), name="numbers")
    rows = layers.Flatten()(layers.Embedding(100, 16, name="rows")(ids))
    joined = layers.Concatenate()([rows, numbers])
    return keras.Model({"ids": ids, "numbers": numbers}, layers.Dense(1)(joined))


@pytest.mark.parametrize(
    ("optimizer", "variables"),
    [
        (lambda: opt.SGD(0.1, clipnorm=0.01), 1),
        # Squares of so many slices are too small to show beside the usual first value of 0.1.
        (lambda: opt.Adagrad(0.1, initial_accumulator_value=0.0), 2),
    ],
    ids=["SGD, clipnorm", "Adagrad"],
)
def test_a_step_adds_repeated_rows_in_one_order(optimizer: Any, variables: int) -> None:
    """TensorFlow scatters many rows by several threads, in any order; members would drift apart."""
    whole = batch(20_000, dtype="float32", ids=100)
    member = Member(module_of(loss, wide_rows, optimizer), whole)
    names = list(member.model.state())
    ends = set()
    for _ in range(10):
        member.reset(member.values)
        assert member.run(whole).applied
        rows = [one for name, one in zip(names, member.state(), strict=True) if "rows" in name]
        ends.add(b"".join(row.tobytes() for row in rows))
    assert len(rows) == variables
    assert len(ends) == 1
