"""Update rules in NumPy: the same bits as native/optimizer_kernels.h (a power other than a root:
within rounding).

Source of the formulae and of their order of float32 operations: Keras 3, keras/src/optimizers/
{base_optimizer,sgd,adam,adagrad,ftrl}.py.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec

_F = np.float32
_Floats = NDArray[np.float32]


def initial_slot(spec: OptimizerSpec, slot: int) -> np.float32:
    """What slot `slot` holds before the first update."""
    accumulates = spec.kind in (OptimizerKind.ADAGRAD, OptimizerKind.FTRL)
    return _F(spec.initial_accumulator_value if accumulates and slot == 0 else 0.0)


def update(
    spec: OptimizerSpec, rate: np.float32, step: int, values: _Floats, gradients: _Floats
) -> None:
    """Updates float32[1 + slots, ...] in place by float32[...]: weights first, then slots.

    `step` is 1-based.
    """
    # Decoupled weight decay (AdamW): before the rule, as Keras does, with the same learning rate.
    if spec.weight_decay:
        values[0] -= values[0] * _F(spec.weight_decay) * rate
    match spec.kind:
        case OptimizerKind.SGD:
            _sgd(spec, rate, values, gradients)
        case OptimizerKind.ADAM:
            _adam(spec, rate, step, values, gradients)
        case OptimizerKind.ADAGRAD:
            weights, accumulator = values
            accumulator += gradients * gradients
            weights -= rate * gradients / np.sqrt(accumulator + _F(spec.epsilon))
        case OptimizerKind.FTRL:
            _ftrl(spec, rate, values, gradients)


def _sgd(spec: OptimizerSpec, rate: np.float32, values: _Floats, gradients: _Floats) -> None:
    weights = values[0]
    if not spec.momentum:
        weights -= gradients * rate
        return
    momentum = values[1]
    momentum[...] = momentum * _F(spec.momentum) - gradients * rate
    weights += momentum * _F(spec.momentum) - gradients * rate if spec.nesterov else momentum


def _adam(
    spec: OptimizerSpec, rate: np.float32, step: int, values: _Floats, gradients: _Floats
) -> None:
    weights, m, v = values[:3]
    # Bias correction folded into the rate (Kingma and Ba 2015, end of section 2), as in Keras.
    alpha = rate * np.sqrt(_F(1) - _power(spec.beta_2, step)) / (_F(1) - _power(spec.beta_1, step))
    # Keras's order of operations: beta * m + (1 - beta) * g would round differently.
    m += (gradients - m) * _F(1.0 - spec.beta_1)
    v += (gradients * gradients - v) * _F(1.0 - spec.beta_2)
    if spec.amsgrad:
        values[3] = np.maximum(values[3], v)
        v = values[3]
    weights -= m * alpha / (np.sqrt(v) + _F(spec.epsilon))


def _power(beta: float, step: int) -> np.float32:
    return _F(math.pow(float(_F(beta)), step))


def _ftrl(spec: OptimizerSpec, rate: np.float32, values: _Floats, gradients: _Floats) -> None:
    weights, accumulator, linear = values
    raised = accumulator + gradients * gradients
    powered = _ftrl_power(spec, raised)
    # McMahan et al. 2013, algorithm 1: per-coordinate learning rates.
    sigma = (powered - _ftrl_power(spec, accumulator)) / rate
    linear += gradients + _F(2.0 * spec.l2_shrinkage) * weights - sigma * weights
    ridge = _F(2) * (_F(spec.l2) + _F(spec.beta) / (_F(2) * rate))
    clipped = np.clip(linear, -_F(spec.l1), _F(spec.l1))
    weights[...] = (clipped - linear) / (powered / rate + ridge)
    accumulator[...] = raised


def _ftrl_power(spec: OptimizerSpec, x: _Floats) -> _Floats:
    return (
        np.sqrt(x)
        if spec.learning_rate_power == -0.5
        else np.power(x, _F(-spec.learning_rate_power))
    )
