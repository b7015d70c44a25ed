"""Nested inputs and outputs of Keras models, and their type specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

Structure: TypeAlias = Any
"""One tensor, or nested dicts, tuples and lists of tensors."""


def input_specs(features: Structure) -> Structure:
    """Type specs of a batch (tensors, arrays, specs or Keras inputs); the first axis is unknown."""
    return tf.nest.map_structure(_spec, features)


def fits(specs: Structure, features: Structure, flat: Sequence[Any]) -> bool:
    """Whether a batch with the leaves `flat` matches `specs`."""
    try:
        tf.nest.assert_same_structure(specs, features, expand_composites=True)
    except (ValueError, TypeError):
        return False
    leaves = tf.nest.flatten(specs, expand_composites=True)
    return len(leaves) == len(flat) and all(
        spec.dtype == tensor.dtype and spec.shape.is_compatible_with(tensor.shape)
        for spec, tensor in zip(leaves, flat, strict=True)
    )


def relaxed(old: Structure, new: Structure) -> Structure:
    """Specs that both match, if structure and types allow, else the new ones."""
    try:
        return tf.nest.map_structure(
            lambda a, b: a.most_specific_common_supertype([b]) or b, old, new
        )
    except (ValueError, TypeError):
        return new


def _spec(leaf: Structure) -> tf.TypeSpec:
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
            [None, *spec.shape[1:]],
            spec.dtype,
            ragged_rank=spec.ragged_rank,
            row_splits_dtype=spec.row_splits_dtype,
        )
    shape = [None, *spec.shape[1:]] if spec.shape.rank else spec.shape
    return type(spec)(shape, spec.dtype)
