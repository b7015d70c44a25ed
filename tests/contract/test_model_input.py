"""Windows of records become batches through the user's feed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.base import Metadata
from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule, load_module
from elasticdl.shard import Task

pytestmark = pytest.mark.contract

REST = """
import keras
import tensorflow as tf
def custom_model(): return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
def loss(labels, predictions): return predictions - labels
def optimizer(): return keras.optimizers.SGD(0.1)
"""


def module_with(tmp_path: Path, feed: str) -> ModelModule:
    (tmp_path / "made.py").write_text(REST + feed)
    return load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))


def batches(
    windows: Iterable[Any], module: ModelModule, task: Task, metadata: Metadata
) -> Iterator[tuple[Any, Any, int]]:
    """(features, labels, index of the window) of each window of which feed kept something."""
    feeder = Feeder(module, task, metadata)
    for index, window in enumerate(windows):
        made = feeder(window)
        if made is not None:
            yield (*made, index)


def csv(*rows: tuple[str, ...]) -> np.ndarray:
    return np.array([[cell.encode() for cell in row] for row in rows], dtype=object)


PARSE = """
def feed(dataset, mode, metadata):
    label = metadata.column_names.index("y")
    def parse(record):
        x = tf.strings.to_number(record[0])
        if x > 100:
            x = x - 100
        if mode == "prediction":
            return {"x": x}
        return {"x": x}, tf.strings.to_number(record[label], tf.int32)
    return dataset.map(parse)
"""


def test_each_window_becomes_one_batch_of_its_own_records(tmp_path: Path) -> None:
    module = module_with(tmp_path, PARSE)
    windows = [csv(("1", "0"), ("102", "1")), csv(("3", "1"))]
    made = list(batches(windows, module, Task.TRAINING, Metadata(("x", "y"))))
    assert [
        (features["x"].numpy().tolist(), labels.numpy().tolist(), index)
        for features, labels, index in made
    ] == [([1.0, 2.0], [0, 1], 0), ([3.0], [1], 1)]


def test_prediction_has_no_labels(tmp_path: Path) -> None:
    module = module_with(tmp_path, PARSE)
    ((features, labels, _),) = batches(
        [csv(("7", "0"))], module, Task.PREDICTION, Metadata(("x", "y"))
    )
    assert features["x"].numpy().tolist() == [7.0] and labels is None


def test_a_window_that_feed_filters_out_whole_keeps_its_index(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
def feed(dataset, mode, metadata):
    return dataset.filter(lambda x: x > 0).map(lambda x: (x, x))
""",
    )
    windows = [np.array([1.0, -1.0]), np.array([-1.0]), np.array([2.0])]
    assert [
        (f.numpy().tolist(), i) for f, _, i in batches(windows, module, Task.TRAINING, Metadata())
    ] == [([1.0], 0), ([2.0], 2)]


def test_shuffling_in_feed_stays_within_the_window(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
def feed(dataset, mode, metadata):
    return dataset.shuffle(1000).repeat(2).map(lambda x: (x, x))
""",
    )
    windows = [np.arange(10) + 10 * k for k in range(3)]
    for features, _, index in batches(windows, module, Task.TRAINING, Metadata()):
        assert sorted(features.numpy().tolist()) == sorted(
            2 * list(range(10 * index, 10 * index + 10))
        )


def test_elements_of_unequal_length_are_padded(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
def feed(dataset, mode, metadata):
    return dataset.map(lambda r: (tf.strings.to_number(tf.strings.split(r), tf.int64), 1))
""",
    )
    window = np.array([b"1 2 3", b"4"], dtype=object)
    ((features, _, _),) = batches([window], module, Task.TRAINING, Metadata())
    assert features.numpy().tolist() == [[1, 2, 3], [4, 0, 0]]


