"""Preprocessing layers: values for dense, sparse and ragged tensors, eager and in a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl import preprocessing
from elasticdl.preprocessing import (
    ConcatenateWithOffset,
    Discretization,
    IndexLookup,
    LogRound,
    Normalizer,
    RoundIdentity,
    SparseEmbedding,
    ToNumber,
    ToRagged,
    ToSparse,
)

pytestmark = pytest.mark.core

CASES: list[tuple[Any, list[list[Any]], list[list[Any]]]] = [
    (ToNumber("float32", -1), [["1.5", ""], ["2", "-3"]], [[1.5, -1], [2, -3]]),
    (ToNumber("int64", 7), [["123456789012", ""]], [[123456789012, 7]]),
    (ToNumber("float32", 1e-8), [["", "1"]], [[np.float32(1e-8), 1]]),
    (ToNumber("int64", 0.0), [["", "1"]], [[0, 1]]),
    (RoundIdentity(5), [[1.2, 1.6], [4.9, -1.0]], [[1, 2], [0, 0]]),
    (RoundIdentity(5, 3), [[float("nan"), float("inf"), 4.4]], [[3, 3, 4]]),
    (IndexLookup(["a", "b"]), [["b", "z"], ["a", ""]], [[1, 2], [0, 2]]),
    (Discretization([0.0, 2.0]), [[-1.0, 0.0], [1.9, 2.0]], [[0, 1], [1, 2]]),
    (Discretization([2, 4]), [[1, 2], [3, 9]], [[0, 1], [1, 2]]),
    (Normalizer(2, 4), [[2, 4], [-2, 6]], [[0, 0.5], [-1, 1]]),
    (LogRound(16, base=2), [[1.2, 1.6, 0.2], [3.1, 100.0, 0.0]], [[0, 1, 0], [2, 7, 0]]),
    (LogRound(3), [[2.8, 7.4, 1e9]], [[1, 2, 0]]),
]


@pytest.mark.parametrize(("layer", "given", "wanted"), CASES)
def test_values_of_every_form_of_tensor(
    layer: Any, given: list[list[Any]], wanted: list[list[Any]]
) -> None:
    dense = tf.constant(given)
    sparse = tf.sparse.from_dense(tf.ones(dense.shape)).with_values(tf.reshape(dense, [-1]))
    ragged = tf.RaggedTensor.from_tensor(dense)
    np.testing.assert_array_equal(layer(dense), wanted)
    np.testing.assert_array_equal(layer(sparse).values, np.ravel(wanted))
    np.testing.assert_array_equal(layer(ragged).to_tensor(), wanted)
    inputs = keras.Input((len(given[0]),), dtype=dense.dtype.name)
    copy = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(keras.Model(inputs, copy(inputs))(dense), wanted)


def test_large_ids_stay_exact() -> None:
    assert RoundIdentity(1 << 40)(tf.constant([[16_777_217]], tf.int64)).numpy() == 16_777_217


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint32"])
def test_small_integers_are_compared_with_bounds_that_do_not_fit_them(kind: str) -> None:
    numbers = tf.constant([1, 8, 100], kind)
    np.testing.assert_array_equal(RoundIdentity(1 << 33)(numbers), [1, 8, 100])
    np.testing.assert_array_equal(LogRound(1 << 33, base=2)(numbers), [0, 3, 7])


def test_text_that_is_no_number_is_an_error() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="1x"):
        ToNumber()(tf.constant([["1x"]]))


def test_ids_of_several_features_are_moved_apart() -> None:
    first, second = tf.constant([[1, 2], [0, 1]], tf.int64), tf.constant([[3], [4]], tf.int64)
    layer = ConcatenateWithOffset([0, 10], axis=1)
    wanted = [[1, 2, 13], [0, 1, 14]]
    np.testing.assert_array_equal(layer([first, second]), wanted)
    sparse = [ToSparse()(one) for one in (first, second)]
    np.testing.assert_array_equal(tf.sparse.to_dense(layer(sparse)), wanted)
    ragged = [ToRagged()(one) for one in (first, second)]
    np.testing.assert_array_equal(layer(ragged).to_tensor(), wanted)
    with pytest.raises(ValueError, match="1 offsets for 2 inputs"):
        ConcatenateWithOffset([0])([first, second])


def test_ids_of_several_types_are_moved_apart_as_int64() -> None:
    """Keras' StringLookup gives int64, and its Discretization int32."""
    text, number = keras.Input((1,), dtype="string"), keras.Input((1,))
    ids = [
        keras.layers.StringLookup(vocabulary=["a", "b"])(text),
        keras.layers.Discretization([1.0, 2.0])(number),
    ]
    model = keras.Model([text, number], ConcatenateWithOffset([0, 3], axis=1)(ids))
    out = model([tf.constant([["b"], ["c"]]), tf.constant([[1.5], [0.5]])])
    assert out.dtype == tf.int64
    np.testing.assert_array_equal(out, [[2, 4], [0, 3]])


