"""A step of several members gives what one process gives on the whole minibatch, for every division
of it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.model import contribution, packing
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import RingStep
from elasticdl.worker.ring.base import RingBroken
from tests.contract.ring_members import RATE, Member, Others, module_of, step_of_all

pytestmark = pytest.mark.contract

IDS = 11
SLOW_S = 0.1


def model() -> keras.Model:
    ids = keras.Input((3,), dtype="int64", name="ids")
    numbers = keras.Input((2,), dtype="float64", name="numbers")
    rows = keras.layers.Embedding(IDS, 4, dtype="float64")(ids)
    flat = keras.layers.Concatenate(dtype="float64")(
        [keras.layers.Flatten(dtype="float64")(rows), numbers]
    )
    hidden = keras.layers.Dense(
        5, activation="tanh", dtype="float64", kernel_regularizer=keras.regularizers.L2(0.01)
    )(flat)
    return keras.Model(
        {"ids": ids, "numbers": numbers}, keras.layers.Dense(1, dtype="float64")(hidden)
    )


def mean_loss(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(labels - predictions[:, 0]))


def loss_per_example(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions[:, 0])


def batch(count: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    features = {
        "ids": random.integers(0, IDS, (count, 3)),
        "numbers": random.normal(size=(count, 2)),
    }
    return features, random.normal(size=count)


@functools.cache
def compiled(loss: Any, small_bytes: int, number: int) -> Member:
    """Most of a member's time is the tracing of its step. `small_bytes` are those now in force."""
    return Member(module_of(loss, model), batch(4, seed=9))


def new_members(loss: Any, count: int) -> list[Member]:
    """Members as if they had just been made."""
    members = [compiled(loss, contribution.SMALL_BYTES, number) for number in range(count)]
    for member in members:
        member.others.leave()
        member.reset(member.values)
        member.model.optimizer.learning_rate = RATE
    return members


@pytest.fixture(autouse=True)
def small_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the embedding travels as rows."""
    monkeypatch.setattr(contribution, "SMALL_BYTES", 0)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["rows", "small variable"])
@pytest.mark.parametrize(
    ("loss", "size", "counts"),
    [(mean_loss, 2, [8, 8]), (loss_per_example, 3, [5, 5, 2, 2])],
    ids=["equal parts", "unequal parts and none"],
)
def test_members_with_parts_of_any_size_do_what_one_process_does_on_the_whole(
    loss: Any, size: int, counts: list[int], small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contribution, "SMALL_BYTES", small_bytes)
    alone, *members = new_members(loss, 1 + size)
    for iteration, count in enumerate(counts):
        whole = batch(count, seed=iteration)
        expected = alone.run(whole, iteration=iteration)
        for outcome in step_of_all(members, whole, iteration):
            assert outcome.examples == expected.examples == count
            assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        for member in members:
            for name, mine, theirs in zip(
                member.model.state(), member.state(), alone.state(), strict=True
            ):
                np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-13, err_msg=name)


def of_any_length() -> keras.Model:
    """TensorFlow does not know the shape of the gradient of this layer's kernel."""
    ids = keras.Input((None,), dtype="int64", name="ids")
    rows = keras.layers.Embedding(IDS, 4, dtype="float64")(ids)
    each = keras.layers.Dense(1, dtype="float64")(keras.layers.Dense(3, dtype="float64")(rows))
    return keras.Model({"ids": ids}, keras.ops.sum(each, 1))


def test_a_dense_layer_over_sequences_of_any_length_trains() -> None:
    module = module_of(mean_loss, of_any_length)
    built = RingModel.build(module, {}, seed=5)
    step = RingStep(built, Others())
    losses = []
    for iteration in range(20):
        features, labels = batch(6)
        part = ({"ids": features["ids"]}, labels)
        losses.append(step.train([part], rank=0, size=1, iteration=iteration).loss)
    assert losses[-1] < losses[0]


def test_a_step_that_is_not_finite_is_not_applied_and_names_where() -> None:
    [member] = new_members(mean_loss, 1)
    before = member.state()
    features, labels = batch(4)
    labels[2] = np.nan
    outcome = member.run((features, labels))
    assert not outcome.applied and outcome.nonfinite.startswith("loss, ")
    for name, now, then in zip(member.model.state(), member.state(), before, strict=True):
        np.testing.assert_array_equal(now, then, err_msg=name)


