"""Exports are plain: they load and predict without this package."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.base import Metadata
from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection
from elasticdl.model import exported_table
from elasticdl.model.export import export
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.row_runs import Pages
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import Pulled
from elasticdl.shard import Task
from tests.reference_initializers import initial_weights

pytestmark = [
    pytest.mark.contract,
    # Keras 3.15 on NumPy 2.4, in `save_weights`: nothing of ours.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

BODY = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
def feed(dataset, mode, metadata): return dataset
def loss(labels, predictions):
    return keras.losses.BinaryCrossentropy(from_logits=True)(labels, predictions)
def optimizer(): return keras.optimizers.Adam(0.1)
"""
BOUNDED = """
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    text = keras.Input((1,), dtype="string", name="text")
    word = layers.StringLookup(vocabulary=["a", "b"])(text)
    both = layers.Concatenate()([
        layers.Flatten()(layers.Embedding(50, 4)(ids)),
        layers.Flatten()(layers.Embedding(3, 2)(word)),
    ])
    out = layers.BatchNormalization()(layers.Dense(2)(both))
    return keras.Model({"ids": ids, "text": text}, {"logit": layers.Dense(1)(out), "other": out})
"""
UNBOUNDED = """
from elasticdl.model.layers import Embedding
def custom_model():
    ids = keras.Input((3,), dtype="int64", name="ids")
    return keras.Model(ids, layers.Dense(1, name="logit")(layers.Flatten()(Embedding(4)(ids))))
"""
COLUMNS = """
import elasticdl.model.tensorflow_functions
from elasticdl.preprocessing import feature_column as fc
def custom_model():
    inputs = {
        "ids": keras.Input((3,), dtype="int64", name="ids"),
        "text": keras.Input((1,), dtype="string", name="text"),
    }
    words = fc.categorical_column_with_vocabulary_list("text", ["a", "b"], num_oov_buckets=1)
    ids = fc.categorical_column_with_hash_bucket("ids", 50)
    columns = [fc.embedding_column(column, 4) for column in (words, ids)]
    out = layers.Dense(1)(fc.DenseFeatures(columns)(inputs))
    return keras.Model(inputs, {"logit": out, "other": tf.sigmoid(out)})
"""
SUBCLASSED = """
class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(50, 4)
        self.out = layers.Dense(1)
    def call(self, inputs):
        return self.out(layers.Flatten()(self.embedding(inputs)))
"""


def module_with(tmp_path: Path, body: str) -> ModelModule:
    (tmp_path / "zoo").mkdir(exist_ok=True)
    (tmp_path / "zoo" / "made.py").write_text(BODY + body)
    return load_module(ModelSection(model_zoo=str(tmp_path / "zoo"), model_def="made"))


def trained(ps_model: PsModel, rows: int) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Made-up parameters: the dense vector and the rows 0, 2, 4, ... of each table."""
    rng, dtype = np.random.default_rng(3), ps_model.parameters.dtype.value
    dense = rng.uniform(0.1, 1, len(ps_model.dense())).astype(dtype)
    tables = []
    for table, layer in zip(ps_model.parameters.tables, ps_model.tables, strict=True):
        ids = np.arange(0, min(rows, layer.input_dim), 2) if rows else np.empty(0, np.int64)
        tables.append((ids, rng.standard_normal((len(ids), table.dim)).astype(dtype)))
    return dense, tables


def paged(tables: list[tuple[np.ndarray, np.ndarray]]) -> list[Pages]:
    """The rows as servers may send them: some at a time, some again with their last values."""
    return [
        [(ids[3:], rows[3:]), (ids[:5], rows[:5] + 1), (ids[:5], rows[:5])] for ids, rows in tables
    ]


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are written in several parts, though they are small."""
    monkeypatch.setattr(exported_table, "_PART_BYTES", 100)


FEATURES = {
    "ids": np.array([[0, 1, 49], [2, 2, -1]]),
    "text": np.array([["a"], ["zzz"]], dtype=object),
}


