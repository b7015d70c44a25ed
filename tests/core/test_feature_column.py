"""Feature columns: the ids and values of `tf.feature_column`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.preprocessing import feature_column as fc
from elasticdl.preprocessing.columns import CategoricalColumn, DenseColumn

pytestmark = [
    pytest.mark.core,
    # Keras 3.15 on NumPy 2.4, in `save`: nothing of ours.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

AGE = fc.numeric_column("age")
PAIR = fc.numeric_column("pair", shape=[2])
CITY = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"])
CITY_OOV = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"], num_oov_buckets=1)
KIND = fc.categorical_column_with_identity("kind", 4)
FEATURES = {
    "age": tf.constant([17.5, 18.0, 70.0]),
    "pair": tf.constant([[1, 2], [3, 4], [5, 6]]),
    "city": tf.constant([["Oslo", "Rome"], ["", "Bonn"], ["Oslo", "Oslo"]]),
    "kind": tf.constant([3, -1, 0]),
}


def made(column: DenseColumn, features: dict[str, Any] = FEATURES) -> Any:
    return fc.DenseFeatures([column])(features).numpy().tolist()


def ids(column: CategoricalColumn) -> list[list[int]]:
    found = column.ids(FEATURES, column.layers())
    dense = tf.sparse.to_dense(found, default_value=-1).numpy().tolist()
    return [[one for one in row if one >= 0] for row in dense]


def test_numbers_as_they_are_and_in_buckets() -> None:
    assert made(AGE) == [[17.5], [18], [70]]
    assert made(PAIR) == [[1, 2], [3, 4], [5, 6]]
    assert fc.numeric_column("pair", shape=2) == PAIR
    assert made(fc.bucketized_column(AGE, [18, 30])) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    precise = {"age": tf.constant([16_777_217.0], tf.float64)}
    layer = fc.DenseFeatures([AGE, fc.bucketized_column(AGE, [16_777_217])], dtype="float64")
    assert layer(precise).numpy().tolist() == [[16_777_217, 0, 1]]
    both = fc.bucketized_column(PAIR, [3])
    assert made(both) == [[1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 0, 1]]
    assert (ids(both), both.num_buckets) == ([[0, 2], [1, 3], [1, 3]], 4)


def test_ids_leave_out_what_is_no_value() -> None:
    assert ids(CITY) == [[1, 0], [], [1, 1]]
    assert ids(CITY_OOV) == [[1, 0], [2], [1, 1]]
    zero = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"], default_value=0)
    assert ids(zero) == [[1, 0], [0], [1, 1]]
    assert ids(KIND) == [[3], [], [0]]
    assert ids(fc.categorical_column_with_identity("kind", 2)) == [[], [], [0]]
    assert ids(fc.categorical_column_with_identity("kind", 2, default_value=1)) == [[1], [], [0]]
    numbers = fc.categorical_column_with_vocabulary_list("kind", [7, 3, 0])
    assert ids(numbers) == [[1], [], [2]]
    hashed = ids(fc.categorical_column_with_hash_bucket("city", 1000))
    words = tf.strings.to_hash_bucket_fast(["Oslo", "Rome", "Bonn"], 1000).numpy().tolist()
    assert hashed == [words[:2], words[2:], [words[0]] * 2]
    assert ids(fc.categorical_column_with_hash_bucket("kind", 9))[1] == []


def test_concatenated_ids_do_not_clash() -> None:
    column = fc.concatenated_categorical_column([KIND, CITY_OOV, fc.bucketized_column(AGE, [18])])
    assert column.num_buckets == 9
    assert ids(column) == [[3, 5, 4, 7], [6, 8], [0, 5, 5, 8]]


@pytest.mark.parametrize("form", ["dense", "sparse", "ragged"])
def test_embeddings_of_several_ids_are_combined(form: str) -> None:
    column = fc.embedding_column(CITY, 2, combiner="sum", initializer=keras.initializers.Ones())
    city = FEATURES["city"]
    if form == "sparse":
        kept = tf.where(city != "")
        city = tf.SparseTensor(kept, tf.gather_nd(city, kept), city.shape)
    elif form == "ragged":
        city = tf.ragged.constant([["Oslo", "Rome"], ["Bonn"], ["Oslo", "Oslo"]])
    assert made(column, {"city": city}) == [[2, 2], [0, 0], [2, 2]]
    assert made(fc.indicator_column(CITY), {"city": city}) == [[1, 1], [0, 0], [0, 2]]


def test_the_default_initializer_is_that_of_tensorflow() -> None:
    initializer = fc.embedding_column(CITY, 16).initializer
    assert isinstance(initializer, keras.initializers.TruncatedNormal)
    assert initializer.stddev == 0.25


def test_a_model_of_columns_is_saved_and_loaded(tmp_path: Path) -> None:
    columns = [
        AGE,
        fc.bucketized_column(AGE, [18, 30]),
        fc.indicator_column(KIND),
        fc.embedding_column(fc.concatenated_categorical_column([CITY_OOV, KIND]), 4),
        fc.embedding_column(CITY, 3),
    ]
    inputs = {
        "age": keras.Input((1,), name="age"),
        "city": keras.Input((2,), dtype="string", name="city"),
        "kind": keras.Input((1,), dtype="int64", name="kind"),
    }
    features = {name: FEATURES[name] for name in inputs}
    out = fc.DenseFeatures(columns)(inputs)
    assert out.shape == (None, 1 + 3 + 4 + 4 + 3)
    model = keras.Model(inputs, keras.layers.Dense(1)(out))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(features), model(features))


def test_wrong_columns_and_features_are_named() -> None:
    with pytest.raises(ValueError, match="two feature columns have the name 'age'"):
        fc.DenseFeatures([AGE, fc.numeric_column("age", [2])])
    with pytest.raises(TypeError, match="is a VocabularyColumn, expected a column of elasticdl"):
        fc.DenseFeatures([CITY])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="is a NumericColumn, expected a categorical column"):
        fc.embedding_column(AGE, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no feature 'age'; features: city"):
        fc.DenseFeatures(AGE)({"city": FEATURES["city"]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fc.categorical_column_with_identity("kind", 2, 2), "is 2, .* from 0 to 1"),
        (lambda: fc.categorical_column_with_identity("kind", 2, -1), "is -1, .* from 0 to 1"),
        (lambda: fc.categorical_column_with_identity("kind", 0), "num_buckets is 0"),
        (lambda: fc.categorical_column_with_hash_bucket("city", 0), "hash_bucket_size is 0"),
        (lambda: fc.categorical_column_with_vocabulary_list("city", ["a"], 0, 1), "exclude"),
        (lambda: fc.categorical_column_with_vocabulary_list("city", ["a"], 1), "from 0 to 0"),
        (lambda: fc.categorical_column_with_vocabulary_list("city", ["a"], -2), "from 0 to 0"),
        (lambda: fc.categorical_column_with_vocabulary_list("city", ["a"], -1, -1), "is -1, .* 0"),
        (lambda: fc.categorical_column_with_vocabulary_list("city", []), "words .* is 0"),
        (lambda: fc.bucketized_column(AGE, [18, 18]), "do not ascend"),
        (lambda: fc.embedding_column(CITY, 0), "dimension is 0"),
        (lambda: fc.numeric_column("age", 0), "shape is 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
