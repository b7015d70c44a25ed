"""Update rules in NumPy, in float32 or float64.

They give the same bits as elasticdl/embedding/native/optimizer_kernels.h (a power other than a
root: within rounding).

Source of the formulae and of their order of operations: Keras 3, keras/src/optimizers/
{base_optimizer,sgd,adam,adagrad,ftrl}.py.
"""

from __future__ import annotations

import functools
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


def idle(spec: OptimizerSpec, last: int, steps: int, rate: float, values: _Floats) -> None:
    """Make up for `steps` steps without a gradient after step `last`, in place: [1 + slots, ...].

    Momentum and Adam's averages go on moving the weights then, as in Keras. Weights do not decay.
    Adam goes on at `rate`, the learning rate of step `last`, and its epsilon does not shrink beside
    the root of the second moment.
    """
    ratio = idle_ratio(spec)
    if ratio is None or steps < 1:
        return
    rounded = values.dtype.type
    if spec.kind is OptimizerKind.SGD:
        left = _power(ratio, steps)
        moved = float(steps) if ratio == 1 else ratio * (1.0 - left) / (1.0 - ratio)
        values[0] += values[1] * rounded(ratio * moved if spec.nesterov else moved)
        values[1] *= rounded(left)
        return
    corrections = _corrections(spec, ratio)
    after, end = (corrections[min(s, len(corrections) - 1)] for s in (last, last + steps))
    moved = rate * (after - _power(ratio, steps) * end)
    second = values[3] if spec.amsgrad else values[2]
    values[0] -= values[1] * rounded(moved) / (np.sqrt(second) + rounded(spec.epsilon))
    values[1] *= rounded(_power(spec.beta_1, steps))
    values[2] *= rounded(_power(spec.beta_2, steps))


def idle_ratio(spec: OptimizerSpec) -> float | None:
    """What an idle step leaves of the last movement; None if rows do not move, or move for ever."""
    if spec.kind is OptimizerKind.SGD and spec.momentum:
        return float(_cast(spec.momentum))
    if spec.kind is OptimizerKind.ADAM:
        ratio = spec.beta_1 if spec.amsgrad else spec.beta_1 / math.sqrt(spec.beta_2)
        return ratio if 0 < ratio < 1 else None
    return None


def _power(base: float, exponent: int) -> float:
    """As native/idle.h has it: the product of two powers that are in tables there."""
    low = exponent % 1024
    return math.pow(base, low) * math.pow(base, exponent - low)


@functools.lru_cache(maxsize=16)
def _corrections(spec: OptimizerSpec, ratio: float) -> list[float]:
    """By step s: the sum over j >= 1 of the bias correction of step s + j, times ratio^j."""
    steps = 1
    while steps < 1 << 16 and math.pow(max(spec.beta_1, spec.beta_2), steps) > 1e-12:
        steps *= 2
    sums = [ratio / (1.0 - ratio)]
    first, second = float(_cast(spec.beta_1)), float(_cast(spec.beta_2))
    for step in range(steps, 0, -1):
        correction = math.sqrt(1.0 - math.pow(second, step)) / (1.0 - math.pow(first, step))
        sums.append(ratio * (correction + sums[-1]))
    return sums[::-1]


def _cast(number: float) -> np.float32:
    """A number that Keras converts by `ops.cast`.

    TensorFlow makes it float32 first, whatever the target.
    """
    return np.float32(number)


def update(
    spec: OptimizerSpec,
    learning_rate: float,
    step: int,
    values: _Floats,
    gradients: _Floats,
    squares: _Floats | None = None,
) -> None:
    """Updates [1 + slots, ...] in place by gradients [...]: weights first, then slots. `squares`:
    what the rule takes for their squares.

    `step` is 1-based. Constants are rounded to the type of the values, as in Keras.
    """
    rounded = values.dtype.type
    rate = rounded(learning_rate)
    if squares is None:
        squares = gradients * gradients
    # Decoupled weight decay (AdamW): before the rule, as Keras does, with the same learning rate.
    if spec.weight_decay:
        values[0] -= values[0] * rounded(_cast(spec.weight_decay)) * rate
    match spec.kind:
        case OptimizerKind.SGD:
            _sgd(spec, rate, values, gradients)
        case OptimizerKind.ADAM:
            _adam(spec, rate, step, values, gradients, squares)
        case OptimizerKind.ADAGRAD:
            weights, accumulator = values
            accumulator += squares
            weights -= rate * gradients / np.sqrt(accumulator + rounded(spec.epsilon))
        case OptimizerKind.FTRL:
            _ftrl(spec, rate, values, gradients, squares)


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
    squares: _Floats,
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
    v += (squares - v) * rounded(1.0 - spec.beta_2)
    if spec.amsgrad:
        values[3] = np.maximum(values[3], v)
        v = values[3]
    weights -= m * alpha / (np.sqrt(v) + rounded(spec.epsilon))


def _ftrl(
    spec: OptimizerSpec,
    rate: np.floating[Any],
    values: _Floats,
    gradients: _Floats,
    squares: _Floats,
) -> None:
    weights, accumulator, linear = values
    rounded = values.dtype.type
    raised = accumulator + squares
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
