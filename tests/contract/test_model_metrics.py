"""Metrics of parts add up to the metric of the whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection
from elasticdl.model.dry_run import DryRun
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import Pulled

pytestmark = pytest.mark.contract

BODY = """
import keras
import tensorflow as tf
from keras import layers
def feed(dataset, mode, metadata): return dataset
def optimizer(): return keras.optimizers.SGD(0.1)
def loss(labels, predictions): return keras.losses.binary_crossentropy(labels, predictions)
def custom_model():
    return keras.Sequential([keras.Input((1,)), layers.Dense(1, activation="sigmoid")])
"""


def module_with(tmp_path: Path, body: str) -> ModelModule:
    (tmp_path / "made.py").write_text(BODY + body)
    return load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))


def trial(module: ModelModule) -> DryRun:
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=2)
    return DryRun(module, ps_model, CompiledStep(ps_model, module))


def data(count: int = 200) -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((count, 1)).astype(np.float32)
    return tf.constant(x), tf.constant(
        (x + rng.standard_normal((count, 1)) > 0.5).astype(np.float32)
    )


def summed(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: tuple(
            tuple(np.sum(values, 0)) for values in zip(*(part[name] for part in parts), strict=True)
        )
        for name in parts[0]
    }


METRICS = """
def eval_metrics_fn():
    return {
        "auc": keras.metrics.AUC(),
        "accuracy": keras.metrics.BinaryAccuracy(),
        "precision": keras.metrics.Precision(),
        "f1": keras.metrics.F1Score(threshold=0.5),
        "r2": keras.metrics.R2Score(),
        "own": lambda labels, predictions: tf.abs(labels - predictions) < 0.5,
    }
"""


def test_four_workers_give_what_one_gives(tmp_path: Path) -> None:
    module = module_with(tmp_path, METRICS)
    features, labels = data()
    workers = [trial(module) for _ in range(4)]
    states = []
    for number, worker in enumerate(workers):
        part = slice(50 * number, 50 * (number + 1))
        states.append(worker._states(features[part], labels[part]))
    merged = json.loads(json.dumps(summed(states)))  # type: ignore[arg-type]
    values = workers[0].step.metric_values(
        {name: tuple(map(tuple, arrays)) for name, arrays in merged.items()}
    )
    predictions = workers[0].predict(features)
    auc = keras.metrics.AUC()
    auc.update_state(labels, predictions)
    assert values["auc"] == pytest.approx(float(auc.result()), rel=1e-6)
    assert values["own"] == pytest.approx(
        float(np.mean(np.abs(labels - predictions) < 0.5)), rel=1e-6
    )
    assert values["loss"] == pytest.approx(
        float(np.mean(module.loss(labels, predictions))), rel=1e-5
    )
    assert set(values) == {"auc", "accuracy", "precision", "f1/0", "r2", "own", "loss"}


def test_values_leave_the_metrics_empty(tmp_path: Path) -> None:
    one = trial(module_with(tmp_path, METRICS))
    states = one._states(*data())
    one.step.metric_values(states)
    left = [
        number
        for arrays in one.step.metric_states().values()
        for array in arrays
        for number in array
    ]
    assert left and not any(left)


def test_states_that_do_not_add_up_are_refused_by_name(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.largest = self.add_variable((), "zeros")
    def update_state(self, labels, predictions, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest.value, tf.reduce_max(predictions)))
    def result(self):
        return self.largest.value
def eval_metrics_fn(): return {"largest": Largest()}
""",
    )
    with pytest.raises(
        UserError,
        match=r"made\.py:\d+: metric 'largest' is .* for a batch, but .* of its two halves",
    ):
        trial(module).evaluate(*data())


def test_good_metrics_pass_the_check(tmp_path: Path) -> None:
    one = trial(module_with(tmp_path, METRICS))
    features, labels = data()
    values = one.evaluate(features, labels)
    accuracy = keras.metrics.BinaryAccuracy()
    accuracy.update_state(labels, one.predict(features))
    assert values["accuracy"] == pytest.approx(float(accuracy.result()), rel=1e-6)


OUTPUTS = """
def custom_model():
    x = keras.Input((1,))
    return keras.Model(x, {outputs})
def loss(labels, predictions): return tf.reduce_mean(tf.square(labels["a"] - predictions{first}))
def eval_metrics_fn():
    mse = keras.metrics.MeanSquaredError()
    return {{"a": {{"mse": mse}}, "{second}": {{"mae": lambda y, p: tf.abs(y - p)}}}}
"""


@pytest.mark.parametrize(
    ("outputs", "first"),
    [
        ('{"a": layers.Dense(1, name="a")(x), "b": layers.Dense(1, name="b")(x)}', '["a"]'),
        ('[layers.Dense(1, name="a")(x), layers.Dense(1, name="b")(x)]', "[0]"),
    ],
)
def test_metrics_of_several_outputs(tmp_path: Path, outputs: str, first: str) -> None:
    one = trial(module_with(tmp_path, OUTPUTS.format(outputs=outputs, first=first, second="b")))
    features, labels = data()
    values = one.evaluate(features, {"a": labels, "b": labels})
    predictions = one.predict(features)
    a, b = (predictions["a"], predictions["b"]) if isinstance(predictions, dict) else predictions
    assert values["a_mse"] == pytest.approx(float(np.mean(np.square(labels - a))), rel=1e-5)
    assert values["b_mae"] == pytest.approx(float(np.mean(np.abs(labels - b))), rel=1e-5)


def test_a_metric_on_an_output_that_is_not_there_is_named(tmp_path: Path) -> None:
    outputs = '{"a": layers.Dense(1, name="a")(x), "b": layers.Dense(1, name="b")(x)}'
    one = trial(module_with(tmp_path, OUTPUTS.format(outputs=outputs, first='["a"]', second="c")))
    features, labels = data()
    with pytest.raises(UserError, match="names the output 'c', but the labels are a, b"):
        one.evaluate(features, {"a": labels, "b": labels})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def eval_metrics_fn(): return [1]", "eval_metrics_fn returned list"),
        ("def eval_metrics_fn(): return {'x': 3}", "metric 'x' is 3"),
        ("def eval_metrics_fn(): return 1 / 0", "eval_metrics_fn raised ZeroDivisionError"),
    ],
)
def test_metrics_that_are_none_are_refused(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"made\.py:\d+: {words}"):
        trial(module_with(tmp_path, body))


def test_one_metric_under_two_names_is_refused(tmp_path: Path) -> None:
    """It would count each example twice."""
    body = (
        "def eval_metrics_fn():\n    one = keras.metrics.TruePositives()\n    return {'a': one,"
        " 'b': {'c': one}}"
    )
    with pytest.raises(UserError, match=r"made\.py:\d+: metrics 'a' and 'b_c' are the same object"):
        trial(module_with(tmp_path, body))


def test_metrics_that_wait_for_a_batch_can_be_loaded_after_one_step(tmp_path: Path) -> None:
    """The worker that sums a round up may have seen no evaluation batch of it."""
    module = module_with(tmp_path, METRICS)
    features, labels = data()
    states = trial(module)._states(features, labels)
    other = trial(module)
    lookups = other.step.prepare(features, training=True)
    other.step.train(features, labels, lookups, Pulled((0,), other.ps_model.dense(), ()))
    values = other.step.metric_values(states)
    assert values.keys() == {"auc", "accuracy", "precision", "f1/0", "r2", "own", "loss"}
    assert trial(module).step.metric_values(states) == values  # not even one step
