"""A user's Keras model whose big embedding matrices live elsewhere, by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import keras

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.job import Scalar
from elasticdl.model.module import ModelModule
from elasticdl.model.structure import Structure
from elasticdl.rpc.parameters import Float32s


@final
class ServedModel:
    """The model, built, and the spec of everything that servers hold of it."""

    model: keras.Model
    parameters: ParametersSpec

    @classmethod
    def build(
        cls, module: ModelModule, params: Mapping[str, Scalar], *, threshold_bytes: int, seed: int, features: Structure = None
    ) -> ServedModel:
        """Make the model; embeddings of at least `threshold_bytes` become tables. Same seed, same initial values.

        `features` is one batch (or a structure of `tf.TensorSpec`, batch axis first) and is needed by models that have no
        inputs before they are called, subclassed ones: give the first batch that `elasticdl.model.input` yields.

        Raises:
            UserError: names what cannot be honoured (optimizer, initializer, constraint, ...) and where.
        """
        raise NotImplementedError

    def dense(self) -> Float32s:
        """Current values, float32[trainable_size + additive_size], a copy."""
        raise NotImplementedError

    def set_dense(self, flat: Float32s) -> None:
        """Set the Keras variables from the flat vector. Steps do not need it; callbacks that look at the model do."""
        raise NotImplementedError
