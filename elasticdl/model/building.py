"""From a module's `custom_model` and `optimizer` to a Keras model that has its variables: what both
strategies begin with.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from elasticdl.errors import UserError
from elasticdl.job import Scalar
from elasticdl.model.module import ModelModule
from elasticdl.model.structure import Structure, input_specs
from elasticdl.model.usercode import missing, place, taken

Variable: TypeAlias = Any
"""A `keras.Variable` (the package has no types)."""


class NeedsFeatures(UserError):
    """The model has no inputs before it is called: build it again, with the features of a first
    batch.
    """


def check_params(module: ModelModule, params: Mapping[str, Scalar]) -> None:
    """Raises UserError for a parameter that nobody takes, or that is missing."""
    both = {**taken(module.custom_model, params), **optimizer_params(module, params)}
    unknown = [name for name in params if name not in both]
    if unknown:
        raise UserError(
            f"--model-params {unknown[0]}={params[unknown[0]]!r}: neither custom_model"
            f" ({place(module.custom_model)}) nor optimizer ({place(module.optimizer)}) takes it"
        )
    for function, given in (
        (module.custom_model, taken(module.custom_model, params)),
        (module.optimizer, optimizer_params(module, params)),
    ):
        if problem := missing(function, given):
            raise UserError(
                f"{place(function)}: {getattr(function, '__name__', function)}: {problem}",
                hint="see --model-params",
            )


def optimizer_params(module: ModelModule, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Only what it names: `**params` of an optimizer function is not for the model's parameters."""
    named = inspect.signature(module.optimizer).parameters
    return {name: value for name, value in params.items() if name in named}


def check_model(model: object, module: ModelModule) -> None:
    """Raises UserError for what is no Keras model, or one that overrides what would not run
    here.
    """
    where = place(module.custom_model)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"{where}: custom_model returned {type(model).__name__}, expected a keras.Model"
        )
    for method in ("train_step", "test_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise UserError(
                f"{place(getattr(type(model), method))}: {type(model).__name__} overrides {method},"
                " which would not run here",
                hint="put it into loss(labels, predictions) and call()",
            )


def inputs_of(model: keras.Model, features: Structure | None, module: ModelModule) -> Structure:
    """Give the model its variables; returns its inputs as specs."""
    if getattr(model, "inputs", None):
        return input_specs(model.inputs[0] if isinstance(model, keras.Sequential) else model.input)
    if features is None:
        raise NeedsFeatures(
            f"{place(module.custom_model)}: {type(model).__name__} has no inputs before it is"
            " called",
            hint="give it a first batch",
        )
    specs = input_specs(features)
    with warnings.catch_warnings():
        # Of a call() that raises, Keras first says that it cannot build the model, then lets it
        # raise: that is what counts.
        warnings.filterwarnings("ignore", message="Layer .* looks like it has unbuilt state")
        model(tf.nest.map_structure(_symbolic, specs))
    return specs


def _symbolic(spec: tf.TypeSpec) -> keras.KerasTensor:
    return keras.Input(
        spec.shape[1:],
        dtype=spec.dtype.name,
        sparse=isinstance(spec, tf.SparseTensorSpec),
        ragged=isinstance(spec, tf.RaggedTensorSpec),
    )


def changing(model: keras.Model, inputs: Structure) -> tuple[Variable, ...]:
    """Non-trainable float variables that a training step changes: averages, which workers add to.

    The others are frozen weights and statistics of preprocessing layers: every worker's own
    `custom_model` makes them alike.
    """
    candidates = [
        one for one in model.non_trainable_variables if one.dtype.startswith(("float", "bfloat"))
    ]
    if not candidates:
        return ()
    changed: list[Variable] = []

    def call(*flat: Any) -> None:  # noqa: ANN401 - symbolic tensors
        features = tf.nest.pack_sequence_as(inputs, flat, expand_composites=True)
        with keras.StatelessScope() as scope:
            model(features, training=True)
        changed.extend(one for one in candidates if scope.get_current_value(one) is not None)

    flat_specs = tf.nest.flatten(inputs, expand_composites=True)
    tf.function(call, input_signature=flat_specs, autograph=False).get_concrete_function()
    return tuple(changed)


def trainable(model: keras.Model) -> list[Variable]:
    """Each trainable variable once."""
    return list({id(one): one for one in model.trainable_variables}.values())
