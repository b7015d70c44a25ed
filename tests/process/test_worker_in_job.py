"""Workers inside whole jobs: stopped by callbacks, ended by the module, predicting through the
module's own processor.
"""

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


def test_a_callback_that_ends_the_process_fails_the_job_and_is_named(
    start_job: Callable[..., Job], iris_csv: Callable[..., Path], zoo: Callable[..., Path]
) -> None:
    more = """
import sys


class Leaves(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            sys.exit(0)


def callbacks():
    return [Leaves()]
"""
    job = start_job(
        model_zoo=zoo(more),
        model_def="model",
        training_data=iris_csv(8),
        num_workers=1,
        max_relaunches=0,
    )
    code, output = job.finish()
    assert code == 1, output
    assert "model.py" in output and "called exit(0)" in output
    assert job.receipt()["total"]["trained"] < 1200


MORE = """
from elasticdl.model.callbacks import MaxStepsStopping


def callbacks():
    return [MaxStepsStopping(100)]
"""
PROCESSOR = """

class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        with open(f"{os.environ['PREDICTED']}/predicted-{worker_id}", "a") as file:
            file.write("".join(f"{row.argmax()}\\n" for row in predictions))
"""


@pytest.fixture(scope="module")
def stopped(start_jobs: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A subclassed model whose training a callback ended after 100 steps."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "model.py").write_text("import os\n" + MODULE + SUBCLASSED + MORE + PROCESSOR)
    job = start_jobs(
        model_zoo=folder,
        model_def="model.CustomModel",
        training_data=write_iris(folder / "iris.csv", 40),
        validation_data=write_iris(folder / "one.csv"),
        num_epochs=50,
        num_workers=1,
        minibatch_size=16,
        checkpoint_steps=10,
        output=folder / "export",
    )
    code, output = job.finish()
    assert code == 0, output
    return job


def test_max_steps_stopping_ends_the_training_early_with_an_honest_receipt(stopped: Job) -> None:
    total = stopped.receipt()["total"]
    assert total["lost"] == 0
    assert 1600 <= total["trained"] == total["expected"] - total["left"] < 30_000
    assert "MaxStepsStopping" in stopped.receipt()["why_left"]
    assert any("MaxStepsStopping" in event["text"] for event in stopped.events())


def test_a_processor_gets_every_prediction_of_a_subclassed_model_once(
    stopped: Job, start_job: Callable[..., Job], iris_csv: Callable[..., Path], tmp_path: Path
) -> None:
    folder = Path(stopped.spec()["model"]["model_zoo"])
    assert (folder / "export" / "saved_model.pb").exists()
    job = start_job(
        "predict",
        model_zoo=folder,
        model_def="model.CustomModel",
        num_workers=2,
        prediction_data=iris_csv(8),
        checkpoint_dir_for_init=stopped.directory / "checkpoints",
        envs=f"PREDICTED={tmp_path}",
    )
    code, output = job.finish()
    assert code == 0, output
    predicted = [
        line for path in tmp_path.glob("predicted-*") for line in path.read_text().splitlines()
    ]
    assert len(predicted) == 1200
