"""A worker that evaluates or predicts with a ring's checkpoint: it has the whole model, and there
are no servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.model.module import load_module
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import Float32s, Int64s, Pulled, Pushed, Update
from elasticdl.shard import SnapshotId
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.ps.wiring import Assignment, Pieces, Worker, put_together, sources_of
from elasticdl.worker.ring.weights import built, load_weights


@final
class WholeWeights:
    """The `Parameters` of a worker whose Keras variables are the whole model: servers hold nothing
    of it.
    """

    def __init__(self, version: int) -> None:
        self._version = version

    def initialise(self, spec: ParametersSpec, dense: Float32s, *, timeout_s: float) -> bool:
        """The values are those of the checkpoint."""
        assert not spec.dense and not spec.tables
        return False

    def pull(
        self,
        ids: Sequence[Int64s],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        timeout_s: float,
    ) -> Pulled:
        """Nothing: a step has all of it."""
        return Pulled((self._version,), np.empty(0, np.float32), ())

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        """Raises AssertionError."""
        raise AssertionError("a job that does not train pushes nothing")

    def rows(
        self, table: int, *, snapshot: SnapshotId | None, timeout_s: float
    ) -> tuple[Int64s, Float32s]:
        """Raises AssertionError."""
        raise AssertionError("a ring's model has no tables")

    def move(self, addresses: Sequence[str]) -> None:
        """There are no servers."""

    def close(self) -> None:
        """There are no connections."""


def assemble_whole(assignment: Assignment, checkpoint: Path, context: WorkerContext) -> Worker:
    """Load the user's module, build the model with the weights of a ring's checkpoint, and all
    stages.

    Raises UserError for whatever is wrong with the module or does not fit the checkpoint,
    Corrupted.
    """
    module = load_module(assignment.spec.model)
    sources = sources_of(assignment, module)
    model = built(assignment, module, sources)
    version = load_weights(model, checkpoint)
    served = model.served()
    pieces = Pieces(assignment, module, sources, served, CompiledStep(served, module))
    return put_together(pieces, WholeWeights(version), context)
