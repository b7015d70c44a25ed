"""Each mistake in a model module is told with its place and with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.preflight_process import check

pytestmark = pytest.mark.contract

MODEL = "keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])"
LOSS = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
PARTS = {
    "custom_model": f"def custom_model():\n    return {MODEL}",
    "loss": f"def loss(labels, predictions):\n    return {LOSS}(labels, predictions)",
    "optimizer": "def optimizer(lr=0.1):\n    return keras.optimizers.SGD(lr)",
    "feed": (
        "def parse(row):\n    return tf.strings.to_number(row[:2]), tf.strings.to_number(row[2])\n"
        "def feed(dataset, mode, metadata):\n    return dataset.map(parse)"
    ),
    "eval_metrics_fn": (
        "def eval_metrics_fn():\n    return {'accuracy': keras.metrics.SparseCategoricalAccuracy()}"
    ),
}
NO_RETURN = {
    name: text.replace("    return ", "    ", 1) for name, text in PARTS.items() if name != "feed"
}
M = "class M(keras.Model):\n"


def checked(folder: Path, text: str) -> dict[str, Any]:
    (folder / "made.py").write_text(f"import keras\nimport tensorflow as tf\n\n{text}\n")
    data = folder / "points.csv"
    data.write_text("x,y,label\n" + "0.5,1.5,1\n1.5,0.5,0\n" * 8)
    flags = {"model_zoo": str(folder), "model_def": "made", "minibatch_size": 16}
    flags |= {"training_data": str(data), "validation_data": str(data)}
    return check(JobSpec.from_flags(Action.TRAIN, flags))


def module(**parts: str) -> str:
    return "\n\n".join({**PARTS, **parts}.values())


@pytest.mark.parametrize(
    ("part", "text", "error", "hint"),
    [
        (
            "more",
            "import no_such_package",
            "importing made raised ModuleNotFoundError",
            "install the package of no_such_package where the job runs",
        ),
        ("more", "def f(): f()\nf()", "RecursionError", "more calls"),
        (
            "custom_model",
            NO_RETURN["custom_model"],
            "custom_model returned None, expected a keras.Model",
            "return it at the end of custom_model",
        ),
        (
            "custom_model",
            f"custom_model = {MODEL}",
            "custom_model is a Keras model",
            "expected `def custom_model(**params)`",
        ),
        (
            "custom_model",
            "def custom_model():\n    return keras.Sequential",
            "custom_model returned the class Sequential",
            "call it: Sequential(...)",
        ),
        (
            "custom_model",
            f"def custom_model():\n    yield {MODEL}",
            "custom_model returned generator",
            "replace yield in custom_model with return",
        ),
        ("custom_model", f"async {PARTS['custom_model']}", "returned coroutine", "remove async"),
        ("custom_model", "def custom_model():\n    return keras.Sequential([])", "no layers", ""),
        (
            "custom_model",
            "def custom_model():\n    return M()\n"
            f"{M}    def __init__(self): self.dense = keras.layers.Dense(2)",
            "you forgot to call `super().__init__()`",
            "",
        ),
        (
            "custom_model",
            f"def custom_model():\n    return M()\n{M}    def call(self, x): keras.ops.sum(x)",
            "M.call returned None, expected tensors",
            "return it at the end of M.call",
        ),
        (
            "custom_model",
            "def custom_model():\n    return M()\n"
            f"{M}    def call(self, x): return keras.layers.Dense(2)(x)",
            "singleton tf.Variables",
            "create layers and variables in __init__ or build, not in call",
        ),
        (
            "custom_model",
            f"def custom_model():\n    return M()\n{M}    def call(self, x): return x.numpy()",
            "no attribute 'numpy'",
            "use operations of tf or keras.ops",
        ),
        (
            "custom_model",
            PARTS["custom_model"].replace("(2,)", "(5,)"),
            "to have value 5",
            "give keras.Input the shape of one example as feed returns it",
        ),
        ("loss", NO_RETURN["loss"], "loss returned None", "return it at the end of loss"),
        (
            "loss",
            "loss = keras.losses.MeanSquaredError",
            "loss is the class MeanSquaredError",
            "expected `def loss(labels, predictions)`",
        ),
        (
            "loss",
            f"def loss(labels, predictions):\n    return {LOSS}",
            "loss returned SparseCategoricalCrossentropy",
            "call it: SparseCategoricalCrossentropy(...)(labels, predictions)",
        ),
        (
            "loss",
            "def loss(labels, predictions):\n    return 1.0",
            "loss returned float",
            "operations of tf or keras.ops, which have gradients",
        ),
        (
            "optimizer",
            "def optimizer():\n    return keras.optimizers.SGD",
            "optimizer returned the class SGD, expected a Keras optimizer",
            "call it: SGD(...)",
        ),
        (
            "optimizer",
            "def optimizer():\n    return keras.optimizers.SGD(float('nan'))",
            "the learning rate is nan",
            "it must be a finite number",
        ),
        (
            "feed",
            "def feed(dataset, mode, metadata):\n    dataset.map(lambda row: row)",
            "feed returned None, expected a tf.data.Dataset",
            "return it at the end of feed",
        ),
        (
            "feed",
            PARTS["feed"].replace("map(parse)", "map(lambda row: parse(row)[0])"),
            "expected (features, labels)",
            "return a pair for each example",
        ),
        (
            "feed",
            PARTS["feed"].replace("map(parse)", "map(lambda row: (parse(row)[0], None))"),
            "loss raised ValueError",
            "feed returns None for labels",
        ),
        (
            "feed",
            PARTS["feed"].replace("tf.strings.to_number(row[:2])", "row[:2]"),
            "Cast string to float is not supported",
            "convert it in feed, for example with tf.strings.to_number",
        ),
        ("feed", PARTS["feed"].replace("feed(", "dataset_fn("), "feed is missing", "dataset_fn"),
        (
            "eval_metrics_fn",
            NO_RETURN["eval_metrics_fn"],
            "eval_metrics_fn returned None, expected {name: metric}",
            "return it at the end of eval_metrics_fn",
        ),
        (
            "eval_metrics_fn",
            "def eval_metrics_fn():\n"
            "    a = keras.metrics.SparseCategoricalAccuracy()\n"
            "    return {'a': a, 'b': keras.metrics.BinaryAccuracy()}",
            "metric b raised",
            "",
        ),
        (
            "more",
            "def callbacks():\n    return [keras.callbacks.TerminateOnNaN]",
            "callbacks returned a list with <class",
            "create one: TerminateOnNaN()",
        ),
        (
            "more",
            "def callbacks():\n    return [1]",
            "callbacks returned a list with 1",
            "derive its class from keras.callbacks.Callback",
        ),
        (
            "more",
            "def callbacks():\n    return keras.callbacks.TerminateOnNaN()",
            "callbacks returned TerminateOnNaN, expected a list of Keras callbacks",
            "",
        ),
        (
            "more",
            "def custom_data_reader(data_origin, records_per_task=None):\n    pass",
            "custom_data_reader returned a NoneType, which is not a reader",
            "return an object with sources() and read(shard)",
        ),
        (
            "more",
            "def custom_data_reader(data_origin):\n    pass",
            "custom_data_reader() got an unexpected keyword argument 'records_per_task'",
            "",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_what_to_do(
    tmp_path: Path, part: str, text: str, error: str, hint: str
) -> None:
    result = checked(tmp_path, module(**{part: text}))
    assert not result["ok"]
    assert result["error"].startswith(f"{tmp_path}/made.py:")
    assert error in result["error"] and hint in result["hint"]
    assert result["hint"].count("\n") < 20


def test_nan_at_once_is_a_warning_with_its_place(tmp_path: Path) -> None:
    nan = "tf.math.log(-1.0 - tf.reduce_mean(tf.square(predictions)))"
    metric = "{'m': lambda labels, predictions: predictions[:, 0] / 0.0}"
    parts = {
        "loss": f"def loss(labels, predictions):\n    return {nan}",
        "eval_metrics_fn": f"def eval_metrics_fn():\n    return {metric}",
    }
    result = checked(tmp_path, module(**parts))
    assert result["ok"]
    first, second = result["warnings"]
    assert first.startswith(f"{tmp_path}/made.py:7: the first batch yields NaN or infinity in loss")
    assert "look for NaN in the data" in first
    assert second.startswith("metric m is ") and second.endswith(" for the first batch")
