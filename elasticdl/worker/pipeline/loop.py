"""The loop of a worker: takes loaded batches in order of their leases and runs their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, final

from elasticdl.shard import Task
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.prefetch import Prefetch
from elasticdl.worker.pipeline.retry import NoLongerNeeded
from elasticdl.worker.pipeline.trainer import Loaded, Trainer
from elasticdl.worker.process.thread_queue import Ended

TASK_USES: Mapping[Task, TimeUse] = {
    # The step within it is a use of its own.
    Task.TRAINING: TimeUse.CALLBACKS,
    Task.EVALUATION: TimeUse.METRICS,
    Task.SUMMARY: TimeUse.SUMMARY,
    Task.PREDICTION: TimeUse.PREDICT,
    Task.EXPORT: TimeUse.EXPORT,
}
"""What the loop's time goes to while it runs a task."""


class TaskRunner(Protocol):
    """Handles the batches of one task."""

    def run(self, loaded: Loaded) -> None:
        """Handle one batch."""

    def leave(self) -> None:
        """The worker drains: report what is done of the current lease."""


@final
class Loop:
    """Runs in the main thread until there is no more work or the worker ends for another reason."""

    def __init__(
        self,
        loading: Prefetch,
        trainer: Trainer,
        tasks: Mapping[Task, TaskRunner],
        context: WorkerContext,
    ) -> None:
        self._loaded = loading.loaded
        self._trainer = trainer
        self._tasks = tasks
        self._context = context

    def run(self) -> None:
        """Run.

        Errors end the worker (see `Shutdown`) and this returns; a step that has begun is finished
        first.
        """
        try:
            while True:
                gauges = self._context.gauges
                with gauges.timed("wait_ms"), gauges.times.spending(None):
                    loaded = self._loaded.get()
                self._run_one(loaded)
        except Ended:
            return

    def leave(self) -> None:
        """The worker drains: report what is done of the current lease."""
        for task in self._tasks.values():
            task.leave()

    def _run_one(self, loaded: Loaded) -> None:
        held = loaded.batch.held
        with (
            self._context.shutdown.failing_for(held.lease),
            self._context.watch.doing(f"a {held.lease.task} step"),
        ):
            if self._context.keeper.is_void(held):
                self._trainer.drop(loaded)
                return
            # A task that pulls more may find only then that its lease is void.
            use = TASK_USES[held.lease.task]
            with suppress(NoLongerNeeded), self._context.gauges.times.spending(use):
                self._tasks[held.lease.task].run(loaded)
        if loaded.batch.last:
            # After the last batch was computed, not when it was read: the next lease keeps the
            # pipeline full without hoarding shards.
            self._context.keeper.worked_through(held)
