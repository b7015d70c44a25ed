"""Training with parameter servers: one step per batch, with the callbacks around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from elasticdl.worker.pipeline.trainer import Loaded, Trainer
from elasticdl.worker.process.hang_watch import HangWatch

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.worker.tasks.callbacks import JobCallbacks


@final
class TrainingTask:
    """Runs steps with the callbacks around them."""

    def __init__(self, trainer: Trainer, callbacks: JobCallbacks, watch: HangWatch) -> None:
        self._trainer = trainer
        self._callbacks = callbacks
        self._watch = watch

    def run(self, loaded: Loaded) -> None:
        # Named apart from the step: a callback may take far longer, at one step of many.
        with self._watch.doing("what callbacks do before a step"):
            self._callbacks.before_step(loaded.batch.held.lease)
        loss = self._trainer.train(loaded)
        with self._watch.doing("what callbacks do after a step"):
            self._callbacks.after_step(loss, self._trainer.version)

    def leave(self) -> None:
        """Do nothing: pushed steps count by themselves."""
