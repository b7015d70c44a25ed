"""Puts a worker together for a job on the ring: the module, the model, the data, and the stages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from elasticdl.checkpoint import ring_file
from elasticdl.errors import UserError
from elasticdl.job import Action
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.export import export
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_rate import Rate
from elasticdl.model.ring_step import RingStep
from elasticdl.model.step import CompiledStep
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import Float32s, Int64s
from elasticdl.shard import SnapshotId, Task
from elasticdl.worker.assembly import Assignment, sources_of
from elasticdl.worker.callbacks import JobCallbacks, Occasion
from elasticdl.worker.evaluation import EvaluationTask, SummaryTask
from elasticdl.worker.exporting import ExportTask
from elasticdl.worker.loop import TaskRunner
from elasticdl.worker.reading import Sources
from elasticdl.worker.ring import HorovodRing
from elasticdl.worker.ring_forms import Forms
from elasticdl.worker.ring_marks import Copies, RingListener, RingMarks
from elasticdl.worker.ring_reading import ItemSource, RingReading
from elasticdl.worker.ring_state import Exchange
from elasticdl.worker.ring_trainer import Parts, RingTrainer
from elasticdl.worker.sampling import first_batch, first_features
from elasticdl.worker.surroundings import Surroundings


@final
@dataclass(frozen=True, slots=True)
class RingWorker:
    """All parts, not started yet."""

    assignment: Assignment
    sources: Sources
    trainer: RingTrainer
    reading: RingReading
    callbacks: JobCallbacks
    copies: Copies

    def settle(self, timeout_s: float) -> bool:
        """Whether all that was trained is told: it is as soon as `run` is over."""
        return True

    def leave(self) -> None:
        """Nothing of the ring's leases is this worker's to give back."""

    def run(self) -> None:
        """Warm up, and train until the ring has no more items. Raises Ended, UserError."""
        data = self.assignment.spec.data
        self.callbacks.begin({"epochs": data.num_epochs, "batch_size": data.minibatch_size})
        self.trainer.warm_up(first_batch(self.sources, Task.TRAINING))
        self.reading.start()
        self.trainer.run()


def assemble_ring(assignment: Assignment, host: str, source: ItemSource, forms: Forms, around: Surroundings) -> RingWorker:
    """Load the user's module, build the model and all stages. `host` is the master's.

    Raises UserError for whatever is wrong with the module, PermanentError without Horovod.
    """
    spec = assignment.spec
    ring = HorovodRing(master_host=host)
    module = load_module(spec.model)
    sources = sources_of(assignment, module)
    model = _model(assignment, module, sources)
    rate = Rate(model.optimizer, module)
    exchange = Exchange(ring, list(model.state().values()))
    served = model.served()
    step = CompiledStep(served, module)
    training = spec.action is Action.TRAIN
    occasion = Occasion(model.model, module.zoo, around.outbox, lambda _: None, bool(spec.data.validation_data), training)
    with user_code("callbacks", module.zoo):
        callbacks = JobCallbacks(list(module.callbacks() or ()) if module.callbacks else [], occasion)
    tasks: Mapping[Task, TaskRunner] = {
        Task.EVALUATION: EvaluationTask(step, around),
        Task.SUMMARY: SummaryTask(step, callbacks, around.outbox),
        Task.EXPORT: ExportTask(_Whole(), served.parameters, partial(export, served), assignment.output, around.outbox),
    }
    copies = Copies(exchange, list(model.state()), around)
    marks = RingMarks(source, sources, tasks, step, around)
    listener = RingListener(marks, copies, callbacks, rate, _Restoring(exchange, list(model.state())))
    reading = RingReading(source, sources, around.ending)
    parts = Parts(ring, exchange, RingStep(model, ring), reading, listener)
    trainer = RingTrainer(str(assignment.name), host, parts, around, forms)
    return RingWorker(assignment, sources, trainer, reading, callbacks, copies)


@final
class _Whole:
    """The `WholeModel` of a worker whose Keras variables are the whole model."""

    def dense(self, snapshot: SnapshotId | None) -> Float32s:
        return np.empty(0, np.float32)

    def rows(self, table: int, snapshot: SnapshotId | None) -> tuple[Int64s, Float32s]:
        raise AssertionError("a ring's model has no tables")


def _model(assignment: Assignment, module: ModelModule, sources: Sources) -> RingModel:
    """A model that has no inputs before it is called gets a first batch to be built with."""
    spec = assignment.spec
    try:
        return RingModel.build(module, spec.model.model_params, seed=spec.data.seed)
    except NeedsFeatures:
        features = first_features(sources, assignment.main_task)
        return RingModel.build(module, spec.model.model_params, seed=spec.data.seed, features=features)


@final
class _Restoring:
    """What a new ring begins with if nobody has a state any more."""

    def __init__(self, exchange: Exchange, names: Sequence[str]) -> None:
        self._exchange = exchange
        self._names = tuple(names)
        self._initial = exchange.copied()

    def __call__(self, directory: str) -> int:
        """Values of a checkpoint, or those that the model began with. The version."""
        if not directory:
            self._exchange.load(self._initial)
            return 0
        version, arrays = ring_file.read(Path(directory))
        for name, mine in zip(self._names, self._initial, strict=True):
            found = arrays.get(name)
            if found is None or found.shape != mine.shape or found.dtype != mine.dtype:
                what = "no such variable" if found is None else f"shape {found.shape}, {found.dtype}"
                raise UserError(
                    f"{directory} is of another model: {name} has shape {mine.shape}, {mine.dtype} here, and {what} there",
                    hint="use the checkpoint with the module and --model-params that it was made with",
                )
        if extra := [name for name in arrays if name not in self._names]:
            raise UserError(f"{directory} is of another model: it has {extra[0]}, which this one has not")
        self._exchange.load([arrays[name] for name in self._names])
        return version
