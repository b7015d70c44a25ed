"""Translate Keras initializers to the initializers of table rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import keras

from elasticdl.embedding.spec import InitializerKind, InitializerSpec
from elasticdl.errors import UserError

_TRUNCATED_AT_TWO = 0.87962566103423978
"""Standard deviation of a normal distribution truncated at two deviations.

Source: Keras, initializers/random_initializers.py.
"""

_SIMPLE: Mapping[type, Callable[[keras.initializers.Initializer], InitializerSpec]] = {
    keras.initializers.Zeros: lambda _: _constant(0.0),
    keras.initializers.Ones: lambda _: _constant(1.0),
    keras.initializers.RandomUniform: lambda uniform: InitializerSpec(
        kind=InitializerKind.UNIFORM, a=uniform.minval, b=uniform.maxval
    ),
    keras.initializers.RandomNormal: lambda normal: InitializerSpec(
        kind=InitializerKind.NORMAL, a=normal.mean, b=normal.stddev
    ),
    keras.initializers.TruncatedNormal: lambda normal: InitializerSpec(
        kind=InitializerKind.TRUNCATED_NORMAL, a=normal.mean, b=normal.stddev
    ),
}
_SCALING = (
    keras.initializers.VarianceScaling,
    keras.initializers.GlorotUniform,
    keras.initializers.GlorotNormal,
    keras.initializers.HeUniform,
    keras.initializers.HeNormal,
    keras.initializers.LecunUniform,
    keras.initializers.LecunNormal,
)


def initializer_spec(layer: keras.layers.Embedding, vocabulary: int | None) -> InitializerSpec:
    """The initializer of the rows of `layer`.

    The layer's own seed is not used. The table's seed comes from the job's seed and the table's
    name.

    Raises:
        UserError: parameter servers cannot apply the initializer row by row.
    """
    initializer = layer.embeddings_initializer
    simple = _SIMPLE.get(type(initializer))
    if simple is not None:
        return simple(initializer)
    if type(initializer) is keras.initializers.Constant and isinstance(
        initializer.value, (int, float)
    ):
        return _constant(float(initializer.value))
    if type(initializer) in _SCALING:
        return _scaled(layer, initializer, vocabulary)
    name = getattr(initializer, "__name__", type(initializer).__name__)
    raise UserError(
        f"embedding layer {layer.name!r} uses initializer {name}, which parameter servers cannot"
        " apply row by row",
        hint=(
            "use uniform, normal, truncated normal, a constant or variance scaling, or keep the"
            " layer dense (--embedding-threshold-bytes, or elasticdl.model.layers.Embedding(...,"
            " served=False))"
        ),
    )


def _constant(value: float) -> InitializerSpec:
    return InitializerSpec(kind=InitializerKind.CONSTANT, a=value, b=0.0)


def _scaled(
    layer: keras.layers.Embedding,
    initializer: keras.initializers.VarianceScaling,
    vocabulary: int | None,
) -> InitializerSpec:
    """Keras's variance scaling of a matrix [vocabulary, dim]: fan in: vocabulary, fan out: dim."""
    if vocabulary is None and initializer.mode != "fan_out":
        raise UserError(
            f"embedding layer {layer.name!r} uses initializer {type(initializer).__name__}, which"
            " needs the size of the vocabulary",
            hint="set input_dim, or use uniform or normal",
        )
    fans = {
        "fan_in": vocabulary or 0,
        "fan_out": layer.output_dim,
        "fan_avg": ((vocabulary or 0) + layer.output_dim) / 2,
    }
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    match initializer.distribution:
        case "truncated_normal":
            return InitializerSpec(
                kind=InitializerKind.TRUNCATED_NORMAL, a=0.0, b=math.sqrt(scale) / _TRUNCATED_AT_TWO
            )
        case "untruncated_normal":
            return InitializerSpec(kind=InitializerKind.NORMAL, a=0.0, b=math.sqrt(scale))
        case _:
            limit = math.sqrt(3.0 * scale)
            return InitializerSpec(kind=InitializerKind.UNIFORM, a=-limit, b=limit)
