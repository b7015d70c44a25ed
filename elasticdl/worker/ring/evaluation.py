"""A worker that evaluates or predicts with a ring's checkpoint: it has the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.model.module import load_module
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import Floats, Int64s, Pulled, Pushed, RowsPage, Update
from elasticdl.shard import SnapshotId
from elasticdl.worker.pipeline.assignment import Assignment, sources_of
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.ps.wiring import Pieces, Worker, put_together
from elasticdl.worker.ring.weights import built, load_weights


@final
class LocalParameters:
    """The `Parameters` of a worker whose Keras variables are the whole model."""

    def __init__(self, version: int) -> None:
        self._version = version

    def initialise(self, spec: ParametersSpec, dense: Floats, *, timeout_s: float) -> bool:
        """Do nothing: the values are those of the checkpoint."""
        assert not spec.dense and not spec.tables
        return False

    def pull(
        self,
        ids: Sequence[Int64s],
        *,
        dense: bool = True,
        snapshot: SnapshotId | None = None,
        exact: bool = False,
        timeout_s: float,
    ) -> Pulled:
        """Pull nothing: a step has all parameters."""
        return Pulled((self._version,), np.empty(0, np.float32), ())

    def push(self, update: Update, *, timeout_s: float) -> Pushed:
        """Raises AssertionError."""
        raise AssertionError("a job that does not train pushes nothing")

    def meet(self, *, timeout_s: float) -> Mapping[str, int]:
        """Do nothing: there are no servers."""
        return {}

    @property
    def servers(self) -> int:
        """None."""
        return 0

    def rows(
        self,
        table: int,
        server: int,
        begin: int,
        *,
        snapshot: SnapshotId | None,
        timeout_s: float,
    ) -> RowsPage:
        """Raises AssertionError."""
        raise AssertionError("a ring's model has no tables")

    def move(self, addresses: Sequence[str], first: int = 0, tokens: Sequence[str] = ()) -> None:
        """Do nothing: there are no servers."""

    def close(self) -> None:
        """Do nothing: there are no connections."""


def assemble_local(assignment: Assignment, checkpoint: str, context: WorkerContext) -> Worker:
    """Load the user's module, build the model with a ring checkpoint's weights, and all stages.

    Raises UserError for a mistake in the module or a checkpoint that does not fit, and Corrupted.
    """
    module = load_module(assignment.spec.model)
    sources = sources_of(assignment, module, context.watch.moving)
    model = built(assignment, module, sources)
    version = load_weights(model, checkpoint)
    ps_model = model.ps_model()
    pieces = Pieces(assignment, module, sources, ps_model, CompiledStep(ps_model, module))
    return put_together(pieces, LocalParameters(version), context)
