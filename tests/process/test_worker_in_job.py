"""Workers inside whole jobs: drained, stopped by callbacks, predicting through the module's own processor."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

MODULE = """
import keras
import tensorflow as tf


def custom_model():
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(8, activation="relu")(inputs)))


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
def zoo(tmp_path: Path):
    """Write a module `model.py` from the common part and more; its directory."""

    def write(more: str = "") -> Path:
        directory = tmp_path / "zoo"
        directory.mkdir(exist_ok=True)
        (directory / "model.py").write_text(MODULE + more)
        return directory

    return write


def test_a_worker_asked_to_go_gives_its_work_back_and_nothing_is_repeated(start_job, iris_csv, zoo):
    job = start_job(model_zoo=zoo(), model_def="model", training_data=iris_csv(400), num_epochs=2, num_workers=2, minibatch_size=16)
    job.wait_until("training is under way", lambda status: status["records"]["trained"] > 3000)
    os.kill(random.Random(3).choice(sorted(job.pids("worker"))), signal.SIGTERM)
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert (total["trained"], total["lost"], total["repeated"]) == (120_000, 0, 0)
    assert any(event.get("cause") == "drained" and "worker" in event["process"] for event in job.events())


def test_max_steps_stopping_ends_the_training_early_with_an_honest_receipt(start_job, iris_csv, zoo):
    more = "\nfrom elasticdl.model.callbacks import MaxStepsStopping\n\n\ndef callbacks():\n    return [MaxStepsStopping(100)]\n"
    job = start_job(
        model_zoo=zoo(more), model_def="model", training_data=iris_csv(400), num_epochs=50, num_workers=1, minibatch_size=16
    )
    code, output = job.finish()
    assert code == 0, output
    total = job.receipt()["total"]
    assert total["lost"] == 0
    assert 1600 <= total["trained"] == total["expected"] - total["left"] < 30_000
    assert "MaxStepsStopping" in job.receipt()["why_left"]
    assert any("MaxStepsStopping" in event["text"] for event in job.events())


def test_a_callback_that_ends_the_process_fails_the_job_and_is_named(start_job, iris_csv, zoo):
    more = """
import sys


class Leaves(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            sys.exit(0)


def callbacks():
    return [Leaves()]
"""
    job = start_job(model_zoo=zoo(more), model_def="model", training_data=iris_csv(8), num_workers=1, max_relaunches=0)
    code, output = job.finish()
    assert code == 1, output
    assert "model.py" in output and "called exit(0)" in output
    assert job.receipt()["total"]["trained"] < 1200


def test_a_processor_gets_every_prediction_of_a_subclassed_model_once(start_job, iris_csv, zoo, tmp_path):
    directory = zoo(SUBCLASSED)
    flags = {"model_zoo": directory, "model_def": "model.CustomModel", "num_workers": 2}
    data = iris_csv(8)
    training = start_job(**flags, training_data=data, validation_data=data, checkpoint_steps=10, output=tmp_path / "export")
    code, output = training.finish()
    assert code == 0, output
    assert (tmp_path / "export" / "saved_model.pb").exists()
    zoo(
        SUBCLASSED
        + f'''

class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        with open(r"{tmp_path}" + f"/predicted-{{worker_id}}", "a") as file:
            file.write("".join(f"{{row.argmax()}}\\n" for row in predictions))
'''
    )
    checkpoints = training.directory / "checkpoints"
    prediction = start_job(
        "predict", **flags, prediction_data=data, checkpoint_dir_for_init=checkpoints, output=tmp_path / "unused"
    )
    code, output = prediction.finish()
    assert code == 0, output
    predicted = [line for path in tmp_path.glob("predicted-*") for line in path.read_text().splitlines()]
    assert len(predicted) == 1200
    assert not (tmp_path / "unused").exists()
