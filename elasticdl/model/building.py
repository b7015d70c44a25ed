"""Build a Keras model with its variables from a module, for both strategies."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from elasticdl.errors import UserError
from elasticdl.flag_values import Scalar
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import Optimizer, with_rate
from elasticdl.model.structure import Structure, input_specs
from elasticdl.model.usercode import (
    TABLE_ADVICE,
    missing,
    place,
    taken,
    user_code,
    users_frames,
    wrong_result,
)

Variable: TypeAlias = Any
"""A `keras.Variable` (the package has no types)."""


class NeedsFeatures(UserError):
    """The model has no inputs before a call: build it again with the features of a first batch."""


def optimizer_of(module: ModelModule, params: Mapping[str, Scalar], seed: int) -> Optimizer:
    """The module's optimizer, with Keras prepared to build its model.

    Raises UserError for params that do not fit, or if the module's function raises.
    """
    check_params(module, params)
    # Names of layers, tables and variables must not depend on models built before.
    reset_uids()
    keras.utils.set_random_seed(seed % 2**32)
    with user_code("optimizer", module.zoo, module.optimizer):
        optimizer = module.optimizer(**optimizer_params(module, params))
    rate = getattr(with_rate(optimizer), "_learning_rate", None)
    if isinstance(rate, keras.Variable) and not isfinite(float(rate.numpy())):
        raise UserError(
            f"{place(module.optimizer)}: the learning rate is {float(rate.numpy())}",
            hint="it must be a finite number",
        )
    return optimizer


def check_params(module: ModelModule, params: Mapping[str, Scalar]) -> None:
    """Raise UserError for a parameter that no function takes, or for one that is missing."""
    both = {**taken(module.custom_model, params), **optimizer_params(module, params)}
    unknown = [name for name in params if name not in both]
    if unknown:
        raise UserError(
            f"--model-params {unknown[0]}={params[unknown[0]]!r}: neither custom_model"
            f" ({place(module.custom_model)}) nor optimizer ({place(module.optimizer)}) takes it",
            hint=_known_params(module, unknown[0]),
        )
    for function, arguments in (
        (module.custom_model, taken(module.custom_model, params)),
        (module.optimizer, optimizer_params(module, params)),
    ):
        if problem := missing(function, arguments):
            raise UserError(
                f"{place(function)}: {getattr(function, '__name__', function)}: {problem}",
                hint="set it in --model-params",
            )


def _known_params(module: ModelModule, unknown: str) -> str:
    known = [
        name
        for function in (module.custom_model, module.optimizer)
        for name in inspect.signature(function).parameters
    ]
    near = difflib.get_close_matches(unknown, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(dict.fromkeys(known))}" if known else "they take no parameters"


def optimizer_params(module: ModelModule, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The entries that the optimizer function names: its `**params` gets none of the model's."""
    named = inspect.signature(module.optimizer).parameters
    return {name: value for name, value in params.items() if name in named}


def check_model(model: object, module: ModelModule) -> None:
    """Raise UserError if `model` is no Keras model, or overrides a method that jobs do not call."""
    if not isinstance(model, keras.Model):
        raise wrong_result(module.custom_model, "custom_model", model, "a keras.Model")
    for method in ("train_step", "test_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise UserError(
                f"{place(getattr(type(model), method))}: {type(model).__name__} overrides {method},"
                " which ElasticDL does not call",
                hint="move its logic to loss(labels, predictions) and call()",
            )


