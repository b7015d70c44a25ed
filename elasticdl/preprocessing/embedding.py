"""The original ElasticDL's name for an embedding with a combiner."""

from __future__ import annotations

from typing import Any

from elasticdl.model.layers import Embedding


def SparseEmbedding(
    input_dim: int | None,
    output_dim: int,
    combiner: str = "mean",
    **options: Any,  # noqa: ANN401
) -> Embedding:
    """An `elasticdl.model.layers.Embedding` with a combiner (sum, mean or sqrtn)."""
    return Embedding(output_dim, input_dim, combiner=combiner, **options)
