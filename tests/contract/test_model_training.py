"""A model whose embeddings are served trains as the same model does in plain Keras.

The server is NumPy's table and rules; what a step computes comes from the real compiled step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.job_flags import ModelSection
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep, Lookups, StepOutcome
from elasticdl.rpc.parameters import Pulled
from tests.reference_initializers import initial_weights
from tests.reference_optimizers import initial_slot, update
from tests.reference_table import ReferenceTable

pytestmark = pytest.mark.contract


class OneServer:
    """One parameter server in NumPy."""

    def __init__(self, ps_model: PsModel) -> None:
        spec = ps_model.parameters
        self.spec = spec
        self.version = 0
        self.tables = [ReferenceTable(table, spec.optimizer) for table in spec.tables]
        self.values = np.zeros((1 + spec.optimizer.slots, spec.trainable_size), np.float32)
        for slot in range(spec.optimizer.slots):
            self.values[1 + slot] = initial_slot(spec.optimizer, slot)
        dense = ps_model.dense()
        self.values[0] = dense[: spec.trainable_size]
        self.additive = dense[spec.trainable_size :].copy()

    def pull(self, lookups: Lookups) -> Pulled:
        rows = tuple(table.lookup(ids) for table, ids in zip(self.tables, lookups.ids, strict=True))
        return Pulled((self.version,), np.concatenate([self.values[0], self.additive]), rows)

    def push(self, lookups: Lookups, outcome: StepOutcome) -> None:
        size = self.spec.trainable_size
        self.version += 1
        rate = outcome.learning_rate
        gradients = outcome.dense[:size]
        squares = gradients * gradients
        if outcome.dense_squares is not None:
            places = [np.arange(*span) for span in outcome.dense_squares.spans]
            squares[np.concatenate(places)] = outcome.dense_squares.sums
        update(self.spec.optimizer, rate, self.version, self.values, gradients, squares)
        self.additive += outcome.dense[size:]
        for number, (table, ids) in enumerate(zip(self.tables, lookups.ids, strict=True)):
            rows = np.ascontiguousarray(outcome.gradients[number])
            given = outcome.squares[number] if outcome.squares else None
            table.apply(ids, rows, rate, self.version, given)


HEADER = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.layers import Embedding
def feed(dataset, mode, metadata): return dataset
def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)
"""

FUNCTIONAL = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((4,), name="x")
    e = Embedding(50, 4)(ids)
    w = layers.Embedding(50, 1, name="wide")(ids)
    hidden = layers.Dense(8, activation="relu")(layers.Concatenate()([layers.Flatten()(e), x]))
    return keras.Model({"ids": ids, "x": x}, layers.Dense(1)(hidden) + keras.ops.sum(w, 1))
"""
SEQUENTIAL = """
def custom_model():
    return keras.Sequential([
        keras.Input((3,), dtype="int32"),
        layers.Embedding(50, 4),
        layers.Flatten(),
        layers.Dense(1),
    ])
