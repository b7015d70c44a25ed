"""The weights of a ring: its model, and their source if no member has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from numpy.typing import NDArray

from elasticdl.checkpoint import ring_file
from elasticdl.checkpoint.object_store import directory_with
from elasticdl.checkpoint.ring_file import ArrayShape
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.checkpoint_fit import check_arrays
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


def load_weights(model: RingModel, where: str) -> int:
    """Load the model, without training state, from a ring's checkpoint; returns the version.

    `where` is a directory or an address. Raises Corrupted, UserError, TransientError.
    """
    mine = {name: variable for name, variable in model.state().items() if name.startswith(MODEL)}
    with directory_with(where) as directory:
        version, arrays = ring_file.read(directory)
    arrays = {name: array for name, array in arrays.items() if name.startswith(MODEL)}
    shapes = {name: ArrayShape(tuple(array.shape), array.dtype) for name, array in mine.items()}
    check_arrays(where, _shapes(arrays), shapes)
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

    def __call__(self, where: str) -> int:
        """Load the values of a checkpoint ('': the initial ones); returns the version."""
        if not where:
            self._exchange.load(self._initial)
            return 0
        with directory_with(where) as directory:
            version, arrays = ring_file.read(directory)
        mine = dict(zip(self._names, self._initial, strict=True))
        check_arrays(where, _shapes(arrays), _shapes(mine))
        self._exchange.load([arrays[name] for name in self._names])
        return version


def _shapes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, ArrayShape]:
    return {name: ArrayShape(array.shape, str(array.dtype)) for name, array in arrays.items()}
