"""A ring scales the loss as Keras's `fit` does, so that gradients in float16 do not underflow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.model.module import ModelModule
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_rate import Rate
from elasticdl.model.ring_step import Alone, RingStep
from tests.contract.ring_members import Member, module_of, step_of_all

pytestmark = pytest.mark.contract

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
RECORDS, STEPS = 16, 6


@pytest.fixture
def half() -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def model() -> keras.Model:
    ids = keras.Input((3,), dtype="int64", name="ids")
    numbers = keras.Input((2,), name="numbers")
    rows = keras.layers.Flatten()(keras.layers.Embedding(7, 4)(ids))
    hidden = keras.layers.Dense(5, activation="tanh")(keras.layers.Concatenate()([rows, numbers]))
    outputs = keras.layers.Dense(1, dtype="float32")(hidden)
    return keras.Model({"ids": ids, "numbers": numbers}, outputs)


def loss(labels: Any, predictions: Any) -> Any:
    return tf.square(tf.reshape(tf.cast(labels, predictions.dtype), [-1]) - predictions[:, 0])


def batch(seed: int, labels: float = 1.0) -> Any:
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(RECORDS, 2)).astype("float32")
    features = {"ids": random.integers(0, 7, (RECORDS, 3)), "numbers": numbers}
    return features, (labels * random.normal(size=RECORDS)).astype("float32")


def sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(0.1, **options)


def fitted(module: ModelModule, batches: list[Any]) -> dict[str, Any]:
    """The state after Keras has trained on each batch."""
    built = RingModel.build(module, {}, seed=5)
    assert module.optimizer is not None
    built.model.compile(module.optimizer(), loss=module.loss)
    for features, labels in batches:
        built.model.train_on_batch(features, labels)
    trained = replace(built, optimizer=built.model.optimizer)
    return {name: variable.numpy() for name, variable in trained.state().items()}


def assert_equal(member: Member, expected: dict[str, Any], rel: float) -> None:
    # Keras numbers the names of optimizers, but their variables have one order.
    for value, (name, wanted) in zip(member.state(), expected.items(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=rel, atol=rel / 10, err_msg=name)


def scale_of(member: Member) -> float:
    return float(member.model.optimizer.dynamic_scale.numpy())


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize(
    ("optimizer", "initial", "compare"),
    [
        (sgd, 15, operator.eq),
        (lambda: LossScaleOptimizer(keras.optimizers.Adam(), 2.0**10, 2), 10, operator.gt),
        (lambda: LossScaleOptimizer(sgd(), 2.0**20), 20, operator.lt),
    ],
    ids=["by the policy alone", "a scale that grows", "a scale that is too large at first"],
)
def test_a_model_in_float16_trains_as_with_fit(
    optimizer: Callable[[], Any], initial: int, compare: Callable[[float, float], bool]
) -> None:
    module = module_of(loss, model, optimizer)
    batches = [batch(seed) for seed in range(STEPS)]
    expected = fitted(module, batches)
    alone = Member(module, batch(9))
    for iteration, whole in enumerate(batches):
        assert alone.run(whole, iteration=iteration).applied
    assert compare(scale_of(alone), 2.0**initial)
    assert_equal(alone, expected, 1e-4)


@pytest.mark.usefixtures("half")
def test_members_with_parts_of_a_batch_in_float16_train_as_with_fit() -> None:
    module = module_of(loss, model, sgd)
    batches = [batch(seed) for seed in range(STEPS)]
    expected = fitted(module, batches)
    members = [Member(module, batch(9)) for _ in range(2)]
    for iteration, whole in enumerate(batches):
        step_of_all(members, whole, iteration)
    for member in members:
        # Two halves of a sum in float16 are rounded in another way than the whole.
        assert_equal(member, expected, 1e-2)


@pytest.mark.usefixtures("half")
def test_all_members_skip_a_step_in_which_a_gradient_of_one_overflows() -> None:
    module = module_of(loss, model, sgd)
    members = [Member(module, batch(9)) for _ in range(2)]
    before = members[0].model.trainable[0].numpy()
    features, labels = batch(0)
    labels[0] = 1e4
    assert all(outcome.applied for outcome in step_of_all(members, (features, labels), 0))
    for member in members:
        assert scale_of(member) == 2.0**14
        np.testing.assert_array_equal(member.model.trainable[0].numpy(), before)


@pytest.mark.parametrize("virtual", [0, 2], ids=["a part each", "virtual workers"])
def test_a_fixed_factor_of_the_loss_changes_no_step(virtual: int) -> None:
    batches = [batch(seed) for seed in range(STEPS)]
    expected = fitted(module_of(loss, model, sgd), batches)
    member = Member(module_of(loss, model, lambda: sgd(loss_scale_factor=64.0)), batch(9), virtual)
    for iteration, whole in enumerate(batches):
        member.run(whole, iteration=iteration)
    assert_equal(member, expected, 1e-4)


def test_a_gradient_that_is_infinite_without_scaling_is_not_skipped() -> None:
    """Only a scale above 1 can be why a gradient overflows."""

    def steep(labels: Any, predictions: Any) -> Any:
        return loss(labels, predictions) + tf.sqrt(predictions[:, 0] * 0.0)

    module = module_of(steep, model, lambda: LossScaleOptimizer(sgd(), initial_scale=4.0))
    step = RingStep(RingModel.build(module, {}, seed=5), Alone())
    outcomes = [
        step.train([batch(0)], rank=0, size=1, iteration=iteration) for iteration in range(3)
    ]
    assert [outcome.applied for outcome in outcomes] == [True, True, False]
    assert outcomes[2].nonfinite and np.isfinite(outcomes[2].loss)


def test_an_infinite_loss_is_never_skipped() -> None:
    module = module_of(loss, model, lambda: LossScaleOptimizer(sgd()))
    outcome = RingStep(RingModel.build(module, {}, seed=5), Alone()).train(
        [batch(0, labels=np.inf)], rank=0, size=1, iteration=0
    )
    assert outcome.nonfinite == "loss"


def test_the_learning_rate_is_that_of_the_optimizer_which_gets_the_scaled_gradients() -> None:
    module = module_of(loss, model, lambda: LossScaleOptimizer(sgd()))
    built = RingModel.build(module, {}, seed=5)
    Rate(built.optimizer, module).set(0, 0.5)
    assert float(built.optimizer.learning_rate.numpy()) == pytest.approx(0.05)
    members = [Member(module, batch(9)) for _ in range(2)]
    members[1].model.optimizer.learning_rate = 0.7
    step_of_all(members, batch(0), 0)
    for mine, theirs in zip(members[0].state(), members[1].state(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
