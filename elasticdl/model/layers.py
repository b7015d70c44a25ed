"""An embedding layer for those who want to choose, or whose ids have no bound."""

from __future__ import annotations

from typing import Any, final

import keras

from elasticdl.model.embedding_hooks import _CHOICE


@final
class Embedding(keras.layers.Embedding):  # type: ignore[misc]  # Keras has no types
    """`keras.layers.Embedding` whose vocabulary may be unbounded, and whose place may be chosen.

    Without `input_dim` any int64 is an id, and the rows live on the parameter servers. With it,
    `served` says where the
    rows live: True on the servers, False in a dense matrix, None by `--embedding-threshold-bytes`.
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
                "an Embedding without input_dim cannot have served=False: it has no bound"
            )
        # Before Keras' own: that builds the layer at once if it is given weights.
        object.__setattr__(self, "unbounded", input_dim is None)
        object.__setattr__(self, _CHOICE, True if input_dim is None else served)
        super().__init__(1 if input_dim is None else input_dim, output_dim, **options)

    def get_config(self) -> dict[str, Any]:
        """As Keras', with what is ours."""
        config = super().get_config()
        return {
            **config,
            "input_dim": None if self.unbounded else self.input_dim,
            "served": getattr(self, _CHOICE),
        }
