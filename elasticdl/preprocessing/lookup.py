"""Layers of the original ElasticDL that Keras has too, with other arguments or other ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import keras
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.preprocessing.values import OfValues

_registered: Any = keras.saving.register_keras_serializable("elasticdl")


@_registered
@final
class Hashing(keras.layers.Hashing):  # type: ignore[misc]
    """Keras' `Hashing`, which a functional model may call with a sparse tensor."""

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:  # noqa: ANN401
        """As in Keras, but ids of a sparse tensor are sparse."""
        spec = super().compute_output_spec(inputs)
        sparse = self.output_mode == "int" and inputs.sparse
        return keras.KerasTensor(spec.shape, spec.dtype, sparse=sparse)


@_registered
@final
class IndexLookup(OfValues):
    """Strings to their places in `vocabulary`; all others to the `num_oov_tokens` ids after it.

    `vocabulary` may be the path of a text file with a word on each line. Blank lines, and white
    space around a word, do not count. Keras' `StringLookup` has the others first.
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str,
        num_oov_tokens: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(**options)
        words = _words(vocabulary) if isinstance(vocabulary, str) else [*vocabulary]
        if len(set(words)) != len(words):
            twice = sorted({word for word in words if words.count(word) > 1})
            raise ValueError(f"the vocabulary has {twice[0]!r} more than once")
        self.vocabulary = words
        self.num_oov_tokens = num_oov_tokens
        places = tf.range(len(words), dtype=tf.int64)
        # Made here and not in call(): a step would make a new table each time.
        self.table = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(words, tf.string), places),
            num_oov_tokens,
        )

    def vocab_size(self) -> int:
        """The number of ids."""
        return len(self.vocabulary) + self.num_oov_tokens

    def get_config(self) -> dict[str, Any]:
        own = {"vocabulary": [*self.vocabulary], "num_oov_tokens": self.num_oov_tokens}
        return {**super().get_config(), **own}

    def _made(self, values: Tensor) -> Tensor:
        return self.table.lookup(values)


@_registered
@final
class Discretization(OfValues):
    """Numbers to the place of their bin; `bins` are the boundaries, each of which begins a bin."""

    def __init__(self, bins: Sequence[float], **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        # Otherwise Keras casts float64 to float32.
        self.autocast = False
        self.bins = [*bins]

    def num_bins(self) -> int:
        """One more than there are boundaries."""
        return len(self.bins) + 1

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bins": [*self.bins]}

    def _made(self, values: Tensor) -> Tensor:
        return buckets(values, self.bins)


@_registered
@final
class Normalizer(OfValues):
    """(x - `subtractor`) / `divisor`, as float32. Raises ValueError for a divisor of 0."""

    made_dtype = "float32"

    def __init__(self, subtractor: float, divisor: float, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        if divisor == 0:
            raise ValueError("the divisor of a Normalizer is 0")
        self.autocast = False
        self.subtractor, self.divisor = subtractor, divisor

    def get_config(self) -> dict[str, Any]:
        own = {"subtractor": self.subtractor, "divisor": self.divisor}
        return {**super().get_config(), **own}

    def _made(self, values: Tensor) -> Tensor:
        return (tf.cast(values, tf.float32) - self.subtractor) / self.divisor


def buckets(values: Tensor, boundaries: Sequence[float]) -> Tensor:
    """int64: how many boundaries are not above each value."""
    if values.dtype not in (tf.float32, tf.float64, tf.int32, tf.int64):
        values = tf.cast(values, tf.float32)
    return tf.cast(
        tf.raw_ops.Bucketize(input=values, boundaries=[*map(float, boundaries)]), tf.int64
    )


def _words(path: str) -> list[str]:
    # Not splitlines: that splits at characters such as U+2028 too, which a word may have.
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [word for line in lines if (word := line.strip())]
