"""Modules that do what few do: lookup tables, ragged features, a Sequential model of a dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import ModelSection
from elasticdl.model.dry_run import DryRun
from elasticdl.model.module import load_module
from elasticdl.model.preflight_process import check
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep

pytestmark = pytest.mark.contract

ANY_SIZE = [pytest.param(0, id="served"), pytest.param(1 << 30, id="dense")]

HEAD = """
import keras
import tensorflow as tf
from keras import layers
def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)
def optimizer(): return keras.optimizers.SGD(0.1)
def feed(dataset, mode, metadata):
    def parse(record):
        ids = tf.strings.to_number(record[:2], tf.int64)
        return ids if mode == "prediction" else (ids, tf.strings.to_number(record[2:]))
    return dataset.map(parse)
def table():
    keys = tf.range(4, dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), 0)
def custom_model():
    return keras.Sequential(
        [keras.Input((2,), dtype="int64"), layers.Embedding(50, 4), layers.Flatten(),
         layers.Dense(1)]
    )
"""
SUBCLASS = """
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.out = layers.Embedding(50, 4), layers.Dense(1)
        self.table = TABLE
    def call(self, ids, training=False):
        ENCODE
        return self.out(tf.reduce_mean(self.words(ids), 1))
def custom_model(): return Model()
"""


def line_of(text: str, part: str) -> int:
    """The line of the last occurrence."""
    return text[: text.rindex(part)].count("\n") + 1


def checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    threshold_bytes: int = 0,
    action: Action = Action.TRAIN,
) -> dict[str, Any]:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "made.py").write_text(text)
    (tmp_path / "data.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n")
    flags = {
        "model_zoo": str(tmp_path),
        "model_def": "made",
        "training_data": str(tmp_path / "data.csv"),
        "validation_data": str(tmp_path / "data.csv"),
        "prediction_data": str(tmp_path / "data.csv"),
        "checkpoint_dir_for_init": "x",
        "output": "" if "Processor" in text else "y",
        "embedding_threshold_bytes": threshold_bytes,
    }
    return check(JobSpec.from_flags(action, flags))


@pytest.mark.parametrize("threshold_bytes", ANY_SIZE)
def test_a_table_of_the_models_init_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold_bytes: int
) -> None:
    text = HEAD + SUBCLASS.replace("TABLE", "table()").replace(
        "ENCODE", "ids = self.table.lookup(ids)"
    )
    assert checked(tmp_path, monkeypatch, text, threshold_bytes)["ok"]


@pytest.mark.parametrize("threshold_bytes", ANY_SIZE)
def test_a_table_that_is_made_in_the_models_call_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold_bytes: int
) -> None:
    text = HEAD + SUBCLASS.replace("TABLE", "None").replace("ENCODE", "ids = table().lookup(ids)")
    found = checked(tmp_path, monkeypatch, text, threshold_bytes)
    made = line_of(text, "return tf.lookup.StaticHashTable")
    assert found["error"] == (
        f"{tmp_path}/made.py:{made}: the model makes a lookup table while it is called"
    )
    assert found["hint"] == "make lookup tables once, at the top of the module or in __init__"


@pytest.mark.parametrize("threshold_bytes", ANY_SIZE)
def test_a_table_that_the_first_call_keeps_is_refused_with_the_lines_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold_bytes: int
) -> None:
    text = HEAD + SUBCLASS.replace("TABLE", "None").replace(
        "ENCODE", "self.table = self.table or table()\n        ids = self.table.lookup(ids)"
    )
    found = checked(tmp_path, monkeypatch, text, threshold_bytes)
    assert f"made.py:{line_of(text, 'return tf.lookup.Static')}: " in found["error"]
    assert found["error"].endswith("is out of scope and cannot be used here")
    assert "make lookup tables once, at the top of the module or in __init__" in found["hint"]
    assert f"made.py:{line_of(text, 'self.table or')}  self.table = self.table" in found["hint"]


@pytest.mark.parametrize("threshold_bytes", ANY_SIZE)
def test_a_table_that_the_models_call_fills_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold_bytes: int
) -> None:
    table = "tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2)"
    fills = "self.table.insert(ids, ids); ids = tf.ensure_shape(self.table.lookup(ids), (None, 2))"
    text = HEAD + SUBCLASS.replace("TABLE", table).replace("ENCODE", fills)
    found = checked(tmp_path, monkeypatch, text, threshold_bytes)
    assert found["error"] == (
        f"{tmp_path}/made.py:{line_of(text, fills)}: the model writes to a lookup table while it is"
        " called"
    )


JOINED = """
class Join(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(50, 4)
    def call(self, one):
        return tf.concat([tf.reduce_mean(self.words(one["ids"]), 1), one["size"]], 1)
def custom_model(): return keras.Sequential([Join(), layers.Dense(1)])
def feed(dataset, mode, metadata):
    def parse(record):
        ids = tf.strings.to_number(record[:2], tf.int64)
        features = {"ids": ids, "size": tf.strings.to_number(record[:1])}
        return features if mode == "prediction" else (features, tf.strings.to_number(record[2:]))
    return dataset.map(parse)
"""


@pytest.mark.parametrize("threshold_bytes", ANY_SIZE)
@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_a_sequential_model_whose_first_layer_takes_a_dict_is_built_by_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold_bytes: int, action: Action
) -> None:
    found = checked(tmp_path, monkeypatch, HEAD + JOINED, threshold_bytes, action)
    assert found["ok"], found


NUMPY = "tf.numpy_function(lambda one: one, [{}], tf.{})"
UNKNOWN_RANK = {
    "loss": (
        "def loss(labels, predictions):\n"
        f"    labels = {NUMPY.format('labels', 'float32')}\n"
        "    return keras.losses.binary_crossentropy(labels, predictions)\n",
        "return keras.losses",
    ),
    "model": (
        "def custom_model():\n"
        '    ids = keras.Input((2,), dtype="int64")\n'
        "    same = layers.Lambda(\n"
        f"        lambda ids: {NUMPY.format('ids', 'int64')}, output_shape=(2,), dtype='int64'\n"
        "    )\n"
        "    rows = layers.Embedding(50, 4)(same(ids))\n"
        "    return keras.Model(ids, layers.Dense(1)(layers.Flatten()(rows)))\n",
        "def custom_model",
    ),
}


@pytest.mark.parametrize("where", UNKNOWN_RANK)
def test_a_tensor_of_unknown_rank_names_a_line_of_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    text, place = UNKNOWN_RANK[where]
    found = checked(tmp_path, monkeypatch, HEAD + text)
    assert found["error"].startswith(f"{tmp_path}/made.py:{line_of(HEAD + text, place)}: ")
    assert "set_shape or tf.ensure_shape" in found["hint"]


RAGGED = {
    "mean": "tf.reduce_mean(self.words(ids), 1)",
    "lengths": "tf.reduce_sum(self.words(ids), 1) / tf.cast(ids.row_lengths()[:, None], 'float32')",
    "segments": "tf.math.segment_mean(self.words(ids.flat_values), ids.value_rowids())",
}
SPLITS = """
def feed_batch(records, mode, metadata):
    ids = tf.strings.to_number(tf.strings.split(records[:, 0], "|"), tf.int64)
    return ids if mode == "prediction" else (ids, tf.strings.to_number(records[:, 2:]))
"""


@pytest.mark.parametrize(
    ("mean", "threshold_bytes"),
    [("mean", 0), ("mean", 1 << 30), ("lengths", 0), ("segments", 1 << 30)],
)
def test_ragged_ids_stay_ragged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean: str, threshold_bytes: int
) -> None:
    """Beside longer rows, a row has the prediction that it has alone: nothing pads it."""
    text = HEAD + SPLITS + SUBCLASS.replace("ENCODE", "assert isinstance(ids, tf.RaggedTensor)")
    text = text.replace("TABLE", "None").replace(RAGGED["mean"], RAGGED[mean])
    assert checked(tmp_path, monkeypatch, text, threshold_bytes)["ok"]
    module = load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))
    rows = [[1, 2, 3], [4], [5, 6]]
    ids = tf.ragged.constant(rows, dtype=tf.int64)
    ps_model = PsModel.build(module, {}, threshold_bytes=threshold_bytes, seed=2, features=ids)
    run = DryRun(module, ps_model, CompiledStep(ps_model, module))
    alone = [run.predict(tf.ragged.constant([row], dtype=tf.int64)) for row in rows]
    np.testing.assert_allclose(run.predict(ids), np.concatenate(alone), rtol=1e-5)


def predicting(outputs: str) -> str:
    return f"""
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.words, self.out = layers.Embedding(50, 4), layers.Dense(1)
    def call(self, ids, training=False):
        y = self.out(tf.reduce_mean(self.words(ids), 1))
        return {outputs}
def custom_model(): return Model()
"""


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ('{1: y, "1": y}', "a dict with keys of several types: 1, '1'"),
        ('[{"a": {1: y, "1": y}}]', "a dict with keys of several types: 1, '1'"),
        ('{"a/b": y, "a": {"b": y}}', "two outputs named 'a/b'"),
        ('{"attempt": y}', "an output named 'attempt'"),
        ("y[:1]", "the output 'predictions' has 1 prediction for 3 examples"),
        ("tf.reduce_mean(y)", "'predictions' has no axis of examples"),
    ],
)
def test_outputs_that_no_file_of_predictions_can_hold_are_refused_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: str, problem: str
) -> None:
    text = HEAD + predicting(outputs)
    found = checked(tmp_path, monkeypatch, text, action=Action.PREDICT)
    where = f"{tmp_path}/made.py:{line_of(text, 'def custom_model')}: "
    assert found["error"].startswith(where) and problem in found["error"]


def test_a_processor_may_get_fewer_predictions_than_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = """
class PredictionOutputsProcessor:
    def process(self, predictions, worker_id): pass
"""
    found = checked(
        tmp_path, monkeypatch, HEAD + predicting("y[:1]") + processor, 0, Action.PREDICT
    )
    assert found["ok"], found


@pytest.mark.parametrize("action", [Action.TRAIN, Action.PREDICT])
def test_two_schedules_of_the_learning_rate_are_refused_only_where_a_job_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    schedule = "keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)"
    text = HEAD.replace("SGD(0.1)", f"SGD({schedule})") + (
        "from elasticdl.model.callbacks import LearningRateScheduler\n"
        "def callbacks(): return [LearningRateScheduler(lambda version: 0.5)]\n"
    )
    found = checked(tmp_path, monkeypatch, text, action=action)
    refused = action is Action.TRAIN
    assert found["ok"] is not refused, found
    where = f"{tmp_path}/made.py:{line_of(text, 'def callbacks')}: "
    assert not refused or found["error"].startswith(f"{where}callbacks has a LearningRateScheduler")
