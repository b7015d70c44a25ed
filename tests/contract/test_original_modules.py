"""What modules of the original ElasticDL rely on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import ModelSection
from elasticdl.model.module import load_module
from elasticdl.model.preflight_process import check

pytestmark = pytest.mark.contract

HEADER = """
import keras
import tensorflow as tf
from keras import layers
def loss(labels, predictions): return keras.losses.binary_crossentropy(labels, predictions)
def optimizer(): return keras.optimizers.SGD(0.1)
"""
DENSE = """
def custom_model():
    x = keras.Input((2,))
    return keras.Model(x, layers.Dense(1, activation="sigmoid")(x))
"""
FEED = """
def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.strings.to_number(record)
        return values[:2] if mode == "prediction" else (values[:2], values[2:])
    return dataset.map(parse)
"""


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    """A folder of installed packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    sys.path.append(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "forest_ctr"]:
        del sys.modules[name]


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def checked(zoo: Path, monkeypatch: pytest.MonkeyPatch, text: str, **how: Any) -> dict[str, Any]:
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(zoo / "cache"))
    written(zoo, {"made.py": text, "data.csv": "a,b,y\n1,2,0\n3,4,1\n5,6,0\n"})
    action, data = how.pop("action", Action.TRAIN), str(zoo / "data.csv")
    processes = how.pop("processes", False)
    flags = {**how, "model_zoo": str(zoo), "model_def": "made", "checkpoint_dir_for_init": "x"}
    flags |= {f"{kind}_data": data for kind in ("training", "validation", "prediction")}
    return check(JobSpec.from_flags(action, flags), processes=processes)


def line(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_modules_import_each_other_below_the_name_of_the_zoo(tmp_path: Path) -> None:
    zoo = written(
        tmp_path / "forest_zoo",
        {
            "cifar10/data.py": "SIZE = 7\n",
            "cifar10/model.py": HEADER
            + FEED
            + "from forest_zoo.cifar10.data import SIZE\ndef custom_model(): return SIZE\n",
        },
    )
    module = load_module(ModelSection(model_zoo=str(zoo), model_def="cifar10.model"))
    assert module.custom_model() == 7
    assert str(tmp_path) not in sys.path


def test_a_second_zoo_of_the_same_name_has_its_own_modules(tmp_path: Path) -> None:
    sizes = []
    for size in (7, 8):
        text = "from forest_zoo.data import SIZE\ndef custom_model(): return SIZE\n"
        zoo = written(
            tmp_path / str(size) / "forest_zoo",
            {"data.py": f"SIZE = {size}\n", "model.py": HEADER + FEED + text},
        )
        module = load_module(ModelSection(model_zoo=str(zoo), model_def="model"))
        sizes.append(module.custom_model())
    assert sizes == [7, 8]


def test_a_module_of_an_earlier_zoo_does_not_hide_a_folder(tmp_path: Path) -> None:
    earlier = written(
        tmp_path / "trees", {"forest_folder.py": HEADER + FEED + "custom_model = len\n"}
    )
    load_module(ModelSection(model_zoo=str(earlier), model_def="forest_folder"))
    text = HEADER + FEED + "def custom_model(): return 7\n"
    zoo = written(tmp_path / "forest_zoo", {"forest_folder/model.py": text})
    module = load_module(ModelSection(model_zoo=str(zoo), model_def="forest_folder.model"))
    assert module.custom_model() == 7


def test_a_module_of_a_folder_whose_import_failed_can_be_mended_and_loaded(tmp_path: Path) -> None:
    """As in a notebook: the folder and its other modules are imported by then."""
    text = "from forest_mended.sizes import SIZE\ndef custom_model(): return SIZE\n"
    files = {
        "forest_mended/sizes.py": "SIZE = 7\n",
        "forest_mended/model.py": f"{text}import no_tree",
    }
    zoo = written(tmp_path / "forest_zoo", files)
    section = ModelSection(model_zoo=str(zoo), model_def="forest_mended.model")
    with pytest.raises(UserError, match="no_tree"):
        load_module(section)
    files = {
        "forest_mended/sizes.py": "SIZE = 18\n",
        "forest_mended/model.py": HEADER + FEED + text,
    }
    written(zoo, files)
    assert load_module(section).custom_model() == 18


def test_a_package_of_an_earlier_zoo_is_not_taken_for_an_installed_one(tmp_path: Path) -> None:
    sizes = []
    for size in (7, 8):
        text = "from forest_data.sizes import SIZE\ndef custom_model(): return SIZE\n"
        files = {
            "forest_data/__init__.py": "",
            "forest_data/sizes.py": f"SIZE = {size}\n",
            "forest_data/model.py": HEADER + FEED + text,
        }
        zoo = written(tmp_path / f"zoo_{size}", files)
        module = load_module(ModelSection(model_zoo=str(zoo), model_def="forest_data.model"))
        sizes.append(module.custom_model())
    assert sizes == [7, 8]


@pytest.mark.parametrize("init", [True, False])
def test_a_folder_of_the_zoo_hides_no_installed_package(
    tmp_path: Path, packages: Path, init: bool
) -> None:
    written(packages, {"forest_ctr/__init__.py": "", "forest_ctr/layers.py": "DIM = 5\n"})
    files = {
        "forest_ctr/model.py": HEADER
        + FEED
        + "from forest_ctr.layers import DIM\ndef custom_model(): return DIM\n"
    }
    if init:
        files["forest_ctr/__init__.py"] = ""
    zoo = written(tmp_path / "forest_zoo", files)
    module = load_module(ModelSection(model_zoo=str(zoo), model_def="forest_ctr.model"))
    assert module.custom_model() == 5


PROCESSOR = """
class PredictionOutputsProcessor:
    def process(self, predictions, worker_id):
        assert type(predictions.numpy()).__name__ == "ndarray" and predictions.shape == (3, 1)
        tf.print(tf.reduce_sum(predictions), float((predictions * 2).sum()), worker_id)
        with open(FILE, "a") as said:
            said.write(f"{worker_id} {len(predictions.numpy())}")
"""


def test_a_processor_takes_predictions_as_arrays_and_as_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of a job does not call it: its predictions would be processed twice."""
    said = tmp_path / "said"
    text = HEADER + DENSE + FEED + PROCESSOR.replace("FILE", repr(str(said)))
    assert checked(tmp_path, monkeypatch, text, action=Action.PREDICT)["ok"]
    assert not said.exists()
    found = checked(tmp_path, monkeypatch, text, action=Action.PREDICT, processes=True)
    assert found["ok"], found
    assert said.read_text() == "-1 3"


def test_a_processor_that_fails_is_found_by_the_check_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEADER + DENSE + FEED + PROCESSOR.replace("(3, 1)", "(4, 1)")
    text = text.replace("FILE", "'unused'")
    found = checked(tmp_path, monkeypatch, text, action=Action.PREDICT, processes=True)
    assert found["error"].startswith(f"{tmp_path}/made.py:{line(text, 'assert type')}: ")
    assert "PredictionOutputsProcessor.process raised AssertionError" in found["error"]


CENSUS = """
import elasticdl.model.tensorflow_functions
from elasticdl.preprocessing import feature_column
def custom_model():
    numbers = [feature_column.numeric_column("a")]
    numbers += [feature_column.bucketized_column(numbers[0], [2, 4])]
    words = feature_column.categorical_column_with_hash_bucket("b", 64)
    columns = [*numbers, feature_column.embedding_column(words, 16)]
    inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), dtype="string", name="b")}
    MODEL
