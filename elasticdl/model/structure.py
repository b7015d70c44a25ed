"""What tensors come in: the one word for Keras' nested inputs and outputs."""

from __future__ import annotations

from typing import Any, TypeAlias

import keras
import tensorflow as tf

Structure: TypeAlias = Any
"""One tensor, or dicts, tuples and lists of them, nested."""


def input_specs(features: Structure) -> Structure:
    """Type specs of a batch (tensors, arrays, specs or Keras inputs), its first axis unknown."""
    return tf.nest.map_structure(_spec, features)


def _spec(leaf: Any) -> tf.TypeSpec:  # noqa: ANN401
    if isinstance(leaf, keras.KerasTensor):
        kind: Any = tf.SparseTensorSpec if leaf.sparse else tf.TensorSpec
        return kind([None, *leaf.shape[1:]], leaf.dtype)
    spec = (
        leaf
        if isinstance(leaf, tf.TypeSpec)
        else tf.type_spec_from_value(leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf))
    )
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            [None, *spec.shape[1:]], spec.dtype, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype
        )
    shape = [None, *spec.shape[1:]] if spec.shape.rank else spec.shape
    return type(spec)(shape, spec.dtype)