def test_sparse_ids_of_a_functional_model_are_moved_apart() -> None:
    text, number = keras.Input((1,), dtype="string"), keras.Input((1,))
    ids = [
        preprocessing.Hashing(1)(ToSparse()(text)),
        IndexLookup(["a", "b"])(ToSparse()(text)),
        Discretization([1.0, 2.0])(ToSparse(0)(number)),
    ]
    model = keras.Model([text, number], ConcatenateWithOffset([0, 1, 4], axis=1)(ids))
    out = model([tf.constant([["b"], [""]]), tf.constant([[1.5], [0.5]])])
    np.testing.assert_array_equal(tf.sparse.to_dense(out, -1), [[0, 2, 5], [-1, -1, 4]])


def test_a_lookup_reads_a_file_and_refuses_a_word_that_is_there_twice(tmp_path: Path) -> None:
    file = tmp_path / "words"
    file.write_text("Oslo\n\nRome \r\nNew\u2028York\n\n", encoding="utf-8")
    lookup = IndexLookup(str(file), num_oov_tokens=3)
    assert lookup.vocabulary == ["Oslo", "Rome", "New\u2028York"]
    assert lookup(tf.constant(["Rome"])).numpy() == [1] and lookup.vocab_size() == 6
    assert 3 <= int(lookup(tf.constant(["Bonn"]))[0]) < 6
    with pytest.raises(ValueError, match="the vocabulary has 'a' more than once"):
        IndexLookup(["a", "b", "a"])


def test_ignored_values_are_left_out() -> None:
    numbers, texts = tf.constant([[1, -1], [-1, -1], [3, 4]]), tf.constant([["a,b"], [""], ["c"]])
    assert ToSparse()(numbers).indices.numpy().tolist() == [[0, 0], [2, 0], [2, 1]]
    assert ToSparse(4)(numbers).values.numpy().tolist() == [1, -1, -1, -1, 3]
    assert ToRagged()(numbers).to_list() == [[1], [], [3, 4]]
    assert ToRagged()(texts).to_list() == [[b"a", b"b"], [], [b"c"]]
    assert ToRagged(sep="b")(texts).to_list() == [[b"a,"], [], [b"c"]]


def test_a_model_from_text_to_a_combined_embedding() -> None:
    text = keras.Input((3,), dtype="string")
    ids = preprocessing.Hashing(50)(text)
    more = RoundIdentity(10)(ToNumber("float32", -1)(text))
    both = ToSparse(ignore_value=0)(ConcatenateWithOffset([0, 50], axis=1)([ids, more]))
    model = keras.Model(text, SparseEmbedding(60, 4, "sum", served=False)(both))
    given = tf.constant([["1", "", "8"], ["2", "2", ""]])
    matrix = model.layers[-1].embeddings.numpy()
    first = np.concatenate([preprocessing.Hashing(50)(given), [[51, 50, 58], [52, 52, 50]]], 1)
    wanted = [sum(matrix[int(one)] for one in row if one) for row in first]
    np.testing.assert_allclose(model(given), wanted, rtol=1e-5)
