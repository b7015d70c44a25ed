"""The weights of a ring: the model that has them, and where they come from when no member has them
any more.
"""

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
from elasticdl.worker.pipeline.first_batch import first_features
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.ps.wiring import Assignment
from elasticdl.worker.ring.exchange import Exchange


def built(assignment: Assignment, module: ModelModule, sources: Sources) -> RingModel:
    """The model.

    One that has no inputs before it is called gets a first batch to be built with. Raises
    UserError.
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
    """Take what of a ring's checkpoint is the model itself, not its training; the version.

    Raises Corrupted, UserError.
    """
    mine = {name: variable for name, variable in model.state().items() if name.startswith(MODEL)}
    version, arrays = ring_file.read(directory)
    arrays = {name: array for name, array in arrays.items() if name.startswith(MODEL)}
    check_fit(
        directory, arrays, {name: np.asarray(variable.numpy()) for name, variable in mine.items()}
    )
    for name, variable in mine.items():
        variable.assign(arrays[name])
    return version


@final
class Restoring:
    """What a new ring begins with if nobody has a state any more."""

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        """`names` of the arrays, in the order in which `exchange` has them.

        What it has now is what the model begins with.
        """
        self._exchange = exchange
        self._names = tuple(names)
        self._initial = exchange.copied()

    def __call__(self, directory: str) -> int:
        """Values of a checkpoint, or those that the model began with. The version."""
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
    """Raises UserError naming the first array of a checkpoint that is not as it is here."""
    for name, array in mine.items():
        found = arrays.get(name)
        if found is None or found.shape != array.shape or found.dtype != array.dtype:
            what = "no such variable" if found is None else f"shape {found.shape}, {found.dtype}"
            raise UserError(
                f"{directory} is of another model: {name} has shape {array.shape}, {array.dtype}"
                f" here, and {what} there",
                hint="use the checkpoint with the module and --model-params that it was made with",
            )
    if extra := [name for name in arrays if name not in mine]:
        raise UserError(
            f"{directory} is of another model: it has {extra[0]}, which this one has not"
        )
