"""An embedding layer with an optional vocabulary size and a choice of where its rows live."""

from __future__ import annotations

from typing import Any, final

import keras

from elasticdl.model.embedding_hooks import _CHOICE


@final
class Embedding(keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """`keras.layers.Embedding` with an optional `input_dim` and a choice of where its rows live.

    Without `input_dim` any int64 is an id, and the rows live on the parameter servers. With it,
    `served` selects: True for the servers, False for a dense matrix, None for a decision by
    `--embedding-threshold-bytes`.
    """

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        *,
        served: bool | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        if input_dim is None and served is False:
            raise ValueError(
                "an Embedding without input_dim cannot have served=False: its size has no bound;"
                " set input_dim, or leave served out"
            )
        # Before Keras's own __init__: it builds the layer at once if it receives weights.
        object.__setattr__(self, "unbounded", input_dim is None)
        object.__setattr__(self, _CHOICE, True if input_dim is None else served)
        super().__init__(1 if input_dim is None else input_dim, output_dim, **options)

    def get_config(self) -> dict[str, Any]:
        """Keras's config, with `input_dim` and `served` as passed."""
        config = super().get_config()
        return {
            **config,
            "input_dim": None if self.unbounded else self.input_dim,
            "served": getattr(self, _CHOICE),
        }
