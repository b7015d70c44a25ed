"""The learning rate on a ring: the module's rate times the master's factor for larger batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import keras

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import Optimizer, schedule_of, with_rate
from elasticdl.model.usercode import user_code


@final
class Rate:
    """Sets the optimizer's learning rate before each step.

    Create it before the optimizer is traced.

    A `LearningRateScheduler` of the module takes precedence over the optimizer's number. Callbacks
    may change that number at any time. A job that trains has no such scheduler beside an optimizer
    with a schedule of its own.
    """

    def __init__(self, optimizer: Optimizer, module: ModelModule) -> None:
        self._optimizer = optimizer = with_rate(optimizer)
        self._zoo = module.zoo
        self._schedule = schedule_of(module)
        self._scale = keras.Variable(1.0, dtype="float32", trainable=False, name="rate_scale")
        self._plain = isinstance(optimizer._learning_rate, keras.Variable)
        self._scaled = 1.0
        if not self._plain:
            optimizer._learning_rate = _Scaled(optimizer._learning_rate, self._scale)

    def set(self, version: int, scale: float) -> None:
        """Set the rate for the step after `version`.

        Raises UserError if the module's schedule raises.
        """
        if self._plain:
            variable = self._optimizer._learning_rate
            if self._schedule is not None:
                with user_code("the learning rate schedule", self._zoo):
                    variable.assign(float(self._schedule(version)) * scale)
            elif scale != self._scaled:
                variable.assign(float(variable.numpy()) / self._scaled * scale)
        elif scale != self._scaled:
            self._scale.assign(scale)
        self._scaled = scale


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """A schedule, or a function without arguments, times a variable."""

    def __init__(self, inner: Callable[..., Any], scale: keras.Variable) -> None:
        self._inner = inner
        self._scale = scale

    def __call__(self, step: Tensor) -> Tensor:
        is_schedule = isinstance(self._inner, keras.optimizers.schedules.LearningRateSchedule)
        rate = self._inner(step) if is_schedule else self._inner()
        return rate * keras.ops.cast(
            self._scale, keras.ops.dtype(rate) if keras.ops.is_tensor(rate) else "float32"
        )

    def get_config(self) -> dict[str, Any]:
        """Required by Keras."""
        return {}
