"""A worker's identity and job, and the readers of the job's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from elasticdl.cluster.base import ProcessName
from elasticdl.data import open_custom_reader, open_reader
from elasticdl.data.base import Reader
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule
from elasticdl.model.usercode import user_code
from elasticdl.rpc.conversation import Attached
from elasticdl.shard import Source, Task
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.user_reader import UserReader


@dataclass(frozen=True, slots=True)
class Assignment:
    """The identity of this worker, and its job."""

    name: ProcessName
    spec: JobSpec
    job_dir: Path
    run: str
    """The name of this run of the job."""
    sources: tuple[Source, ...]
    """All data of the job, as it was when its records were counted."""

    @classmethod
    def of(cls, name: ProcessName, job_dir: Path, attached: Attached) -> Assignment:
        """What the master's answer gives to the worker `name`."""
        return cls(name, attached.spec, job_dir, attached.run, attached.sources)

    @property
    def output(self) -> str:
        """The directory or address of predictions, or of an export."""
        return self.spec.checkpoint.output or str(self.job_dir / "export")

    def origin(self, task: Task) -> str:
        """The name of a task's data."""
        data = self.spec.data
        return {Task.EVALUATION: data.validation_data, Task.PREDICTION: data.prediction_data}.get(
            task, data.training_data
        )

    @property
    def main_task(self) -> Task:
        """The task whose data always exists."""
        return {Action.EVALUATE: Task.EVALUATION, Action.PREDICT: Task.PREDICTION}.get(
            self.spec.action, Task.TRAINING
        )


def sources_of(
    assignment: Assignment, module: ModelModule, moving: Callable[[], None] = lambda: None
) -> Sources:
    """Readers and feeds, opened once per task. `moving`: see `open_reader`."""
    data = assignment.spec.data

    @cache
    def reader(task: Task) -> Reader:
        origin = assignment.origin(task)
        if module.custom_data_reader is None:
            return open_reader(
                origin,
                data.data_reader_params,
                max_bad_records=data.max_bad_records,
                counted=assignment.sources,
                moving=moving,
            )
        with user_code("custom_data_reader", module.zoo):
            records_per_task = data.records_per_task or None
            inner = open_custom_reader(
                module.custom_data_reader,
                origin,
                data.data_reader_params,
                records_per_task=records_per_task,
            )
        # Built-in readers compare the data themselves.
        return UserReader(inner, module.zoo, assignment.sources)

    @cache
    def feed(task: Task) -> Feeder:
        return Feeder(module, task, reader(task).metadata)

    return Sources(
        reader,
        feed,
        data.minibatch_size,
        data.max_bad_records,
        open_features=lambda task: feed(task).open_features(),
        training_window=assignment.spec.training_window,
    )
