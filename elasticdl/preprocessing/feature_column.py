"""Feature columns, and the layer `DenseFeatures` that Keras 3 lacks.

The functions have the names, ids and defaults of those of `tf.feature_column`, without these
arguments: `default_value`, `dtype` and `normalizer_fn` of `numeric_column`, `dtype` of the
categorical columns, `ckpt_to_load_from`, `tensor_name_in_ckpt`, `max_norm` and
`use_safe_embedding_lookup` of `embedding_column`. An embedding column is an
`elasticdl.model.layers.Embedding`, so a large one lives on the parameter servers.

Functions raise ValueError for a number that is out of its range, and TypeError for a column of
another kind.

Keras' `FeatureSpace` hashes, looks up, buckets and crosses features too. It has no embeddings, does
not leave padding out, and needs a pass over data for vocabularies and means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self, final

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.preprocessing.columns import (
    BucketizedColumn,
    CategoricalColumn,
    ConcatenatedColumn,
    DenseColumn,
    EmbeddingColumn,
    Features,
    HashedColumn,
    IdentityColumn,
    IndicatorColumn,
    NumericColumn,
    VocabularyColumn,
    layers_of,
)

_Layer: Any = keras.layers.Layer
_registered: Any = keras.saving.register_keras_serializable("elasticdl")


def numeric_column(key: str, shape: int | Sequence[int] = (1,)) -> NumericColumn:
    """The numbers of a feature; `shape` is that of one example, or its only dimension."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    for size in sizes:
        _at_least(1, size, "each dimension of shape")
    return NumericColumn(key, sizes)


def bucketized_column(
    source_column: NumericColumn, boundaries: Sequence[float]
) -> BucketizedColumn:
    """The bucket of each number: one-hot, or an id for `embedding_column`.

    Each boundary, ascending, begins a bucket.
    """
    _check(source_column, NumericColumn, "a numeric_column")
    ascending = tuple(float(boundary) for boundary in boundaries)
    if any(high <= low for low, high in pairwise(ascending)):
        raise ValueError(f"the boundaries {[*ascending]} do not ascend")
    return BucketizedColumn(source_column, ascending)


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int) -> HashedColumn:
    """The hash of each string or integer, below `hash_bucket_size`."""
    _at_least(1, hash_bucket_size, "hash_bucket_size")
    return HashedColumn(key, hash_bucket_size)


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityColumn:
    """Integers from 0 to `num_buckets` - 1 as ids.

    Others get `default_value`, by default no id; TensorFlow fails without a default.
    """
    _at_least(1, num_buckets, "num_buckets")
    if default_value is not None:
        _below(num_buckets, default_value)
    return IdentityColumn(key, num_buckets, default_value)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[str | int],
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyColumn:
    """The place of each string or integer in a list.

    Others get `default_value`, by default no id, or one of `num_oov_buckets` ids after the list.
    Only one of the two may be given.
    """
    vocabulary = tuple(str(word) for word in vocabulary_list)
    _at_least(1, len(vocabulary), "the number of words in vocabulary_list")
    _at_least(0, num_oov_buckets, "num_oov_buckets")
    if default_value != -1:
        if num_oov_buckets:
            raise ValueError("default_value and num_oov_buckets exclude each other")
        _below(len(vocabulary), default_value)
    return VocabularyColumn(key, vocabulary, default_value, num_oov_buckets)


def concatenated_categorical_column(
    categorical_columns: Sequence[CategoricalColumn],
) -> ConcatenatedColumn:
    """The ids of several columns, moved so that they do not clash, for one embedding."""
    for column in categorical_columns:
        _check(column, CategoricalColumn, "a categorical column")
    return ConcatenatedColumn(tuple(categorical_columns))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,  # noqa: ANN401 - a Keras initializer
    trainable: bool = True,
) -> EmbeddingColumn:
    """The embeddings of an example's ids, combined by sum, mean or sqrtn; zeros without an id.

    The default initializer is a truncated normal distribution of deviation 1 / sqrt(`dimension`).
    """
    _check(categorical_column, CategoricalColumn, "a categorical column")
    _at_least(1, dimension, "dimension")
    if initializer is None:
        initializer = keras.initializers.TruncatedNormal(stddev=1 / math.sqrt(dimension))
    return EmbeddingColumn(categorical_column, dimension, combiner, initializer, trainable)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """How often an example has each id: one-hot for one id."""
    _check(categorical_column, CategoricalColumn, "a categorical column")
    return IndicatorColumn(categorical_column)


@_registered
@final
class DenseFeatures(_Layer):  # type: ignore[misc]
    """The columns' values, [batch, width], in the order of their names, from a dict of features.

    Numeric features are dense: [batch] or [batch, any]. Categorical ones may be sparse or ragged,
    too. Features that no column has are not used. Raises ValueError for two columns of one name,
    and TypeError for a categorical column: `embedding_column` or `indicator_column` takes it.
    """

    def __init__(
        self,
        feature_columns: DenseColumn | Sequence[DenseColumn],
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**options)
        # Otherwise Keras casts float64 to float32.
        self.autocast = False
        columns = [feature_columns] if isinstance(feature_columns, DenseColumn) else feature_columns
        for column in columns:
            _check(column, DenseColumn, "a column of elasticdl.preprocessing.feature_column")
        self.columns = tuple(sorted(columns, key=lambda column: column.name))
        names = [column.name for column in self.columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two feature columns have the name {twice[0]!r}")
        layers = layers_of(self.columns)
        self.owners, self.parts = tuple(layers), [*layers.values()]

    def build(self, input_shape: object = None) -> None:
        """Create the weights; Keras does before it loads values."""
        del input_shape
        for part in self.parts:
            part.build(None)
        self.built = True

    def call(self, features: Features) -> Tensor:
        """[batch, width], of the layer's type. Raises ValueError for a missing feature."""
        # A dict of layers by column is no attribute: Keras saves only dicts with names.
        layers = dict(zip(self.owners, self.parts, strict=True))
        values = [column.values(features, layers) for column in self.columns]
        return tf.concat([tf.cast(value, self.compute_dtype) for value in values], -1)

    def get_config(self) -> dict[str, Any]:
        """Keras's config."""
        columns = [keras.saving.serialize_keras_object(column) for column in self.columns]
        return {**super().get_config(), "feature_columns": columns}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer of `get_config`."""
        columns = [
            keras.saving.deserialize_keras_object(column) for column in config["feature_columns"]
        ]
        return cls(**{**config, "feature_columns": columns})


def _at_least(least: int, number: int, name: str) -> None:
    if number < least:
        raise ValueError(f"{name} is {number}, expected at least {least}")


def _below(end: int, default_value: int) -> None:
    if not 0 <= default_value < end:
        raise ValueError(f"default_value is {default_value}, expected a number from 0 to {end - 1}")


def _check(column: object, kind: type, expected: str) -> None:
    if not isinstance(column, kind):
        raise TypeError(f"{column!r} is a {type(column).__name__}, expected {expected}")