def inputs_of(model: keras.Model, features: Structure | None, module: ModelModule) -> Structure:
    """Create the model's variables and return its inputs as specs."""
    if getattr(model, "inputs", None):
        return input_specs(_own_inputs(model))
    if features is None:
        raise NeedsFeatures(
            f"{place(module.custom_model)}: {type(model).__name__} has no inputs before its first"
            " call",
            hint="build the model with the features of a first batch",
        )
    specs = input_specs(features)
    with warnings.catch_warnings():
        # If call() raises, Keras warns that it cannot build the model, then raises the same error.
        for message in (
            "Layer .* looks like it has unbuilt state",
            r"`build\(\)` was called on layer",
        ):
            warnings.filterwarnings("ignore", message=message)
        ragged = any(isinstance(spec, tf.RaggedTensorSpec) for spec in tf.nest.flatten(specs))
        if ragged or (isinstance(model, keras.Sequential) and tf.nest.is_nested(specs)):
            # Keras has no symbolic tensors that are ragged, and a Sequential model takes one only.
            tf.function(model, autograph=False).get_concrete_function(specs)
        else:
            model(tf.nest.map_structure(_symbolic, specs))
    return specs


def outputs_of(
    model: keras.Model, features: Structure, module: ModelModule, *, training: bool
) -> Structure:
    """Call the model with `fitting` features, in a graph.

    Raises:
        UserError: the call fails, or it makes or changes a lookup table (names the line).
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with user_code(f"the model of {module.path}", module.zoo, module.custom_model):
        outputs = model(fitting(model, features), training=training)
        if outputs is None:
            raise wrong_result(type(model).call, f"{type(model).__name__}.call", None, "tensors")
    _refuse_tables(graph.get_operations()[before:], module)
    return outputs


_OF_TABLES = {
    "InitializeTable": "makes a lookup table",
    "LookupTableImport": "makes a lookup table",
    "LookupTableInsert": "writes to a lookup table",
    "LookupTableRemove": "writes to a lookup table",
}
"""What operations do whose types begin with these words."""


def _refuse_tables(operations: Iterable[tf.Operation], module: ModelModule) -> None:
    """Raise UserError if the operations of the model's call make or change a lookup table.

    A graph that is pruned to ids leaves these operations out, and an export cannot save the table.
    """
    for operation in operations:
        does = [what for kind, what in _OF_TABLES.items() if operation.type.startswith(kind)]
        if does:
            frames = users_frames(operation.traceback or (), module.zoo)
            where = f"{frames[-1][0]}:{frames[-1][1]}" if frames else place(module.custom_model)
            raise UserError(f"{where}: the model {does[0]} while it is called", hint=TABLE_ADVICE)


def fitting(model: keras.Model, features: Structure) -> Structure:
    """The features, or their specs, as the model takes them.

    A dict of one feature fits a model with one input, whatever its name, as in Keras 2.
    """
    if (
        isinstance(features, Mapping)
        and len(features) == 1
        and len(getattr(model, "inputs", None) or ()) == 1
        and not isinstance(_own_inputs(model), Mapping)
    ):
        (features,) = features.values()
    return features


def _own_inputs(model: keras.Model) -> Structure:
    """The Keras inputs of a model that has some."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _symbolic(spec: tf.TypeSpec) -> keras.KerasTensor:
    return keras.Input(
        spec.shape[1:],
        dtype=spec.dtype.name,
        sparse=isinstance(spec, tf.SparseTensorSpec),
    )


def changing(model: keras.Model, inputs: Structure) -> tuple[Variable, ...]:
    """Non-trainable float variables that a training step changes, such as moving averages.

    Workers push differences of these. All others are frozen weights and statistics of preprocessing
    layers, which `custom_model` makes equal on every worker.
    """
    candidates = [
        variable
        for variable in model.non_trainable_variables
        if variable.dtype.startswith(("float", "bfloat"))
    ]
    if not candidates:
        return ()
    changed: list[Variable] = []

    def call(*flat: tf.Tensor) -> None:
        features = tf.nest.pack_sequence_as(inputs, flat, expand_composites=True)
        with keras.StatelessScope() as scope:
            model(features, training=True)
        changed.extend(
            variable for variable in candidates if scope.get_current_value(variable) is not None
        )

    flat_specs = tf.nest.flatten(inputs, expand_composites=True)
    tf.function(call, input_signature=flat_specs, autograph=False).get_concrete_function()
    return tuple(changed)


def trainable(model: keras.Model) -> list[Variable]:
    """Each trainable variable once."""
    return list({id(variable): variable for variable in model.trainable_variables}.values())
