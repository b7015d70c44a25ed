"""What a callback may read of the optimizer that the parameter servers apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import keras
import tensorflow as tf

from elasticdl.model.optimizers import Optimizer, learning_rate


@final
class OptimizerView:
    """`model.optimizer` of a job with parameter servers: its learning rate and its iterations.

    Both are scalar tensors, as callbacks read them with `float` or `.numpy()`. The servers have the
    optimizer's other state. Setting anything raises AttributeError.
    """

    __slots__ = ("_optimizer", "_schedule", "_version")
    _optimizer: Optimizer
    _schedule: Callable[[int], float] | None
    _version: Callable[[], int]

    def __init__(
        self,
        optimizer: Optimizer,
        version: Callable[[], int],
        schedule: Callable[[int], float] | None = None,
    ) -> None:
        """`version` returns the model's newest known version.

        `schedule` is that of the module's `LearningRateScheduler`, which replaces the rate.
        """
        for name, value in zip(self.__slots__, (optimizer, schedule, version), strict=True):
            object.__setattr__(self, name, value)

    @property
    def iterations(self) -> tf.Tensor:
        """int64 scalar: the updates so far, which is the model's version."""
        return tf.constant(self._version(), tf.int64)

    @property
    def learning_rate(self) -> tf.Tensor:
        """Scalar of `floatx`: the rate of the next step."""
        dtype = keras.config.floatx()
        if self._schedule is not None:
            return tf.constant(self._schedule(self._version()), dtype)
        rate = learning_rate(self._optimizer)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(self._version())
        return tf.constant(float(rate() if callable(rate) else rate), dtype)

    lr = learning_rate

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot set {name} of the optimizer: the parameter servers apply it; use"
            " elasticdl.model.callbacks.LearningRateScheduler to change the learning rate"
        )

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"a callback cannot read {name} of the optimizer, which the parameter servers apply:"
            " only learning_rate and iterations"
        )
