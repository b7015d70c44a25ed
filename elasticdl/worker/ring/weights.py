"""The weights of a ring: its model, and their source if no member has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoint import ring_file
from elasticdl.errors import UserError
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.module import ModelModule
from elasticdl.model.ring_model import MODEL, RingModel
from elasticdl.worker.pipeline.assignment import Assignment
from elasticdl.worker.pipeline.first_batch import first_features
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.ring.exchange import Exchange


def built(assignment: Assignment, module: ModelModule, sources: Sources) -> RingModel:
    """Build the model.

    A model without inputs before its first call is built with a first batch. Raises UserError.
    """
    spec = assignment.spec
    try:
        return RingModel.build(module, spec.model.model_params, seed=spec.data.seed)
    except NeedsFeatures:
        features = first_features(sources, assignment.main_task)
        return RingModel.build(
            module, spec.model.model_params, seed=spec.data.seed, features=features
        )


def load_weights(model: RingModel, directory: Path) -> int:
    """Load the model, without training state, from a ring's checkpoint; returns the version.

    Raises Corrupted, UserError.
    """
    mine = {name: variable for name, variable in model.state().items() if name.startswith(MODEL)}
    version, arrays = ring_file.read(directory)
    arrays = {name: array for name, array in arrays.items() if name.startswith(MODEL)}
    check_fit(
        directory, arrays, {name: np.asarray(variable.numpy()) for name, variable in mine.items()}
    )
    # After the check: a checkpoint that does not fit must not change half of the model.
    for name, variable in mine.items():
        variable.assign(arrays[name])
    return version


@final
class Restoring:
    """The initial state of a new ring if no member has a state."""

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        """`names` of the arrays, in the order of `exchange`.

        The present values are the model's initial ones.
        """
        self._exchange = exchange
        self._names = tuple(names)
        self._initial = exchange.copied()

    def __call__(self, directory: str) -> int:
        """Load the values of a checkpoint ('': the initial ones); returns the version."""
        if not directory:
            self._exchange.load(self._initial)
            return 0
        version, arrays = ring_file.read(Path(directory))
        check_fit(Path(directory), arrays, dict(zip(self._names, self._initial, strict=True)))
        self._exchange.load([arrays[name] for name in self._names])
        return version


def check_fit(
    directory: Path, arrays: Mapping[str, NDArray[Any]], mine: Mapping[str, NDArray[Any]]
) -> None:
    """Raise UserError for the first array of a checkpoint that does not match the model."""
    for name, array in mine.items():
        saved = arrays.get(name)
        if saved is None or saved.shape != array.shape or saved.dtype != array.dtype:
            what = "no such variable" if saved is None else f"shape {saved.shape}, {saved.dtype}"
            raise UserError(
                f"{directory} is of another model: {name} has shape {array.shape}, {array.dtype}"
                f" here, and {what} there",
                hint="use the module and --model-params of the job that made the checkpoint",
            )
    if extra := [name for name in arrays if name not in mine]:
        raise UserError(
            f"{directory} is of another model: it has variable {extra[0]}, which this model lacks",
            hint="use the module and --model-params of the job that made the checkpoint",
        )
