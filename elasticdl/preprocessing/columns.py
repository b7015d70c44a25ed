"""Feature columns: what one feature of a model's inputs becomes. `feature_column` makes them.

Ids and values are those of `tf.feature_column`, for which Keras 3 has no layer: "" and -1 in a
dense tensor are no value, and an example may have several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias, final

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.layers import Embedding
from elasticdl.preprocessing.collecting import without
from elasticdl.preprocessing.lookup import IndexLookup, buckets
from elasticdl.preprocessing.values import map_values

Features: TypeAlias = Mapping[str, Tensor]
"""Dense, sparse or ragged tensors by name, [batch] or [batch, any]."""

Layers: TypeAlias = Mapping["Column", Any]
"""The Keras layers of columns that have one: tables and weights are saved with a model."""

_registered: Any = keras.saving.register_keras_serializable("elasticdl")
"""Keras has no types."""


class Column:
    """A value of plain fields, which Keras saves with a model."""

    @property
    def name(self) -> str:
        """Columns of a layer are concatenated in the order of their names."""
        raise NotImplementedError

    def layers(self) -> dict[Column, Any]:
        """New Keras layers for this column, and for those that it is made of."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """The fields, for Keras."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {
            name: [*map(keras.saving.serialize_keras_object, value)]
            if isinstance(value, tuple)
            else keras.saving.serialize_keras_object(value)
            for name, value in values.items()
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The column of `get_config`."""
        return cls(
            **{
                name: tuple(map(keras.saving.deserialize_keras_object, value))
                if isinstance(value, list)
                else keras.saving.deserialize_keras_object(value)
                for name, value in config.items()
            }
        )


def layers_of(columns: Iterable[Column]) -> dict[Column, Any]:
    """New Keras layers for these columns, and for those that they are made of."""
    return {owner: layer for column in columns for owner, layer in column.layers().items()}


@dataclass(frozen=True, slots=True)
class FeatureColumn(Column):
    """A column of one feature, `key`."""

    key: str

    @property
    def name(self) -> str:
        """The feature's name."""
        return self.key


class DenseColumn(Column):
    """A column that `DenseFeatures` takes."""

    def values(self, features: Features, layers: Layers) -> Tensor:
        """Numbers [batch, values of an example]. Raises ValueError without the feature."""
        raise NotImplementedError


class CategoricalColumn(Column):
    """A column of ids, for `embedding_column` and `indicator_column`."""

    @property
    def num_buckets(self) -> int:
        """Ids are below this number."""
        raise NotImplementedError

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """int64 SparseTensor [batch, any]. Raises ValueError without the feature."""
        raise NotImplementedError


@_registered
@final
@dataclass(frozen=True, slots=True)
class NumericColumn(FeatureColumn, DenseColumn):
    """See `numeric_column`."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Values of an example."""
        return math.prod(self.shape)

    def values(self, features: Features, layers: Layers) -> Tensor:
        """The numbers, of the feature's own type."""
        del layers
        return tf.reshape(_feature(features, self.key), [-1, self.size])


