"""The mode that `feed` receives: why records are read."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from elasticdl.shard import Task


@final
class Mode(StrEnum):
    """Second argument of `feed`; it equals the plain string, too: `mode == "training"`."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"

    @classmethod
    def of(cls, task: Task) -> Mode:
        """The mode of a task that reads records."""
        return cls(task.value)
