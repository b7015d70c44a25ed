"""Callbacks that a module's `callbacks()` may return, besides plain Keras callbacks.

They are markers: the worker inspects their types, and they do nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import keras


@final
class LearningRateScheduler(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Replace the optimizer's learning rate by `schedule(version)`, a function of an int."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        super().__init__()
        self.schedule = schedule


@final
class MaxStepsStopping(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """End the training when the model's version reaches `max_steps`."""

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self.max_steps = max_steps


@final
class SavedModelExporter(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Export the model to `--output` at the end of training.

    A job with `--output` does so without this callback, too.
    """