@_registered
@final
@dataclass(frozen=True, slots=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """See `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        """The name of its source."""
        return f"{self.source_column.name}_bucketized"

    @property
    def num_buckets(self) -> int:
        """Each value of an example has its own buckets."""
        return (len(self.boundaries) + 1) * self.source_column.size

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """The bucket of each value."""
        ids = self._buckets(features, layers)
        return tf.sparse.from_dense(tf.ones_like(ids)).with_values(tf.reshape(ids, [-1]))

    def values(self, features: Features, layers: Layers) -> Tensor:
        """A one in the bucket of each value."""
        return tf.reduce_sum(tf.one_hot(self._buckets(features, layers), self.num_buckets), 1)

    def _buckets(self, features: Features, layers: Layers) -> Tensor:
        ids = buckets(self.source_column.values(features, layers), self.boundaries)
        first = tf.range(self.source_column.size, dtype=tf.int64) * (len(self.boundaries) + 1)
        return ids + first


@_registered
@final
@dataclass(frozen=True, slots=True)
class HashedColumn(FeatureColumn, CategoricalColumn):
    """See `categorical_column_with_hash_bucket`."""

    hash_bucket_size: int

    @property
    def num_buckets(self) -> int:
        """The range of the hash."""
        return self.hash_bucket_size

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """The hash of each value."""
        del layers

        def hashed(values: Tensor) -> Tensor:
            return tf.strings.to_hash_bucket_fast(_text(values), self.hash_bucket_size)

        return map_values(hashed, _sparse(features, self.key))


@_registered
@final
@dataclass(frozen=True, slots=True)
class IdentityColumn(FeatureColumn, CategoricalColumn):
    """See `categorical_column_with_identity`."""

    buckets: int
    default_value: int | None

    @property
    def num_buckets(self) -> int:
        """The number that was given."""
        return self.buckets

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """The values."""
        del layers
        ids = tf.cast(_sparse(features, self.key), tf.int64)
        fits = tf.logical_and(ids.values >= 0, ids.values < self.buckets)
        return _or_default(ids, fits, self.default_value)


@_registered
@final
@dataclass(frozen=True, slots=True)
class VocabularyColumn(FeatureColumn, CategoricalColumn):
    """See `categorical_column_with_vocabulary_list`."""

    vocabulary_list: tuple[str, ...]
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        """The words, and then all others."""
        return len(self.vocabulary_list) + self.num_oov_buckets

    def layers(self) -> dict[Column, Any]:
        """Its table."""
        return {self: IndexLookup(self.vocabulary_list, max(1, self.num_oov_buckets))}

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """The place of each word."""
        ids = layers[self](map_values(_text, _sparse(features, self.key)))
        if self.num_oov_buckets:
            return ids
        default = self.default_value if self.default_value >= 0 else None
        return _or_default(ids, ids.values < self.num_buckets, default)


@_registered
@final
@dataclass(frozen=True, slots=True)
class ConcatenatedColumn(CategoricalColumn):
    """See `concatenated_categorical_column`."""

    categorical_columns: tuple[CategoricalColumn, ...]

    @property
    def name(self) -> str:
        """The joined names of all its columns."""
        return "_C_".join(sorted(column.name for column in self.categorical_columns))

    @property
    def num_buckets(self) -> int:
        """The sum over all its columns."""
        return sum(column.num_buckets for column in self.categorical_columns)

    def layers(self) -> dict[Column, Any]:
        """The layers of all its columns."""
        return layers_of(self.categorical_columns)

    def ids(self, features: Features, layers: Layers) -> Tensor:
        """The ids of all columns, moved so that they do not clash."""
        parts, first = [], 0
        for column in self.categorical_columns:
            ids = column.ids(features, layers)
            parts.append(ids.with_values(ids.values + tf.constant(first, tf.int64)))
            first += column.num_buckets
        return tf.sparse.concat(1, parts)


@_registered
@final
@dataclass(frozen=True, slots=True)
class EmbeddingColumn(DenseColumn):
    """See `embedding_column`."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    trainable: bool

    @property
    def name(self) -> str:
        """The name of its column."""
        return f"{self.categorical_column.name}_embedding"

    def layers(self) -> dict[Column, Any]:
        """Its embedding, and the tables of its column."""
        embedding = Embedding(
            self.dimension,
            self.categorical_column.num_buckets,
            combiner=self.combiner,
            embeddings_initializer=self.initializer,
            trainable=self.trainable,
            name=re.sub(r"[^\w.-]", "_", self.name),
        )
        return {**self.categorical_column.layers(), self: embedding}

    def values(self, features: Features, layers: Layers) -> Tensor:
        """The embeddings of an example's ids, combined."""
        return layers[self](self.categorical_column.ids(features, layers))


@_registered
@final
@dataclass(frozen=True, slots=True)
class IndicatorColumn(DenseColumn):
    """See `indicator_column`."""

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        """The name of its column."""
        return f"{self.categorical_column.name}_indicator"

    def layers(self) -> dict[Column, Any]:
        """The tables of its column."""
        return self.categorical_column.layers()

    def values(self, features: Features, layers: Layers) -> Tensor:
        """How often an example has each id."""
        ids = self.categorical_column.ids(features, layers)
        ones = tf.one_hot(ids.values, self.categorical_column.num_buckets)
        return tf.math.unsorted_segment_sum(ones, ids.indices[:, 0], ids.dense_shape[0])


def _feature(features: Features, key: str) -> Tensor:
    if key not in features:
        raise ValueError(f"no feature {key!r}; features: {', '.join(map(str, sorted(features)))}")
    return features[key]


def _sparse(features: Features, key: str) -> Tensor:
    """A SparseTensor of rank 2, without what stands for no value."""
    values = _feature(features, key)
    if isinstance(values, tf.RaggedTensor):
        return values.to_sparse()
    if isinstance(values, tf.SparseTensor):
        return values
    values = tf.convert_to_tensor(values)
    return without(None, values if values.shape.rank != 1 else values[:, None])


def _or_default(ids: Tensor, fits: Tensor, default: int | None) -> Tensor:
    """Sparse ids where they fit; elsewhere the default, or no id."""
    if default is None:
        return tf.sparse.retain(ids, fits)
    return ids.with_values(tf.where(fits, ids.values, tf.constant(default, tf.int64)))


def _text(values: Tensor) -> Tensor:
    return values if values.dtype == tf.string else tf.strings.as_string(values)
