"""An embedding layer with an optional vocabulary size and a choice of where its rows live."""

from __future__ import annotations

from typing import Any, final

import keras

from elasticdl.model.combining import COMBINERS, Bags
from elasticdl.model.embedding_hooks import _CHOICE, Tensor


@final
class Embedding(keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """`keras.layers.Embedding` with an optional `input_dim` and a choice of where its rows live.

    Without `input_dim` any int64 is an id, and the rows live on the parameter servers. With it,
    `served` selects: True for the servers, False for a dense matrix, None for a decision by
    `--embedding-threshold-bytes`.

    With a `combiner` (sum, mean or sqrtn) the layer takes several ids per example, [batch, ids],
    sparse, ragged or dense, and returns one vector for each, [batch, output_dim]. `weights` in a
    call have the form of the ids. The result is that of `tf.nn.embedding_lookup_sparse`; an example
    without ids gets zeros. Sparse ids are never padded.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        *,
        served: bool | None = None,
        combiner: str | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        if input_dim is None and served is False:
            raise ValueError(
                "an Embedding without input_dim cannot have served=False: its size has no bound;"
                " set input_dim, or leave served out"
            )
        if combiner is not None and combiner not in COMBINERS:
            raise ValueError(f"combiner is {combiner!r}, expected one of {', '.join(COMBINERS)}")
        if combiner is not None and options.get("mask_zero"):
            raise ValueError("an Embedding with a combiner has no mask: remove mask_zero")
        # Before Keras's own __init__: it builds the layer at once if it receives weights.
        object.__setattr__(self, "unbounded", input_dim is None)
        object.__setattr__(self, _CHOICE, True if input_dim is None else served)
        super().__init__(1 if input_dim is None else input_dim, output_dim, **options)
        self.combiner = combiner

    def call(self, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """Embeddings of the ids; combined per example if the layer has a combiner.

        Raises ValueError for weights without a combiner, and for ids of other ranks than 2.
        """
        if self.combiner is None:
            if weights is not None:
                raise ValueError("weights of ids need a combiner: Embedding(..., combiner='mean')")
            return super().call(inputs)
        bags = Bags.of(inputs, weights)
        return bags.combined(super().call(bags.ids), self.combiner)

    def compute_output_shape(
        self, inputs_shape: tuple[int | None, ...], weights_shape: object = None
    ) -> tuple[int | None, ...]:
        """[*shape of ids, output_dim], or [batch, output_dim] with a combiner."""
        if self.combiner is not None:
            return (inputs_shape[0], self.output_dim)
        return (*inputs_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Keras's config, with `input_dim`, `served` and `combiner` as passed."""
        config = super().get_config()
        return {
            **config,
            "input_dim": None if self.unbounded else self.input_dim,
            "served": getattr(self, _CHOICE),
            "combiner": self.combiner,
        }
