"""Several ids per example with a combiner: the numbers of tf.nn.embedding_lookup_sparse, and only
the ids of the batch travel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.job_flags import ModelSection
from elasticdl.model.dry_run import DryRun
from elasticdl.model.layers import Embedding
from elasticdl.model.module import load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep

pytestmark = pytest.mark.contract

IDS = [[7, 3, 7], [], [12], [5, 7], []]
WEIGHTS = [[0.5, 2.0, 1.5], [], [3.0], [0.25, 4.0], []]
MODULE = """
import keras
import tensorflow as tf
from elasticdl.model.layers import Embedding
def feed(dataset, mode, metadata): return dataset
def optimizer(): return keras.optimizers.SGD(0.1)
def loss(labels, predictions): return tf.reduce_sum(tf.square(predictions - labels), 1)
class Model(keras.Model):
    def __init__(self, combiner):
        super().__init__()
        self.words = Embedding(4, combiner=combiner)
    def call(self, features, training=False):
        return self.words(features["ids"], features.get("weights"))
def custom_model(combiner): return Model(combiner)
"""


def ragged(values: list[list[Any]], dtype: str) -> tf.RaggedTensor:
    return tf.ragged.constant(values, dtype=dtype)


def features(form: str, weighted: bool) -> dict[str, Any]:
    made = {"ids": ragged(IDS, "int64")}
    if weighted:
        made["weights"] = ragged(WEIGHTS, "float32")
    return {
        name: tensor.to_sparse() if form == "sparse" else tensor for name, tensor in made.items()
    }


def expected(matrix: tf.Tensor, combiner: str, weighted: bool) -> tf.Tensor:
    """TensorFlow's own, which leaves empty examples at the end out."""
    made = tf.nn.embedding_lookup_sparse(
        matrix,
        ragged(IDS, "int64").to_sparse(),
        ragged(WEIGHTS, "float32").to_sparse() if weighted else None,
        combiner=combiner,
    )
    return tf.pad(made, [[0, len(IDS) - len(made)], [0, 0]])


@pytest.mark.parametrize("form", ["sparse", "ragged"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_dense_layer_has_the_values_and_gradients_of_tensorflow(
    combiner: str, weighted: bool, form: str
) -> None:
    layer = Embedding(4, 20, combiner=combiner, served=False)
    given = features(form, weighted)
    with tf.GradientTape() as tape:
        made = layer(given["ids"], given.get("weights"))
        loss = tf.reduce_sum(made**2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value))
    matrix = tf.Variable(layer.embeddings.numpy())
    with tf.GradientTape() as tape:
        wanted = expected(matrix, combiner, weighted)
        loss = tf.reduce_sum(wanted**2)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-7)
    wanted_gradient = tf.convert_to_tensor(tape.gradient(loss, matrix))
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("combiner", "form", "weighted"),
    [("mean", "sparse", True), ("sqrtn", "ragged", False), ("sum", "sparse", False)],
)
def test_a_served_layer_pulls_the_ids_of_the_batch_only_and_has_the_same_gradients(
    tmp_path: Path, combiner: str, form: str, weighted: bool
) -> None:
    (tmp_path / "made.py").write_text(MODULE)
    module = load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))
    given, labels = features(form, weighted), tf.ones((len(IDS), 4))
    ps_model = PsModel.build(
        module, {"combiner": combiner}, threshold_bytes=0, seed=2, features=given
    )
    run = DryRun(module, ps_model, CompiledStep(ps_model, module))
    lookups = run.step.prepare(given, training=True)
    (ids,) = lookups.ids
    assert sorted(ids.tolist()) == [3, 5, 7, 12]
    pulled = run.pulled(lookups)
    outcome = run.step.train(given, labels, lookups, pulled)
    matrix = tf.Variable(tf.scatter_nd(ids[:, None], pulled.rows[0], (20, 4)))
    with tf.GradientTape() as tape:
        wanted = expected(matrix, combiner, weighted)
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(wanted - labels), 1))
    np.testing.assert_allclose(run.predict(given), wanted, rtol=1e-5, atol=1e-7)
    gradient = tf.convert_to_tensor(tape.gradient(loss, matrix)).numpy()[ids]
    np.testing.assert_allclose(outcome.gradients[0], gradient, rtol=1e-5, atol=1e-7)


def test_a_functional_model_takes_sparse_ids_and_saves_its_combiner() -> None:
    ids = keras.Input((None,), dtype="int64", sparse=True)
    model = keras.Model(ids, Embedding(4, 20, combiner="mean", served=False)(ids))
    assert model.output_shape == (None, 4)
    sparse = ragged(IDS, "int64").to_sparse()
    wanted = expected(model.layers[1].embeddings.value, "mean", False)
    np.testing.assert_allclose(model(sparse), wanted, rtol=1e-5, atol=1e-7)
    assert Embedding.from_config(model.layers[1].get_config()).combiner == "mean"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"combiner": "max"}, "expected one of"), ({"combiner": "sum", "mask_zero": True}, "mask")],
)
def test_what_a_combiner_cannot_do_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Embedding(4, 20, **options)


def test_weights_without_a_combiner_and_ids_of_another_rank_are_refused() -> None:
    ids = tf.constant([[1, 2]])
    with pytest.raises(ValueError, match="need a combiner"):
        Embedding(4, 20, served=False)(ids, tf.ones((1, 2)))
    with pytest.raises(ValueError, match="rank 2"):
        Embedding(4, 20, served=False, combiner="sum")(tf.constant([1, 2]))
