"""Translate Keras optimizers to the update rules of parameter servers and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec
from elasticdl.errors import UserError
from elasticdl.model.callbacks import LearningRateScheduler
from elasticdl.model.module import ModelModule
from elasticdl.model.usercode import place, user_code, wrong_result

Optimizer: TypeAlias = Any
"""A `keras.optimizers.Optimizer` (the package has no types)."""

_SPECS: Mapping[type, Callable[[Optimizer], dict[str, Any]]] = {
    keras.optimizers.SGD: lambda sgd: {
        "kind": OptimizerKind.SGD,
        "momentum": sgd.momentum,
        "nesterov": sgd.nesterov,
    },
    keras.optimizers.Adam: lambda adam: _adam(adam),
    keras.optimizers.AdamW: lambda adam: _adam(adam),
    keras.optimizers.Adagrad: lambda adagrad: {
        "kind": OptimizerKind.ADAGRAD,
        "initial_accumulator_value": adagrad.initial_accumulator_value,
        "epsilon": adagrad.epsilon,
    },
    keras.optimizers.Ftrl: lambda ftrl: {
        "kind": OptimizerKind.FTRL,
        "learning_rate_power": ftrl.learning_rate_power,
        "initial_accumulator_value": ftrl.initial_accumulator_value,
        "l1": ftrl.l1_regularization_strength,
        "l2": ftrl.l2_regularization_strength,
        "l2_shrinkage": ftrl.l2_shrinkage_regularization_strength,
        "beta": ftrl.beta,
    },
}


def _adam(adam: Optimizer) -> dict[str, Any]:
    return {
        "kind": OptimizerKind.ADAM,
        "beta_1": adam.beta_1,
        "beta_2": adam.beta_2,
        "epsilon": adam.epsilon,
        "amsgrad": adam.amsgrad,
    }


def optimizer_spec(optimizer: Optimizer, function: Callable[..., Any]) -> OptimizerSpec:
    """The update rule, without learning rate and clipping, of what the user's function returned.

    Raises:
        UserError: the optimizer or an option is unsupported.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise wrong_result(function, "optimizer", optimizer, "a Keras optimizer")
    where = place(function)
    constants = _SPECS.get(type(optimizer))
    if constants is None:
        *others, last = (kind.__name__ for kind in _SPECS)
        raise UserError(
            f"{where}: {type(optimizer).__name__} is not supported with parameter servers",
            hint=f"use keras.optimizers.{', '.join(others)} or {last}",
        )
    _refuse_options(optimizer, where)
    return OptimizerSpec(**constants(optimizer), weight_decay=optimizer.weight_decay or 0.0)


def _refuse_options(optimizer: Optimizer, where: str) -> None:
    excluded = getattr(optimizer, "_exclude_from_weight_decay", None) or getattr(
        optimizer, "_exclude_from_weight_decay_pattern", None
    )
    options = {
        "use_ema": optimizer.use_ema,
        "loss_scale_factor": optimizer.loss_scale_factor,
        "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
        "exclude_from_weight_decay": excluded,
    }
    for name, value in options.items():
        if value:
            raise UserError(
                f"{where}: {type(optimizer).__name__} sets {name}, which parameter servers do not"
                " support",
                hint=f"remove {name}",
            )


def as_compiled(optimizer: Optimizer, model: keras.Model) -> Optimizer:
    """What Keras's `compile` makes of an optimizer: one that scales the loss of a float16 model."""
    scaling = keras.optimizers.LossScaleOptimizer
    if not scales_loss(model) or isinstance(optimizer, scaling):
        return optimizer
    return scaling(optimizer, name="loss_scale_optimizer")


def scales_loss(model: keras.Model) -> bool:
    """Whether Keras's `fit` scales the loss of this model, whatever its optimizer."""
    return bool(model.dtype_policy.name == "mixed_float16")


def with_rate(optimizer: Optimizer) -> Optimizer:
    """The optimizer that has the learning rate: of a LossScaleOptimizer, the one inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def clips(optimizer: Optimizer) -> bool:
    """Whether the optimizer clips gradients before it applies them."""
    return any(
        bound and bound > 0
        for bound in (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    )


def clipped(optimizer: Optimizer, gradients: Sequence[Any]) -> list[Any]:
    """Keras's own clipping. Slices may stay slices, or become a tensor."""
    return list(optimizer._clip_gradients(list(gradients)))


def learning_rate(optimizer: Optimizer) -> Any:  # noqa: ANN401 - Keras has no types
    """A float, a Keras schedule, or a function without arguments."""
    rate = with_rate(optimizer)._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or (
        callable(rate) and not isinstance(rate, keras.Variable)
    ):
        return rate
    return float(rate.numpy())


def schedule_of(module: ModelModule) -> Callable[[int], float] | None:
    """The learning rate by version, if `callbacks()` of the module has a scheduler."""
    if module.callbacks is None:
        return None
    with user_code("callbacks", module.zoo):
        schedulers = [
            callback
            for callback in module.callbacks() or ()
            if isinstance(callback, LearningRateScheduler)
        ]
    # The last one wins: Keras runs callbacks in order, and each sets the rate.
    return schedulers[-1].schedule if schedulers else None


def refuse_two_schedules(module: ModelModule, optimizer: Optimizer) -> None:
    """Raise UserError if both the optimizer and `callbacks()` have a schedule of the rate."""
    if schedule_of(module) is not None and not isinstance(learning_rate(optimizer), float):
        assert module.callbacks is not None
        raise UserError(
            f"{place(module.callbacks)}: callbacks has a LearningRateScheduler, but the learning"
            " rate of the optimizer is a schedule or a function, too",
            hint="remove one of them",
        )