def test_a_ring_of_which_nobody_has_examples_applies_nothing() -> None:
    [member] = new_members(mean_loss, 1)
    before = member.state()
    outcome = member.run(None)
    assert (outcome.examples, outcome.applied) == (0, False)
    for now, then in zip(member.state(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_learning_rate_of_the_first_member_is_that_of_all() -> None:
    """A callback may have set another one where it runs, or where somebody joined later."""
    alone, *members = new_members(mean_loss, 3)
    for member, rate in ((alone, 0.3), (members[0], 0.3), (members[1], 0.7)):
        member.model.optimizer.learning_rate = rate
    whole = batch(6)
    alone.run(whole)
    step_of_all(members, whole, 0)
    for member in members:
        for name, mine, theirs in zip(
            member.model.state(), member.state(), alone.state(), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-13, err_msg=name)


def noisy() -> keras.Model:
    layers = keras.layers
    parts = [
        keras.Input((2,), dtype="float64"),
        layers.Dense(64, dtype="float64"),
        layers.Dropout(0.5, dtype="float64"),
    ]
    return keras.Sequential(
        [*parts, layers.BatchNormalization(dtype="float64"), layers.Dense(1, dtype="float64")]
    )


def test_members_drop_out_differently_and_yet_stay_alike() -> None:
    members = [
        Member(module_of(mean_loss, noisy), (np.ones((4, 2)), np.zeros(4))) for _ in range(2)
    ]
    features = np.random.default_rng(0).normal(size=(4, 2))
    same_part = np.concatenate([features, features]), np.zeros(8)
    step_of_all(members, same_part, 3)
    first, second = (member.others.mine["float64.0"] for member in members)
    assert not np.array_equal(first, second)
    for mine, theirs in zip(members[0].state(), members[1].state(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    assert not np.array_equal(members[0].model.averaged[0].numpy(), np.zeros(64))


class Breaking:
    """A ring of one that breaks in one of its reductions, as late as the others allow: when
    something is applied, or soon.
    """

    def __init__(self, name: str) -> None:
        self._breaks_in = name
        self.broken = False
        self.applied: Callable[[], bool] = lambda: False

    def reduced(self, name: str, tensor: Any) -> Any:
        def met(value: Any) -> Any:
            if self.broken and name == self._breaks_in:
                deadline = time.monotonic() + 1.0
                while not self.applied() and time.monotonic() < deadline:
                    threading.Event().wait(0.01)
                raise ConnectionResetError("a peer is gone")
            return value

        # As Horovod's operations: in no order, except that each waits for what it is given.
        made = tf.numpy_function(met, [tensor], tensor.dtype, stateful=False)
        made.set_shape(tensor.shape)
        return made

    def gathered(self, name: str, tensor: Any) -> Any:
        return self.reduced(name, tensor)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise RingBroken("a peer is gone") from error


@pytest.mark.parametrize("number", [0, 1])
def test_a_ring_that_breaks_in_the_last_of_its_reductions_leaves_no_half_of_a_step(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Those of the moving averages: what is done with gradients waits for them, too."""
    monkeypatch.setattr(packing, "BUCKET_BYTES", 1)
    ring = Breaking(f"float64.{number}")
    built = RingModel.build(module_of(mean_loss, noisy), {}, seed=5)
    step, variables = RingStep(built, ring), list(built.state().values())
    whole = (np.ones((4, 2)), np.zeros(4))
    step.train([whole], rank=0, size=1, iteration=0)
    before = [variable.numpy() for variable in variables]
    ring.applied = lambda: any(
        not np.array_equal(one.numpy(), value) for one, value in zip(variables, before, strict=True)
    )
    ring.broken = True
    with pytest.raises(RingBroken):
        step.train([whole], rank=0, size=1, iteration=1)
    assert not ring.applied()
    ring.broken = False
    step.train([whole], rank=0, size=1, iteration=1)
    assert ring.applied()


class Held:
    """A ring of one whose members are as slow as the test wants."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def reduced(self, name: str, tensor: Any) -> Any:
        def wait(value: Any) -> Any:
            self.reached.set()
            assert self.go_on.wait(60)
            return value

        made = tf.py_function(wait, [tensor], tensor.dtype)
        made.set_shape(tensor.shape)
        return made

    def gathered(self, name: str, tensor: Any) -> Any:
        return self.reduced(name, tensor)

    def guarded(self) -> Any:
        return nullcontext()


def test_it_is_known_from_outside_whether_a_member_computes_or_waits_for_others() -> None:
    held, computing, go_on = Held(), threading.Event(), threading.Event()

    def slow_loss(labels: Any, predictions: Any) -> Any:
        def wait(value: Any) -> Any:
            computing.set()
            assert go_on.wait(60)
            return value

        return tf.py_function(
            wait, [mean_loss(labels, predictions)], tf.float64, name="slow"
        ) + 0 * mean_loss(labels, predictions)

    def loss(labels: Any, predictions: Any) -> Any:
        value = slow_loss(labels, predictions)
        value.set_shape([])
        return value

    step = RingStep(RingModel.build(module_of(loss, model), {}, seed=5), held)
    thread = threading.Thread(target=lambda: step.train([batch(4)], rank=0, size=1, iteration=0))
    thread.start()
    assert computing.wait(60)
    assert not step.waits()
    assert not held.reached.is_set()
    go_on.set()
    assert held.reached.wait(60)
    deadline = time.monotonic() + 60
    while not step.waits() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert step.waits()
    held.go_on.set()
    thread.join(60)
    assert not thread.is_alive()


def slowed(tensor: Any) -> Any:
    """The same tensor, after a while."""

    def wait(value: Any) -> Any:
        threading.Event().wait(SLOW_S)
        return value

    made = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
    made.set_shape(tensor.shape)
    return made


class Slow(Others):
    """A ring whose other members come a while after this member's part is ready."""

    step: RingStep

    def reduced(self, name: str, tensor: Any) -> Any:
        def wait(value: Any) -> Any:
            # Runs beside the operation that notes that the part is ready, or before it.
            deadline = time.monotonic() + 60
            while not self.step.waits() and time.monotonic() < deadline:
                threading.Event().wait(0.001)
            threading.Event().wait(SLOW_S)
            return value

        made = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
        made.set_shape(tensor.shape)
        return made


def test_the_wait_for_others_is_known_without_the_members_own_computing() -> None:
    def loss(labels: Any, predictions: Any) -> Any:
        value = mean_loss(labels, predictions)
        return slowed(value) + 0 * value

    slow = Slow()
    step = slow.step = RingStep(RingModel.build(module_of(loss, model), {}, seed=5), slow)
    step.train([batch(4)], rank=0, size=1, iteration=0)  # compiles
    begin_s = time.monotonic()
    outcome = step.train([batch(4)], rank=0, size=1, iteration=1)
    # The part is noted as ready a little before the clock is read, in another thread.
    assert SLOW_S / 2 <= outcome.waited_s <= time.monotonic() - begin_s - SLOW_S
