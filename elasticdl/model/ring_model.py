"""A model that every member of a ring holds whole, and its state that all members share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import keras
from keras.src.random.seed_generator import global_seed_generator
from keras.src.utils.tracking import DotNotTrackScope

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.flag_values import Scalar
from elasticdl.model.building import (
    Variable,
    changing,
    check_model,
    inputs_of,
    optimizer_of,
    trainable,
)
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import Optimizer, as_compiled, clips, with_rate
from elasticdl.model.ps_model import PsModel
from elasticdl.model.row_gradients import add_in_order
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import taken, user_code, wrong_result

MODEL, OPTIMIZER = "model/", "optimizer/"
"""Prefixes of the variables of the model and its optimizer in `RingModel.state`."""


@final
@dataclass(frozen=True, slots=True)
class RingModel:
    """The built model, of any float types and with any Keras optimizer.

    Embeddings are ordinary variables here. `averaged` are non-trainable float variables that a
    training step changes, such as moving averages. `seeds` are the states of random generators.
    `inputs` are `tf.TensorSpec`s with an unknown first axis, in the structure of the features.
    """

    module: ModelModule
    model: keras.Model
    optimizer: Optimizer
    inputs: Structure
    trainable: tuple[Variable, ...]
    averaged: tuple[Variable, ...]
    seeds: tuple[Variable, ...]

    @classmethod
    def build(
        cls,
        module: ModelModule,
        params: Mapping[str, Scalar],
        *,
        seed: int,
        features: Structure | None = None,
    ) -> RingModel:
        """Build the model and its optimizer; the same seed gives the same initial values.

        Raises the errors of `PsModel.build`.
        """
        optimizer = optimizer_of(module, params, seed)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise wrong_result(module.optimizer, "optimizer", optimizer, "a Keras optimizer")
        with user_code("custom_model", module.zoo, module.custom_model):
            model = module.custom_model(**taken(module.custom_model, params))
            check_model(model, module)
            inputs = inputs_of(model, features, module)
            averaged = changing(model, inputs)
            variables = tuple(trainable(model))
            optimizer = as_compiled(optimizer, model)
            optimizer.build(list(variables))
        with DotNotTrackScope():
            # Callbacks expect the optimizer here, as after `compile`.
            model.optimizer = optimizer
        built = cls(module, model, optimizer, inputs, variables, averaged, _seeds(model))
        if not built.sums_rows:
            for variable in (*variables, *optimizer.variables):
                add_in_order(variable.value)
        return built

    @property
    def sums_rows(self) -> bool:
        """Whether gradients of equal ids may be summed before the optimizer sees them.

        SGD without clipping uses only their sum; all other optimizers get them as with plain Keras.
        """
        optimizer = with_rate(self.optimizer)
        return type(optimizer) is keras.optimizers.SGD and not clips(optimizer)

    def ps_model(self) -> PsModel:
        """Wrap the model as one without served parameters, to evaluate, predict and export it."""
        nothing = ParametersSpec(
            optimizer=OptimizerSpec(kind=OptimizerKind.SGD), dense=(), tables=()
        )
        return PsModel(self.model, nothing, self.optimizer, (), (), self.inputs)

    def state(self) -> dict[str, Variable]:
        """Every variable that must be equal on all members, by unique name.

        The order is the same everywhere.
        """
        named: dict[str, Variable] = {}
        seen: set[int] = set()
        parts = (
            (MODEL, self.model.variables),
            (OPTIMIZER, self.optimizer.variables),
            ("random/", self.seeds),
        )
        for part, variables in parts:
            for variable in variables:
                if id(variable) not in seen:
                    seen.add(id(variable))
                    named[_unused(f"{part}{variable.path}", named)] = variable
        return named


def _seeds(model: keras.Model) -> tuple[Variable, ...]:
    states = [
        variable for variable in model.variables if variable.path.endswith("seed_generator_state")
    ]
    return (*states, global_seed_generator().state)


def _unused(name: str, taken_names: Mapping[str, Variable]) -> str:
    number = 1
    unused = name
    while unused in taken_names:
        number += 1
        unused = f"{name}#{number}"
    return unused
