"""The loop of a worker: takes loaded batches in the order of their leases and runs each by its task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, final

from elasticdl.shard import Task
from elasticdl.worker.handoff import Ended
from elasticdl.worker.loading import Loading
from elasticdl.worker.patience import Unwanted
from elasticdl.worker.surroundings import Surroundings
from elasticdl.worker.trainer import Loaded, Trainer

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.worker.callbacks import JobCallbacks


class TaskRunner(Protocol):
    """What is done with the batches of one task."""

    def run(self, loaded: Loaded) -> None:
        """One batch."""

    def leave(self) -> None:
        """The worker drains: let count what is done of the current lease."""


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


@final
class Loop:
    """Runs in the main thread until there is no more work or the worker ends for another reason."""

    def __init__(self, loading: Loading, trainer: Trainer, tasks: Mapping[Task, TaskRunner], around: Surroundings) -> None:
        self._loaded = loading.loaded
        self._trainer = trainer
        self._tasks = tasks
        self._around = around

    def run(self) -> None:
        """Work. Errors end the worker (see `Ending`) and this returns; a step that was begun is finished first."""
        try:
            while True:
                with self._around.gauges.timed("wait_ms"):
                    loaded = self._loaded.get()
                self._run_one(loaded)
        except Ended:
            return

    def leave(self) -> None:
        """The worker drains: let count what is done of the current lease."""
        for task in self._tasks.values():
            task.leave()

    def _run_one(self, loaded: Loaded) -> None:
        held = loaded.batch.held
        with self._around.ending.failing_for(held.lease), self._around.watch.doing(f"a {held.lease.task} step"):
            if self._around.keeper.is_void(held):
                self._trainer.drop(loaded)
                return
            # A task that asks servers for more may learn only then that its lease is void.
            with suppress(Unwanted):
                self._tasks[held.lease.task].run(loaded)
        if loaded.batch.last:
            self._around.keeper.worked_through(held)
