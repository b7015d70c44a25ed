"""A user's Keras model whose large embedding matrices live on parameter servers, by row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np

from elasticdl.embedding.spec import DenseSpec, Dtype, ParametersSpec, TableSpec
from elasticdl.errors import UserError
from elasticdl.flag_values import Scalar
from elasticdl.model import embedding_hooks
from elasticdl.model.building import (
    Variable,
    changing,
    check_model,
    inputs_of,
    optimizer_of,
    trainable,
)
from elasticdl.model.initializers import initializer_spec
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import Optimizer, optimizer_spec, scales_loss
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import place, taken, user_code
from elasticdl.rpc.parameters import Floats


@final
@dataclass(frozen=True, slots=True)
class PsModel:
    """A built model, and the spec of everything that servers hold of it.

    `tables[t]` is the layer of table t. `variables` are those of the flat vector, in its order.
    `inputs` are `tf.TensorSpec`s with an unknown first axis, in the structure of the features.
    """

    model: keras.Model
    parameters: ParametersSpec
    optimizer: Optimizer
    tables: tuple[Any, ...]
    variables: tuple[Variable, ...]
    inputs: Structure
    open_inputs: Structure = None
    """`inputs` with lengths left open where `feed` does; None if the model fixes its inputs."""

    @classmethod
    def build(
        cls,
        module: ModelModule,
        params: Mapping[str, Scalar],
        *,
        threshold_bytes: int,
        seed: int,
        features: Structure | None = None,
    ) -> PsModel:
        """Build the model; embeddings of at least `threshold_bytes` become tables.

        The same seed gives the same initial values. Each of `params` goes to `custom_model`, to
        `optimizer`, or to both, whichever names it. `features` is one batch (or `tf.TensorSpec`s,
        batch axis first).

        Raises:
            NeedsFeatures: the model (a subclassed one) has no inputs before its first call, and
                `features` is None.
            UserError: the optimizer, an initializer or a constraint is unsupported (names which and
                where).
        """
        optimizer = optimizer_of(module, params, seed)
        rule = optimizer_spec(optimizer, module.optimizer)
        with (
            embedding_hooks.building(threshold_bytes) as built,
            user_code("custom_model", module.zoo, module.custom_model),
        ):
            model = module.custom_model(**taken(module.custom_model, params))
            check_model(model, module)
            inputs = inputs_of(model, features, module)
            _refuse_scaled_loss(model, module)
        with user_code("custom_model", module.zoo, module.custom_model):
            additive = changing(model, inputs)
        variables = tuple(trainable(model)) + additive
        _check_frozen(built.layers, rule.weight_decay)
        parameters = ParametersSpec(
            optimizer=rule,
            dense=_dense_specs(variables, len(additive)),
            tables=_table_specs(built.layers, seed),
            dtype=_dtype(variables, built.layers),
        )
        return cls(model, parameters, optimizer, tuple(built.layers), variables, inputs)

    def mixed_dtypes(self) -> str | None:
        """What variables of several types cost; None if all have one type."""
        named = [(variable.path, variable.dtype) for variable in self.variables]
        named += [(layer.path or layer.name, layer.variable_dtype) for layer in self.tables]
        examples = {dtype: path for path, dtype in named}
        if len(examples) < 2:
            return None
        both = ", ".join(f"{path} is {dtype}" for dtype, path in sorted(examples.items()))
        return (
            f"{both}: parameter servers hold all weights of a model in one type, here as float64,"
            " with twice the memory and traffic of float32; a float32 variable is rounded where it"
            " is used"
        )

    def dense(self) -> Floats:
        """A copy of the current values, [trainable_size + additive_size]."""
        dtype = self.parameters.dtype.value
        parts = [variable.numpy().ravel() for variable in self.variables]
        return np.concatenate([*parts, np.empty(0, dtype)]).astype(dtype, copy=False)

    def set_dense(self, flat: Floats) -> None:
        """Set the Keras variables from the flat vector.

        Steps do not need it, but callbacks that inspect the model do.
        """
        end = 0
        for variable, spec in zip(self.variables, self.parameters.dense, strict=True):
            begin, end = end, end + spec.size
            variable.assign(flat[begin:end].reshape(spec.shape))


def _table_specs(layers: Sequence[Any], seed: int) -> tuple[TableSpec, ...]:
    names = _unique([layer.path or layer.name for layer in layers])
    return tuple(
        TableSpec(
            name=name,
            dim=layer.output_dim,
            initializer=initializer_spec(layer, embedding_hooks.vocabulary(layer)),
            seed=_table_seed(seed, name),
            whole=layer.embeddings_regularizer is not None,
        )
        for name, layer in zip(names, layers, strict=True)
    )


def _dense_specs(variables: Sequence[Variable], additive: int) -> tuple[DenseSpec, ...]:
    for variable in variables:
        if variable.dtype not in tuple(Dtype):
            raise UserError(
                f"variable {variable.path!r} is {variable.dtype}, expected float32 or float64",
                hint="use a float32 dtype policy; mixed precision keeps variables in float32",
            )
        if variable.constraint is not None:
            raise UserError(
                f"variable {variable.path!r} has the constraint"
                f" {type(variable.constraint).__name__}, which parameter servers do not support",
                hint="remove it, or apply it in call(), for example relu of the weights",
            )
    names = _unique([variable.path for variable in variables])
    first_additive = len(variables) - additive
    return tuple(
        DenseSpec(path=name, shape=tuple(variable.shape), additive=index >= first_additive)
        for index, (name, variable) in enumerate(zip(names, variables, strict=True))
    )


def _dtype(variables: Sequence[Variable], layers: Sequence[Any]) -> Dtype:
    """The type in which servers hold all weights: float64 if any variable is."""
    every = {
        *(variable.dtype for variable in variables),
        *(layer.variable_dtype for layer in layers),
    }
    return Dtype.FLOAT64 if Dtype.FLOAT64 in every else Dtype.FLOAT32


def _refuse_scaled_loss(model: keras.Model, module: ModelModule) -> None:
    if scales_loss(model):
        raise UserError(
            f"{place(module.custom_model)}: the dtype policy of the model is mixed_float16, with"
            " which Keras scales the loss; parameter servers do not support that",
            hint="use mixed_bfloat16, or train on a ring (--distribution-strategy"
            " AllreduceStrategy)",
        )


def _check_frozen(layers: Sequence[Any], weight_decay: float) -> None:
    for layer in layers:
        if not layer.trainable and weight_decay:
            raise UserError(
                f"embedding layer {layer.name!r} is frozen, but the optimizer's weight_decay would"
                " change its rows",
                hint="keep it dense with elasticdl.model.layers.Embedding(..., served=False)",
            )


def _unique(names: Sequence[str]) -> list[str]:
    """Make names unique: append `#2`, `#3`, ... to repeated ones."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique


def _table_seed(seed: int, name: str) -> int:
    """A seed below 2^63 that depends only on the job's seed and the table's name."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
