"""The stage between feeding and computing: gets each batch its parameters, one or more steps ahead."""

from __future__ import annotations

import threading
from typing import final

from elasticdl.worker.handoff import Ended, Handoff
from elasticdl.worker.patience import Unwanted
from elasticdl.worker.reading import Feeding
from elasticdl.worker.surroundings import Surroundings
from elasticdl.worker.trainer import Batch, Loaded, Trainer


@final
class Loading:
    """A thread that calls `Trainer.load`. How far ahead it may be is the trainer's business, and this queue's depth."""

    def __init__(self, feeding: Feeding, trainer: Trainer, around: Surroundings) -> None:
        self._batches = feeding.batches
        self._trainer = trainer
        self._around = around
        self.loaded: Handoff[Loaded] = Handoff(depth=1)
        around.ending.listen(self.loaded.close)

    def start(self) -> None:
        """Begin to load."""
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def revoke(self, era: int) -> None:
        """The master voided the leases of eras before this one: drop what of them is not pushed.

        A push under way is still told when it is acknowledged.
        """
        keeper = self._around.keeper
        void = keeper.revoke(era)
        self._batches.drop(lambda batch: keeper.is_void(batch.held))
        for loaded in self.loaded.drop(lambda loaded: keeper.is_void(loaded.batch.held)):
            self._trainer.drop(loaded)
        self._trainer.after_all(lambda: self._around.outbox.forget(void))

    def _run(self) -> None:
        try:
            while True:
                batch = self._batches.get()
                with self._around.ending.failing_for(batch.held.lease):
                    self._load(batch)
        except Ended:
            self.loaded.finish()

    def _load(self, batch: Batch) -> None:
        if self._around.keeper.is_void(batch.held):
            return
        try:
            loaded = self._trainer.load(batch)
        except Unwanted:
            return
        try:
            self.loaded.put(loaded)
        except Ended:
            self._trainer.drop(loaded)
            raise