def expected(
    ps_model: PsModel,
    module: ModelModule,
    dense: np.ndarray,
    tables: list[tuple[np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    step = CompiledStep(ps_model, module)
    features = {name: tf.constant(value) for name, value in FEATURES.items()}
    lookups = step.prepare(features)
    rows = []
    for spec, ids, (made, values) in zip(
        ps_model.parameters.tables, lookups.ids, tables, strict=True
    ):
        initial = initial_weights(
            spec.initializer, spec.seed, ids, spec.dim, ps_model.parameters.dtype
        )
        known = dict(zip(made.tolist(), values, strict=True))
        rows.append(
            np.stack([known.get(one, initial[index]) for index, one in enumerate(ids.tolist())])
        )
    return step.predict(features, lookups, Pulled((1,), dense, tuple(rows)))


def served_and_predicted(folder: Path, body: str = BOUNDED) -> tuple[Any, Any]:
    """What an exported bounded model serves, and what its step predicts."""
    module = module_with(folder, body)
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=1)
    dense, tables = trained(ps_model, 50)
    export(ps_model, dense, paged(tables), folder / "export")
    ours = expected(ps_model, module, dense, tables)
    signature = tf.saved_model.load(str(folder / "export")).signatures["serving_default"]
    theirs = signature(ids=tf.constant(FEATURES["ids"]), text=tf.constant(FEATURES["text"]))
    return theirs, ours


@pytest.mark.parametrize("body", [BOUNDED, COLUMNS], ids=["layers", "columns"])
def test_a_bounded_model_serves_what_the_step_predicts(tmp_path: Path, body: str) -> None:
    theirs, ours = served_and_predicted(tmp_path, body)
    assert set(theirs) == {"logit", "other"}
    np.testing.assert_allclose(theirs["logit"], ours["logit"], rtol=1e-5)


@pytest.fixture
def float64() -> Iterator[None]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.usefixtures("float64")
def test_a_float64_model_is_exported_in_float64(tmp_path: Path) -> None:
    theirs, ours = served_and_predicted(tmp_path)
    assert theirs["logit"].dtype == tf.float64
    # Beyond the seventh digit, so nothing went through float32.
    np.testing.assert_allclose(theirs["logit"], ours["logit"], rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_a_float64_model_of_an_unbounded_vocabulary_is_exported_in_float64(tmp_path: Path) -> None:
    ps_model = PsModel.build(module_with(tmp_path, UNBOUNDED), {}, threshold_bytes=0, seed=1)
    rows = np.full((1, 4), 0.1)
    export(ps_model, np.ones(13), [[(np.array([7]), rows)]], tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    [out] = signature(ids=tf.constant([[7, 7, 8]], tf.int64)).values()
    np.testing.assert_allclose(out, [[1 + 8 * 0.1]], rtol=1e-12)


def test_loading_needs_nothing_of_this_package(tmp_path: Path) -> None:
    """In a fresh interpreter: the SavedModel, and the weights into what the user's unchanged
    function makes. Keras would import scikit-learn, and with it SciPy.
    """
    module = module_with(tmp_path, BOUNDED)
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=1)
    dense, tables = trained(ps_model, 50)
    export(ps_model, dense, paged(tables), tmp_path / "export")
    np.save(tmp_path / "ours.npy", expected(ps_model, module, dense, tables)["logit"])
    script = f"""
import sys
sys.modules["sklearn"] = None
sys.path.insert(0, {str(tmp_path / "zoo")!r})
import numpy as np, tensorflow as tf, made
ids = tf.constant([[0, 1, 49], [2, 2, -1]], tf.int64)
features = {{"ids": ids, "text": tf.constant([["a"], ["zzz"]])}}
ours = np.load({str(tmp_path / "ours.npy")!r})
served = tf.saved_model.load({str(tmp_path / "export")!r}).signatures["serving_default"]
np.testing.assert_allclose(served(**features)["logit"], ours, rtol=1e-5)
model = made.custom_model()
model.load_weights({str(tmp_path / "export" / "model.weights.h5")!r})
np.testing.assert_allclose(model(features)["logit"], ours, rtol=1e-5)
assert not [name for name in sys.modules if name.startswith("elasticdl")]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_unbounded_vocabulary_is_looked_up_in_the_graph(tmp_path: Path) -> None:
    module = module_with(tmp_path, UNBOUNDED)
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=1)
    dense = np.array([1, 0, 0, 0, 10, 0, 0, 0, 100, 0, 0, 0, 5], np.float32)
    ids = np.array([2**60, -7, 12, 5, -9, 13])
    rows = np.arange(1, 25, dtype=np.float32).reshape(6, 4)
    export(ps_model, dense, paged([(ids, rows)]), tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    out = signature(ids=tf.constant([[-7, 2**60, 12], [3, 2**62, 12]], tf.int64))
    np.testing.assert_allclose(next(iter(out.values())), [[5 + 10 + 900 + 5], [900 + 5]])


def test_an_unbounded_vocabulary_without_rows_reads_as_zeros(tmp_path: Path) -> None:
    module = module_with(tmp_path, UNBOUNDED)
    ps_model = PsModel.build(module, {}, threshold_bytes=0, seed=1)
    nothing = (np.empty(0, np.int64), np.empty((0, 4), np.float32))
    export(ps_model, np.full(13, 2, np.float32), [[nothing]], tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    np.testing.assert_allclose(
        next(iter(signature(ids=tf.constant([[1, 2, 3]], tf.int64)).values())), [[2.0]]
    )


@pytest.mark.parametrize("layer", ["layers.Embedding(80_000, 100)", "Embedding(100)"])
def test_an_export_needs_memory_for_a_part_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    body = UNBOUNDED.replace("Embedding(4)", layer)
    ps_model = PsModel.build(module_with(tmp_path, body), {}, threshold_bytes=0, seed=1)
    monkeypatch.setattr(exported_table, "_PART_BYTES", 1 << 20)
    # 32 MB.
    pages = (
        (np.arange(begin, begin + 1000), np.full((1000, 100), begin, np.float32))
        for begin in range(0, 80_000, 1000)
    )
    tracemalloc.start()
    try:
        export(ps_model, np.ones(301, np.float32), [pages], tmp_path / "export")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    [out] = signature(ids=tf.constant([[0, 1999, 79_000]], tf.int64)).values()
    np.testing.assert_allclose(out, [[100 * (1000 + 79_000) + 1]])


def test_a_subclassed_model_is_exported_with_the_inputs_it_was_built_with(tmp_path: Path) -> None:
    module = module_with(tmp_path, SUBCLASSED)
    ps_model = PsModel.build(
        module, {}, threshold_bytes=0, seed=1, features=tf.zeros((2, 3), tf.int64)
    )
    dense, tables = trained(ps_model, 50)
    export(ps_model, dense, paged(tables), tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    matrix = initial_weights(
        ps_model.parameters.tables[0].initializer,
        ps_model.parameters.tables[0].seed,
        np.arange(50),
        4,
    )
    matrix[tables[0][0]] = tables[0][1]
    ids = np.array([[4, 5, 6]])
    np.testing.assert_allclose(
        signature(inputs=tf.constant(ids))["predictions"],
        matrix[ids].reshape(1, 12) @ dense[:12, None] + dense[12],
        rtol=1e-5,
    )


TEXT = """
class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.hashing = layers.Hashing(50, mask_value="")
        self.embedding = layers.Embedding(50, 4)
        self.out = layers.Dense(1)
    def call(self, words):
        return self.out(keras.ops.mean(self.embedding(self.hashing(words)), axis=1))
def feed(dataset, mode, metadata): return dataset.map(tf.strings.split)
"""


def test_a_subclassed_model_of_texts_is_exported_for_texts_of_any_length(tmp_path: Path) -> None:
    module = module_with(tmp_path, TEXT)
    feeder = Feeder(module, Task.PREDICTION, Metadata(()))
    features, _ = feeder(np.array(["a b c", "d"], object)) or (None, None)
    made = PsModel.build(module, {}, threshold_bytes=0, seed=1, features=features)
    ps_model = replace(made, open_inputs=feeder.open_features())
    dense, tables = trained(ps_model, 50)
    export(ps_model, dense, paged(tables), tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    long = signature(inputs=tf.constant([["d", "", "", "", ""], ["a", "b", "c", "d", "e"]]))[
        "predictions"
    ]
    short = signature(inputs=tf.constant([["d"]]))["predictions"]
    assert (long.shape, short.shape) == ((2, 1), (1, 1))
    model = module.custom_model()
    model(features)
    model.load_weights(tmp_path / "export" / "model.weights.h5")
    np.testing.assert_allclose(
        model(tf.constant([["d", "", "", "", ""], ["a", "b", "c", "d", "e"]])), long, rtol=1e-5
    )


ONE_INPUT = """
def custom_model():
    ids = keras.Input((None,), dtype="int64", name="ids")
    return keras.Model(ids, layers.Dense(1)(keras.ops.mean(layers.Embedding(50, 4)(ids), axis=1)))
def feed(dataset, mode, metadata):
    words = dataset.map(tf.strings.split)
    return words.map(lambda each: FEATURES(tf.strings.to_number(each, tf.int32)))
"""


@pytest.mark.parametrize("features", ["tf.identity", "lambda ids: {'words': ids}"])
def test_one_feature_is_served_as_feed_makes_it_by_the_name_of_the_input(
    tmp_path: Path, features: str
) -> None:
    module = module_with(tmp_path, ONE_INPUT.replace("FEATURES", f"({features})"))
    feeder = Feeder(module, Task.PREDICTION, Metadata(()))
    assert feeder(np.array(["1 2 3", "4"], object))
    made = PsModel.build(module, {}, threshold_bytes=0, seed=1)
    ps_model = replace(made, open_inputs=feeder.open_features())
    dense, tables = trained(ps_model, 50)
    export(ps_model, dense, paged(tables), tmp_path / "export")
    signature = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    [ids] = signature.structured_input_signature[1].values()
    assert (ids.name, ids.dtype, ids.shape.as_list()) == ("ids", tf.int32, [None, None])
    for line in ([4], [1, 2, 3, 4, 5]):
        assert signature(ids=tf.constant([line]))["dense"].shape == (1, 1)


def test_an_export_that_the_model_raises_in_is_reported_with_the_users_line(tmp_path: Path) -> None:
    body = SUBCLASSED.replace(
        "        return self.out", "        assert self.may, 'not now'\n        return self.out"
    ).replace("        self.out =", "        self.may = True\n        self.out =")
    module = module_with(tmp_path, body)
    ps_model = PsModel.build(
        module, {}, threshold_bytes=0, seed=1, features=tf.zeros((2, 3), tf.int64)
    )
    dense, tables = trained(ps_model, 50)
    ps_model.model.may = False
    with pytest.raises(
        UserError, match=r"made.py:\d+: exporting the model raised AssertionError: .*not now"
    ):
        export(ps_model, dense, paged(tables), tmp_path / "export", zoo=module.zoo)
    assert not (tmp_path / "export").exists()


def test_an_export_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    module = module_with(tmp_path, SUBCLASSED)
    ps_model = PsModel.build(
        module, {}, threshold_bytes=0, seed=1, features=tf.zeros((2, 3), tf.int64)
    )
    dense, tables = trained(ps_model, 50)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "stale").write_text("")
    export(ps_model, dense, paged(tables), tmp_path / "export")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "zoo"]
    assert not (tmp_path / "export" / "stale").exists()
    assert isinstance(ps_model.model, keras.Model)
