"""Callbacks that a model module's `callbacks()` may return, besides plain Keras callbacks.

The worker looks at their types; they do nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import keras


@final
class LearningRateScheduler(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """The learning rate is `schedule(version)`, a float, instead of the optimizer's; `version` is
    an int.
    """

    def __init__(self, schedule: Callable[[int], float]) -> None:
        super().__init__()
        self.schedule = schedule


@final
class MaxStepsStopping(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """End the training when the model's version reached `max_steps`."""

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self.max_steps = max_steps


@final
class SavedModelExporter(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Export the model to `--output` at the end of training.

    Exports happen anyway where `--output` is given.
    """
