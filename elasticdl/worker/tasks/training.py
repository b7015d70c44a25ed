"""Training leases with parameter servers: one step a batch, and the callbacks around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from elasticdl.worker.pipeline.trainer import Loaded, Trainer

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.worker.tasks.callbacks import JobCallbacks


@final
class TrainingTask:
    """Steps, with the callbacks around them."""

    def __init__(self, trainer: Trainer, callbacks: JobCallbacks) -> None:
        self._trainer = trainer
        self._callbacks = callbacks

    def run(self, loaded: Loaded) -> None:
        """One step."""
        self._callbacks.before_step(loaded.batch.held.lease)
        loss = self._trainer.train(loaded)
        self._callbacks.after_step(loss, self._trainer.version)

    def leave(self) -> None:
        """Steps that were pushed count by themselves."""