def test_feed_batch_gets_columns_of_the_whole_window(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
def feed_batch(records, mode, metadata):
    return {"x": records["x"] * 2.0}, records["y"]
""",
    )
    window = {"x": np.array([1.0, 2.0], np.float32), "y": np.array([0, 1])}
    ((features, labels, _),) = batches([window], module, Task.EVALUATION, Metadata())
    assert features["x"].numpy().tolist() == [2.0, 4.0] and labels.numpy().tolist() == [0, 1]


def test_a_feed_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        """
def feed(dataset, mode, metadata):
    def parse(record):
        return tf.reshape(record, [2, 3, undefined_name]), 1
    return dataset.map(parse)
""",
    )
    with pytest.raises(UserError, match=r"made\.py:10: feed raised .*undefined_name") as caught:
        list(batches([np.array([1.0])], module, Task.TRAINING, Metadata()))
    assert "site-packages" not in caught.value.hint


def test_values_that_cannot_be_parsed_are_the_users_error(tmp_path: Path) -> None:
    module = module_with(tmp_path, PARSE)
    with pytest.raises(UserError, match="abc"):
        list(batches([csv(("abc", "0"))], module, Task.TRAINING, Metadata(("x", "y"))))


def test_a_feed_without_labels_is_refused_in_training(tmp_path: Path) -> None:
    module = module_with(tmp_path, "def feed(dataset, mode, metadata):\n    return dataset\n")
    with pytest.raises(
        UserError, match=r"made\.py:7: feed returned .* expected \(features, labels\)"
    ):
        list(batches([np.array([1.0])], module, Task.TRAINING, Metadata()))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("None", r"made\.py:7: feed returned None, expected a tf.data.Dataset"),
        (
            "dataset.map(lambda x: (x, x)).repeat()",
            r"made\.py:7: feed returned an infinite dataset",
        ),
    ],
)
def test_a_feed_that_returns_no_dataset_or_one_without_an_end_is_refused(
    tmp_path: Path, made: str, words: str
) -> None:
    module = module_with(tmp_path, f"def feed(dataset, mode, metadata):\n    return {made}\n")
    with pytest.raises(UserError, match=rf"^/\S+/{words}$"):
        list(batches([np.array([1.0])], module, Task.TRAINING, Metadata()))


def test_random_numbers_of_feed_differ_by_window_and_raise_no_warning(tmp_path: Path) -> None:
    """The builder of a model seeds TensorFlow; then it warns of every random map."""
    keras.utils.set_random_seed(5)
    module = module_with(
        tmp_path,
        """
def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (record["x"] + tf.random.uniform(()), record["x"]))
""",
    )
    feeder = Feeder(module, Task.TRAINING, Metadata())
    made = [feeder({"x": np.zeros(4, np.float32)}) for _ in range(2)]
    drawn = [number for batch in made if batch is not None for number in batch[0].numpy().tolist()]
    assert len(set(drawn)) == 8


def test_windows_of_other_types_get_a_function_of_their_own_and_others_share_one(
    tmp_path: Path,
) -> None:
    module = module_with(
        tmp_path,
        """
traced = []
def feed_batch(records, mode, metadata):
    traced.append(records["x"].dtype.name)
    return {"x": records["x"], "same": records["x"], "constant": tf.constant(1)}, records["y"]
""",
    )
    assert module.feed_batch is not None
    traced = module.feed_batch.__globals__["traced"]
    feeder, labels = Feeder(module, Task.TRAINING, Metadata()), np.array([5, 6])
    columns: list[tuple[Any, str]] = [
        (np.array([1.0, 2.0]), "float64"),
        (np.array([3.0, 4.0]), "float64"),
        (np.array([1, 2], np.int64), "int64"),
        (np.array([b"a", b"b"]), "string"),
        (np.array([b"longer", b"b"]), "string"),
        (np.array([b"object", b"b"], dtype=object), "string"),
        # NumPy describes both of these as "<V1".
        (np.array([1, 2], tf.dtypes.experimental.float8_e4m3fn.as_numpy_dtype), "float8_e4m3fn"),
        (np.array([1, 2], tf.dtypes.experimental.int4.as_numpy_dtype), "int4"),
    ]
    for column, dtype in columns:
        made = feeder({"x": column, "y": labels})
        assert made is not None
        features, expected = made
        assert features["x"].dtype.name == features["same"].dtype.name == dtype
        assert features["x"].numpy().tolist() == column.tolist()
        assert int(features["constant"]) == 1
        assert expected.numpy().tolist() == [5, 6]
    assert traced == ["float64", "int64", "string", "float8_e4m3fn", "int4"]
