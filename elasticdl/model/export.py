"""The trained model as a plain SavedModel and a plain weights file, with the rows put back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elasticdl.model.served import ServedModel
from elasticdl.rpc.parameters import Float32s, Int64s


def export(served: ServedModel, dense: Float32s, tables: Sequence[tuple[Int64s, Float32s]], directory: str | Path) -> None:
    """Write `directory/` (SavedModel, signature `serving_default`) and `directory/model.weights.h5`.

    `tables[t]` are all rows that were ever made: ids int64[n] ascending and weights float32[n, dim]. Rows of a bounded
    vocabulary that were never touched get their initial values. Needs one `CompiledStep.prepare` or a model with
    inputs before, to know the inputs. Written beside and renamed, so there is never half an export.
    """
    raise NotImplementedError
