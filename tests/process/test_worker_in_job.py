"""Workers inside whole jobs, stopped by callbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

MODULE = """
import keras
import tensorflow as tf


def custom_model():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def loss(labels, predictions):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, predictions)


def optimizer(lr=0.01):
    return keras.optimizers.Adam(lr)


def feed_batch(records, mode, metadata):
    features = tf.strings.to_number(records[:, :4])
    return features if mode == "prediction" else (features, tf.strings.to_number(records[:, 4]))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
"""

SUBCLASSED = """

class CustomModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.last = keras.layers.Dense(3)

    def call(self, inputs):
        return self.last(self.hidden(inputs))
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Callable[..., Path]:
    """Write a module `model.py` from the common part and more; its directory."""

    def write(more: str = "") -> Path:
        directory = tmp_path / "zoo"
        directory.mkdir(exist_ok=True)
        (directory / "model.py").write_text(MODULE + more)
        return directory

    return write


MORE = """
from elasticdl.model.callbacks import MaxStepsStopping


def callbacks():
    return [MaxStepsStopping(100)]
"""


def test_max_steps_stopping_ends_the_training_of_a_subclassed_model_with_an_honest_receipt(
    start_job: Callable[..., Job], zoo: Callable[..., Path], tmp_path: Path
) -> None:
    job = start_job(
        model_zoo=zoo(SUBCLASSED + MORE),
        model_def="model.CustomModel",
        training_data=write_iris(tmp_path / "iris.csv", 40),
        validation_data=write_iris(tmp_path / "one.csv"),
        num_epochs=50,
        num_workers=1,
        minibatch_size=16,
        checkpoint_steps=10,
        output=tmp_path / "export",
    )
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert total["lost"] == 0
    assert 1600 <= total["trained"] == total["expected"] - total["left"] < 30_000
    assert "MaxStepsStopping" in job.receipt()["why_left"]
    assert any("MaxStepsStopping" in event["text"] for event in job.events())
    assert (tmp_path / "export" / "saved_model.pb").exists()