def feed(dataset, mode, metadata):
    def parse(record):
        values = tf.strings.to_number(record)
        features = {"a": values[0], "b": record[1]}
        return features if mode == "prediction" else (features, values[2:])
    return dataset.map(parse)
"""
MODELS = {
    "functional": """x = feature_column.DenseFeatures(columns)(inputs)
    x = tf.concat([x, tf.square(x)], 1)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))""",
    "sequential": """dense = layers.Dense(1, activation="sigmoid")
    return keras.Sequential([feature_column.DenseFeatures(columns), dense])""",
}


@pytest.mark.parametrize("model", MODELS)
def test_embedding_columns_become_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    text = HEADER + CENSUS.replace("MODEL", MODELS[model])
    found = checked(tmp_path, monkeypatch, text, embedding_threshold_bytes=0)
    assert found["ok"], found
    [table] = found["model"]["tables"]
    assert table["dim"] == 16 and "b_embedding" in table["name"]


def test_a_metric_of_unknown_rank_averages_all_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = """
def right(labels, predictions):
    return tf.cast(tf.squeeze(tf.round(predictions)), tf.int32) == tf.cast(labels[:, 0], tf.int32)
def eval_metrics_fn(): return {"share": right}
"""
    found = checked(tmp_path, monkeypatch, HEADER + DENSE + FEED + metric)
    assert found["ok"], found
    assert "share" in found["model"]["metrics"]


def test_a_metric_that_needs_a_rank_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        HEADER
        + DENSE
        + FEED
        + "def right(labels, predictions): return len(tf.squeeze(predictions).shape)\n"
        + "def eval_metrics_fn(): return {'share': right}\n"
    )
    found = checked(tmp_path, monkeypatch, text)
    where = f"{tmp_path}/made.py:{line(text, 'def right')}: metric share raised ValueError"
    assert found["error"].startswith(where)
    assert "give tf.squeeze its axis" in found["hint"]


def test_a_dict_of_one_feature_fits_an_input_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = re.sub(r"return values\[:2\] .*", 'return {"point": values[:2]}, values[2:]', FEED)
    found = checked(tmp_path, monkeypatch, HEADER + DENSE + feed)
    assert found["ok"], found


def test_a_dict_for_inputs_without_names_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = '{"point": values[:1], "other": values[1:2]}'
    feed = re.sub(r"return values\[:2\] .*", f"return {both}, values[2:]", FEED)
    dense = """
def custom_model():
    x = [keras.Input((1,)), keras.Input((1,))]
    return keras.Model(x, layers.Dense(1, activation="sigmoid")(layers.Concatenate()(x)))
"""
    text = HEADER + dense + feed
    found = checked(tmp_path, monkeypatch, text)
    assert found["error"].startswith(f"{tmp_path}/made.py:{line(text, 'keras.Input')}: ")
    assert "'point'" in found["error"] and "keras.Input(..., name='KEY')" in found["hint"]