"""
SUBCLASSED = """
class Tower(layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(50, 4, embeddings_initializer="glorot_uniform")
        self.dense = layers.Dense(3, activation="tanh")
    def call(self, ids):
        return self.dense(keras.ops.mean(self.embedding(ids), 1))

class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.wide = layers.Embedding(50, 1, embeddings_initializer="ones")
        self.out = layers.Dense(1)
    def call(self, inputs, training=False):
        shared = self.tower(inputs["ids"]) - self.tower(inputs["ids"][:, :1])
        deep = self.out(keras.ops.concatenate([shared, inputs["x"]], 1))
        return deep + self.wide(inputs["ids"])[:, 0]
"""
MASKED = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    e = Embedding(50, 4, mask_zero=True, embeddings_initializer="normal")(ids)
    return keras.Model({"ids": ids}, layers.Dense(1)(layers.GlobalAveragePooling1D()(e)))
"""
SHARED = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    e = Embedding(50, 4)
    both = layers.Concatenate()([layers.Flatten()(e(ids)), layers.Flatten()(e((ids * 7 + 3) % 50))])
    return keras.Model({"ids": ids}, layers.Dense(1)(both))
"""
TWICE = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    x = keras.Input((4,), name="x")
    e, twice = Embedding(50, 4), Embedding(50, 4)
    parts = [layers.Flatten()(part) for part in (e(ids), twice(ids), twice((ids + 3) % 7))]
    return keras.Model({"ids": ids, "x": x}, layers.Dense(1)(layers.Concatenate()([*parts, x])))
"""
NORMED = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    e = layers.BatchNormalization(momentum=0.8)(layers.Flatten()(Embedding(50, 4)(ids)))
    frozen = layers.Dense(4, trainable=False, name="frozen")
    out = layers.Dense(1, kernel_regularizer="l2", activity_regularizer="l1")
    return keras.Model({"ids": ids}, out(frozen(e)))
"""
STRINGS = """
def custom_model():
    text = keras.Input((2,), dtype="string", name="text")
    e = Embedding(40, 4)(layers.Hashing(40)(text))
    known = layers.StringLookup(vocabulary=["a", "b", "c"])(text)
    w = Embedding(4, 2)(known)
    both = layers.Flatten()(layers.Concatenate()([e, w]))
    return keras.Model({"text": text}, layers.Dense(1)(both))
"""
OPTIMIZERS = {
    "sgd": "keras.optimizers.SGD(0.3)",
    "adagrad": "keras.optimizers.Adagrad(0.1)",
    "schedule": "keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.7))",
    "clipnorm": "keras.optimizers.Adagrad(0.1, clipnorm=0.02)",
    "clipvalue": "keras.optimizers.Adagrad(0.1, clipvalue=0.01)",
    "global_clipnorm": "keras.optimizers.Adagrad(0.1, global_clipnorm=0.05)",
}


def module_with(tmp_path: Path, body: str, optimizer: str = OPTIMIZERS["sgd"]) -> ModelModule:
    (tmp_path / "made.py").write_text(f"{HEADER}\ndef optimizer(): return {optimizer}\n{body}")
    return load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))


def batch(number: int, size: int = 16) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(number)
    features = {
        "ids": rng.integers(0, 50, (size, 3)),
        "x": rng.standard_normal((size, 4)).astype(np.float32),
        "text": rng.choice([b"a", b"b", b"c", b"d", b"e"], (size, 2)).astype(object),
    }
    return features, rng.integers(0, 2, (size, 1)).astype(np.float32)  # type: ignore[return-value]


def only(features: dict[str, np.ndarray], *names: str) -> Any:
    return {name: tf.constant(features[name]) for name in names}


def plain(module: ModelModule, ps_model: PsModel, features: Any) -> keras.Model:
    """The same model without anything of ours, beginning with the same values."""
    model = module.custom_model()
    model(features)
    variables = {variable.path.split("/", 1)[-1]: variable for variable in model.variables}
    assert variables
    layers = {
        layer.path: layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
    }
    tables = list(ps_model.parameters.tables)
    for layer in layers.values() if tables else ():
        table = tables.pop(0)
        layer.embeddings.assign(
            initial_weights(table.initializer, table.seed, np.arange(layer.input_dim), table.dim)
        )
    served = "/embeddings" if ps_model.parameters.tables else "none"
    dense = [
        variable for variable in model.trainable_variables if not variable.path.endswith(served)
    ]
    dense += [variable for variable in model.non_trainable_variables if "moving" in variable.path]
    for theirs, ours in zip(dense, ps_model.variables, strict=True):
        theirs.assign(ours)
    for theirs, ours in zip(
        model.non_trainable_variables, ps_model.model.non_trainable_variables, strict=True
    ):
        theirs.assign(ours)
    return model


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_functional_model_trains_as_in_plain_keras(tmp_path: Path, optimizer: str) -> None:
    same_as_keras(
        module_with(tmp_path, FUNCTIONAL, OPTIMIZERS[optimizer]),
        lambda features: only(features, "ids", "x"),
    )


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (SUBCLASSED, ("ids", "x")),
        (MASKED, ("ids",)),
        (SHARED, ("ids",)),
        (NORMED, ("ids",)),
        (STRINGS, ("text",)),
    ],
    ids=["subclassed", "masked", "shared", "batch_normalization", "strings"],
)
def test_other_models_train_as_in_plain_keras(
    tmp_path: Path, body: str, names: tuple[str, ...]
) -> None:
    same_as_keras(module_with(tmp_path, body), lambda features: only(features, *names))


def test_a_sequential_model_trains_as_in_plain_keras(tmp_path: Path) -> None:
    same_as_keras(
        module_with(tmp_path, SEQUENTIAL, OPTIMIZERS["adagrad"]),
        lambda features: tf.constant(features["ids"], tf.int32),
    )


def same_as_keras(module: ModelModule, choose: Callable[[dict[str, np.ndarray]], Any]) -> None:
    features = choose(batch(0)[0])
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=5, features=features)
    assert ps_model.parameters.tables and not [
        v for v in ps_model.model.variables if v.path.endswith("/embeddings")
    ]
    step, server = CompiledStep(ps_model, module), OneServer(ps_model)
    model = plain(module, ps_model, features)
    optimizer = module.optimizer()
    for number in range(6):
        raw, labels = batch(number, size=16 if number < 5 else 7)
        features = choose(raw)
        lookups = step.prepare(features, training=True)
        outcome = step.train(features, tf.constant(labels), lookups, server.pull(lookups))
        assert not outcome.nonfinite
        with tf.GradientTape() as tape:
            loss = module.loss(tf.constant(labels), model(features, training=True)) + sum(
                model.losses
            )
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        np.testing.assert_allclose(outcome.loss, float(loss), rtol=1e-5)
        server.push(lookups, outcome)
    expected = [
        variable.numpy()
        for variable in model.trainable_variables
        if not variable.path.endswith("/embeddings")
    ]
    np.testing.assert_allclose(
        server.values[0], np.concatenate([one.ravel() for one in expected]), rtol=2e-5, atol=2e-6
    )
    moving = [
        variable.numpy().ravel()
        for variable in model.non_trainable_variables
        if "moving" in variable.path
    ]
    np.testing.assert_allclose(
        server.additive, np.concatenate([*moving, np.empty(0)]), rtol=2e-5, atol=2e-6
    )
    matrices = [
        layer.embeddings.numpy()
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
    ]
    for table, matrix in zip(server.tables, matrices, strict=True):
        np.testing.assert_allclose(table.peek(np.arange(len(matrix))), matrix, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("threshold_bytes", [0, 1 << 20], ids=["tables", "dense"])
@pytest.mark.parametrize("body", [FUNCTIONAL, TWICE], ids=["two layers", "a layer called twice"])
@pytest.mark.parametrize(
    "optimizer", ["SGD(0.3)", "Adagrad(0.1)", "Adam(0.05, amsgrad=True)", "Ftrl(0.1)"]
)
def test_training_equals_keras_fit_whatever_comes_twice(
    tmp_path: Path, optimizer: str, body: str, threshold_bytes: int
) -> None:
    module = module_with(tmp_path, body, f"keras.optimizers.{optimizer}")
    rng = np.random.default_rng(1)
    data = [
        (
            only({**batch(n)[0], "ids": rng.integers(0, 7, (16, 3))}, "ids", "x"),
            tf.constant(batch(n)[1]),
        )
        for n in range(5)
    ]
    ps_model = PsModel.build(module, {}, threshold_bytes=threshold_bytes, seed=5)
    assert bool(ps_model.parameters.tables) is (threshold_bytes == 0)
    step, server = CompiledStep(ps_model, module), OneServer(ps_model)
    model = plain(module, ps_model, data[0][0])
    for features, labels in data:
        lookups = step.prepare(features, training=True)
        server.push(lookups, step.train(features, labels, lookups, server.pull(lookups)))
    # To trace and compile it takes longer than these steps.
    model.compile(module.optimizer(), module.loss, run_eagerly=True)
    everything = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *data)
    model.fit(*everything, batch_size=16, shuffle=False, verbose=0)
    ids, x = (
        tf.constant(rng.integers(0, 7, (32, 3))),
        tf.constant(rng.standard_normal((32, 4)), tf.float32),
    )
    lookups = step.prepare({"ids": ids, "x": x})
    ours = step.predict({"ids": ids, "x": x}, lookups, server.pull(lookups))
    np.testing.assert_allclose(ours, model({"ids": ids, "x": x}), rtol=1e-5, atol=1e-6)
