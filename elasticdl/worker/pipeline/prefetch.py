"""The stage between feed and step: pulls each batch's parameters, one or more steps ahead.

It drops batches of void leases, as the loop does after it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import final

from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.reading import Feeding
from elasticdl.worker.pipeline.retry import NoLongerNeeded
from elasticdl.worker.pipeline.trainer import Batch, Loaded, Trainer
from elasticdl.worker.process.thread_queue import Ended, ThreadQueue
from elasticdl.worker.process.time_account import Stage


@final
class Prefetch:
    """A thread that calls `Trainer.load`, and one that lets go of void leases.

    The trainer and this queue's depth bound how far ahead it runs.
    """

    def __init__(self, feeding: Feeding, trainer: Trainer, context: WorkerContext) -> None:
        self._batches = feeding.batches
        self._trainer = trainer
        self._context = context
        self.loaded: ThreadQueue[Loaded] = ThreadQueue(depth=1)
        context.shutdown.listen(self.loaded.close)

    def start(self) -> None:
        for name, run in (("loader", self._run), ("forget", self._forget)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def _forget(self) -> None:
        """Forget void leases. Pushes in progress are still reported when they are acknowledged."""
        try:
            while True:
                void = self._context.keeper.voided()
                self._trainer.after_all(partial(self._context.outbox.forget, void))
        except Ended:
            return

    def _run(self) -> None:
        self._context.gauges.times.join(Stage.LOAD)
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
            # What it waits for within is a use of its own.
            with self._context.gauges.times.spending(TimeUse.LOOKUP):
                loaded = self._trainer.load(batch)
        except NoLongerNeeded:
            return
        try:
            self.loaded.put(loaded)
        except Ended:
            self._trainer.drop(loaded)
            raise
