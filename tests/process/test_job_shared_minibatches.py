"""A job with momentum and several workers takes the steps of plain Keras."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.model.tensorflow_import import load_tensorflow
from tests.conftest import Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

RECORDS, EPOCHS = 64, 12
FLOATX = "float32"
"""As `test_ps_steps.py` has it for either type, without processes."""
MODULE = f"""
import keras

keras.config.set_floatx("{FLOATX}")

def custom_model():
    ids = keras.Input((), dtype="int64", name="id")
    x = keras.Input((4,), name="x")
    tenth = keras.initializers.Constant(0.1)
    row = keras.layers.Embedding(16, 4, embeddings_initializer=tenth)(ids)
    both = keras.layers.Concatenate()([row, x])
    hidden = keras.layers.Dense(4, activation="tanh", kernel_initializer=tenth)(both)
    return keras.Model([ids, x], keras.layers.Dense(1, kernel_initializer="ones")(hidden))

def loss(labels, predictions):
    # Keras gives labels of one column, a job those of `feed_batch`.
    return keras.ops.square(keras.ops.reshape(labels, (-1,)) - predictions[:, 0])

def optimizer():
    decay = keras.optimizers.schedules.CosineDecay(0.05, {EPOCHS})
    return keras.optimizers.SGD(decay, momentum=0.9)

def feed_batch(records, mode, metadata):
    return {{"id": records["id"], "x": records["x"]}}, records["label"]
"""


@pytest.fixture
def keras_as_before() -> Iterator[None]:
    """The module sets `floatx` for all of the process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    load_tensorflow()
    import keras

    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    sys.modules.pop("shared_steps", None)


@pytest.mark.usefixtures("keras_as_before")
def test_a_job_with_momentum_takes_the_steps_of_plain_keras(
    start_job: Callable[..., Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On two servers; `test_ps_steps.py` has more workers and one server, without processes."""
    (tmp_path / "shared_steps.py").write_text(MODULE)
    random = np.random.default_rng(0)
    ids = random.integers(0, 16, RECORDS)
    x = random.normal(size=(RECORDS, 4)).astype(FLOATX)
    labels = (x[:, 0] - x[:, 1] + ids % 2).astype(FLOATX)
    np.savez(tmp_path / "data.npz", id=ids, x=x, label=labels)
    job = start_job(
        "train",
        model_zoo=tmp_path,
        model_def="shared_steps",
        training_data=tmp_path / "data.npz",
        minibatch_size=RECORDS,
        num_epochs=EPOCHS,
        num_workers=2,
        num_ps_pods=2,
        embedding_threshold_bytes=0,
        output=tmp_path / "export",
    )
    code, output = job.finish()
    assert code == 0, output
    ended = json.loads((job.directory / "status.json").read_text())
    assert ended["status"]["version"] == EPOCHS
    [said] = [event for event in job.events() if event["kind"] == "staleness"]
    assert "in 2 parts" in said["text"]
    curves = {curve["name"] for curve in json.loads((job.directory / "series.json").read_text())}
    assert "loss" in curves and "staleness" not in curves

    monkeypatch.syspath_prepend(str(tmp_path))
    features = {"id": ids, "x": x}
    expected = by_plain_keras(features, labels)
    assert np.ptp(expected) > 1
    import tensorflow as tf

    export = tf.saved_model.load(job.spec()["checkpoint"]["output"])
    serve = export.signatures["serving_default"]
    [trained] = serve(**{name: tf.constant(value) for name, value in features.items()}).values()
    assert trained.dtype == FLOATX
    np.testing.assert_allclose(trained.numpy(), expected, rtol=1e-4, atol=1e-5)


def by_plain_keras(features: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
    """Predictions of the module's model after `fit` took the same steps."""
    import keras

    keras.config.set_dtype_policy(FLOATX)
    shared_steps = importlib.import_module("shared_steps")
    model = shared_steps.custom_model()
    # Eager: to compile so few steps takes longer than they do.
    model.compile(optimizer=shared_steps.optimizer(), loss=shared_steps.loss, run_eagerly=True)
    model.fit(features, labels, batch_size=RECORDS, epochs=EPOCHS, verbose=0)
    return model.predict(features, batch_size=RECORDS, verbose=0)
