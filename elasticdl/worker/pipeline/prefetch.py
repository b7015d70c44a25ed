"""The stage between feed and step: pulls each batch's parameters, one or more steps ahead."""

from __future__ import annotations

import threading
from typing import final

from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.reading import Feeding
from elasticdl.worker.pipeline.retry import NoLongerNeeded
from elasticdl.worker.pipeline.trainer import Batch, Loaded, Trainer
from elasticdl.worker.process.channel import Channel, Ended


@final
class Prefetch:
    """A thread that calls `Trainer.load`.

    The trainer and this queue's depth bound how far ahead it runs.
    """

    def __init__(self, feeding: Feeding, trainer: Trainer, context: WorkerContext) -> None:
        self._batches = feeding.batches
        self._trainer = trainer
        self._context = context
        self.loaded: Channel[Loaded] = Channel(depth=1)
        context.shutdown.listen(self.loaded.close)

    def start(self) -> None:
        """Start to load."""
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def revoke(self, revocation: int) -> None:
        """Drop the unpushed work of leases that the master voided: those of earlier revocations.

        A push in progress is still reported when it is acknowledged.
        """
        keeper = self._context.keeper
        void = keeper.revoke(revocation)
        self._batches.drop(lambda batch: keeper.is_void(batch.held))
        for loaded in self.loaded.drop(lambda loaded: keeper.is_void(loaded.batch.held)):
            self._trainer.drop(loaded)
        self._trainer.after_all(lambda: self._context.outbox.forget(void))

    def _run(self) -> None:
        try:
            while True:
                batch = self._batches.get()
                with self._context.shutdown.failing_for(batch.held.lease):
                    self._load(batch)
        except Ended:
            self.loaded.finish()

    def _load(self, batch: Batch) -> None:
        if self._context.keeper.is_void(batch.held):
            return
        try:
            loaded = self._trainer.load(batch)
        except NoLongerNeeded:
            return
        try:
            self.loaded.put(loaded)
        except Ended:
            self._trainer.drop(loaded)
            raise
