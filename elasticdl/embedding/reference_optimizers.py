"""Update rules in NumPy, in float32 or float64.

They give the same bits as native/optimizer_kernels.h (a power other than a root: within rounding).

Source of the formulae and of their order of operations: Keras 3, keras/src/optimizers/
{base_optimizer,sgd,adam,adagrad,ftrl}.py.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec

_Floats: TypeAlias = NDArray[np.floating[Any]]


def initial_slot(spec: OptimizerSpec, slot: int) -> np.float32:
    """What slot `slot` holds before the first update."""
    accumulates = spec.kind in (OptimizerKind.ADAGRAD, OptimizerKind.FTRL)
    return _cast(spec.initial_accumulator_value if accumulates and slot == 0 else 0.0)


def _cast(number: float) -> np.float32:
    """A number that Keras converts by `ops.cast`.

    TensorFlow makes it float32 first, whatever the target.
    """
    return np.float32(number)


def update(
    spec: OptimizerSpec, learning_rate: float, step: int, values: _Floats, gradients: _Floats
) -> None:
    """Updates [1 + slots, ...] in place by gradients [...]: weights first, then slots.

    `step` is 1-based. Constants are rounded to the type of the values, as in Keras.
    """
    rounded = values.dtype.type
    rate = rounded(learning_rate)
    # Decoupled weight decay (AdamW): before the rule, as Keras does, with the same learning rate.
    if spec.weight_decay:
        values[0] -= values[0] * rounded(_cast(spec.weight_decay)) * rate
    match spec.kind:
        case OptimizerKind.SGD:
            _sgd(spec, rate, values, gradients)
        case OptimizerKind.ADAM:
            _adam(spec, rate, step, values, gradients)
        case OptimizerKind.ADAGRAD:
            weights, accumulator = values
            accumulator += gradients * gradients
            weights -= rate * gradients / np.sqrt(accumulator + rounded(spec.epsilon))
        case OptimizerKind.FTRL:
            _ftrl(spec, rate, values, gradients)


def _sgd(spec: OptimizerSpec, rate: np.floating[Any], values: _Floats, gradients: _Floats) -> None:
    weights = values[0]
    if not spec.momentum:
        weights -= gradients * rate
        return
    momentum, factor = values[1], values.dtype.type(_cast(spec.momentum))
    momentum[...] = momentum * factor - gradients * rate
    weights += momentum * factor - gradients * rate if spec.nesterov else momentum


def _adam(
    spec: OptimizerSpec,
    rate: np.floating[Any],
    step: int,
    values: _Floats,
    gradients: _Floats,
) -> None:
    weights, m, v = values[:3]
    rounded = values.dtype.type

    def rest(beta: float) -> np.floating[Any]:
        """1 - beta^step; the power is computed in double."""
        return rounded(1) - rounded(math.pow(float(_cast(beta)), step))

    # Bias correction folded into the rate (Kingma and Ba 2015, end of section 2), as in Keras.
    alpha = rate * np.sqrt(rest(spec.beta_2)) / rest(spec.beta_1)
    # Keras's order of operations: beta * m + (1 - beta) * g would round differently.
    m += (gradients - m) * rounded(1.0 - spec.beta_1)
    v += (gradients * gradients - v) * rounded(1.0 - spec.beta_2)
    if spec.amsgrad:
        values[3] = np.maximum(values[3], v)
        v = values[3]
    weights -= m * alpha / (np.sqrt(v) + rounded(spec.epsilon))


def _ftrl(spec: OptimizerSpec, rate: np.floating[Any], values: _Floats, gradients: _Floats) -> None:
    weights, accumulator, linear = values
    rounded = values.dtype.type
    raised = accumulator + gradients * gradients
    powered = _ftrl_power(spec, raised)
    # McMahan et al. 2013, algorithm 1: per-coordinate learning rates.
    sigma = (powered - _ftrl_power(spec, accumulator)) / rate
    linear += gradients + rounded(2.0 * spec.l2_shrinkage) * weights - sigma * weights
    ridge = rounded(2) * (rounded(spec.l2) + rounded(spec.beta) / (rounded(2) * rate))
    clipped = np.clip(linear, -rounded(spec.l1), rounded(spec.l1))
    weights[...] = (clipped - linear) / (powered / rate + ridge)
    accumulator[...] = raised


def _ftrl_power(spec: OptimizerSpec, x: _Floats) -> _Floats:
    if spec.learning_rate_power == -0.5:
        return np.sqrt(x)
    return np.power(x, x.dtype.type(-spec.learning_rate_power))
