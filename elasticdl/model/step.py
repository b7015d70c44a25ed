"""One step of a served model as one call of a compiled function: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.model.module import ModelModule
from elasticdl.model.served import ServedModel
from elasticdl.model.structure import Structure
from elasticdl.rpc.parameters import Float32s, Int64s, Pulled

States: TypeAlias = Mapping[str, tuple[tuple[float, ...], ...]]
"""Of each metric, the flat values of each of its variables. Adding them up elementwise merges two workers' metrics."""


@final
@dataclass(frozen=True, slots=True)
class Lookups:
    """`ids[t]`: int64[n_t], the distinct ids of table t, what to pull. `positions[k]`: int32 of any shape, for lookup k
    the row of each id among the rows of its table.
    """

    ids: tuple[Int64s, ...]
    positions: tuple[NDArray[np.int32], ...]


@final
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step gives to push.

    `dense` is float32[trainable_size + additive_size]: gradients, then differences of additive variables.
    `gradients[t]` is float32[n_t, dim of table t], one row a distinct id, duplicates summed, clipped if the optimizer
    clips. `nonfinite` is '' if all is finite, else names what is not ("loss", a variable's path, a table's name).
    """

    loss: float
    dense: Float32s
    gradients: tuple[Float32s, ...]
    learning_rate: float
    nonfinite: str = ""


@final
class CompiledStep:
    """Traces once, at the first batch; a smaller last batch does not trace again.

    `prepare` may run in another thread than the rest. `train`, `evaluate`, `predict` and the metrics belong to one
    thread at a time. All release the GIL while they compute. Raises UserError, with the user's frames, for what
    user code raises.
    """

    def __init__(self, served: ServedModel, module: ModelModule) -> None:
        raise NotImplementedError

    def prepare(self, features: Structure, *, training: bool = False) -> Lookups:
        """Run the part of the model that ids depend on, and find distinct ids.

        Raises:
            UserError: an id is outside of its vocabulary (names the layer).
        """
        raise NotImplementedError

    def train(self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled) -> StepOutcome:
        """Loss and gradients at the pulled parameters. Changes nothing but local state (random seeds)."""
        raise NotImplementedError

    def evaluate(self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled) -> None:
        """Add a batch to the metrics."""
        raise NotImplementedError

    def predict(self, features: Structure, lookups: Lookups, pulled: Pulled) -> Structure:
        """Outputs of the model as NumPy arrays, in the model's structure."""
        raise NotImplementedError

    def metric_states(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """States since the last reset. Always has "loss"; metrics of several outputs are named `output_name`."""
        raise NotImplementedError

    def reset_metrics(self) -> None:
        """Begin a new round."""
        raise NotImplementedError

    def metric_values(self, states: States) -> dict[str, float]:
        """Values of metrics whose (merged) states are given. Resets the metrics."""
        raise NotImplementedError
