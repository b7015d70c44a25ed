"""A user's Keras model whose big embedding matrices live elsewhere, by row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
from keras.src.utils.naming import reset_uids

from elasticdl.embedding.spec import DenseSpec, ParametersSpec, TableSpec
from elasticdl.errors import UserError
from elasticdl.job import Scalar
from elasticdl.model import embedding_hooks
from elasticdl.model.building import (
    Variable,
    changing,
    check_model,
    check_params,
    inputs_of,
    optimizer_params,
    trainable,
)
from elasticdl.model.initializers import initializer_spec
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import Optimizer, optimizer_spec
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import place, taken, user_code
from elasticdl.rpc.parameters import Float32s


@final
@dataclass(frozen=True, slots=True)
class PsModel:
    """The model, built, and the spec of everything that servers hold of it.

    `tables[t]` is the layer of table t. `variables` are those of the flat vector, in its order.
    `inputs` are
    `tf.TensorSpec`s, first axis unknown, in the structure in which features come.
    """

    model: keras.Model
    parameters: ParametersSpec
    optimizer: Optimizer
    tables: tuple[Any, ...]
    variables: tuple[Variable, ...]
    inputs: Structure
    open_inputs: Structure = None
    """The same with lengths unknown where `feed` leaves them open; None where the model says what
    its inputs are.
    """

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
        """Make the model; embeddings of at least `threshold_bytes` become tables.

        Same seed, same initial values.

        Each of `params` goes to `custom_model`, to `optimizer`, or to both, where they name it.
        `features` is one batch
        (or `tf.TensorSpec`s, batch axis first).

        Raises:
            NeedsFeatures: the model has no inputs before it is called (subclassed ones), and
                `features` is None.
            UserError: names what cannot be honoured (optimizer, initializer, constraint, ...) and
                where.
        """
        check_params(module, params)
        # names of layers, and so of tables and variables, must not depend on what was built before
        reset_uids()
        keras.utils.set_random_seed(seed % 2**32)
        with user_code("optimizer", module.zoo):
            optimizer = module.optimizer(**optimizer_params(module, params))
        rule = optimizer_spec(optimizer, place(module.optimizer))
        with (
            embedding_hooks.building(threshold_bytes) as built,
            user_code("custom_model", module.zoo),
        ):
            model = module.custom_model(**taken(module.custom_model, params))
            check_model(model, module)
            inputs = inputs_of(model, features, module)
        names = _unique([layer.path or layer.name for layer in built.layers])
        tables = tuple(
            TableSpec(
                name=name,
                dim=layer.output_dim,
                initializer=initializer_spec(layer, embedding_hooks.vocabulary(layer)),
                seed=_table_seed(seed, name),
            )
            for name, layer in zip(names, built.layers, strict=True)
        )
        with user_code("custom_model", module.zoo):
            additive = changing(model, inputs)
        variables = tuple(trainable(model)) + additive
        _check_frozen(built.layers, rule.weight_decay)
        parameters = ParametersSpec(
            optimizer=rule, dense=_dense_specs(variables, len(additive)), tables=tables
        )
        return cls(model, parameters, optimizer, tuple(built.layers), variables, inputs)

    def dense(self) -> Float32s:
        """Current values, float32[trainable_size + additive_size], a copy."""
        parts = [variable.numpy().ravel() for variable in self.variables]
        return np.concatenate([*parts, np.empty(0, np.float32)]).astype(np.float32, copy=False)

    def set_dense(self, flat: Float32s) -> None:
        """Set the Keras variables from the flat vector.

        Steps do not need it; callbacks that look at the model do.
        """
        end = 0
        for variable, spec in zip(self.variables, self.parameters.dense, strict=True):
            begin, end = end, end + spec.size
            variable.assign(flat[begin:end].reshape(spec.shape))


def _dense_specs(variables: Sequence[Variable], additive: int) -> tuple[DenseSpec, ...]:
    for one in variables:
        if one.dtype != "float32":
            raise UserError(
                f"variable {one.path!r} is {one.dtype}, expected float32",
                hint="mixed precision keeps variables in float32",
            )
        if one.constraint is not None:
            raise UserError(
                f"variable {one.path!r} has the constraint {type(one.constraint).__name__}, which"
                " parameter servers cannot honour",
                hint="leave it out, or put it into call(): say, relu of the weights",
            )
    names = _unique([one.path for one in variables])
    first_additive = len(variables) - additive
    return tuple(
        DenseSpec(path=name, shape=tuple(one.shape), additive=index >= first_additive)
        for index, (name, one) in enumerate(zip(names, variables, strict=True))
    )


def _check_frozen(layers: Sequence[Any], weight_decay: float) -> None:
    for layer in layers:
        if not layer.trainable and weight_decay:
            raise UserError(
                f"embedding layer {layer.name!r} is frozen, but the optimizer's weight_decay would"
                " move its rows",
                hint="keep it dense with elasticdl.model.layers.Embedding(..., served=False)",
            )


def _unique(names: Sequence[str]) -> list[str]:
    """The same names, later ones of equals with a number."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return made


def _table_seed(seed: int, name: str) -> int:
    """Depends on the job's seed and the table's name only; below 2^63."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
