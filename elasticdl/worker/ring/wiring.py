"""Assemble a worker for a job on the ring: module, model, data, and the stages between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from elasticdl.job_choices import Action
from elasticdl.model.export import export
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_rate import Rate
from elasticdl.model.ring_step import RingStep
from elasticdl.model.step import CompiledStep
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import Floats, Int64s
from elasticdl.shard import Lease, Task
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.relay import RelayThread
from elasticdl.worker.pipeline.assignment import Assignment, sources_of
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.first_batch import first_batch
from elasticdl.worker.pipeline.loop import TaskRunner
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.ring.barriers import BarrierTasks, Copies, RingListener
from elasticdl.worker.ring.exchange import Exchange
from elasticdl.worker.ring.generations import Generations
from elasticdl.worker.ring.reading import ItemSource, RingReading
from elasticdl.worker.ring.ring import HorovodRing
from elasticdl.worker.ring.rounds import RingRounds
from elasticdl.worker.ring.trainer import RingTrainer
from elasticdl.worker.ring.trainer_deps import RingDeps
from elasticdl.worker.ring.virtual_step import VirtualStep, use_one_thread
from elasticdl.worker.ring.weights import Restoring, built
from elasticdl.worker.tasks.callback_files import CallbackFiles
from elasticdl.worker.tasks.callbacks import JobCallbacks, Occasion
from elasticdl.worker.tasks.evaluation import EvaluationTask, SummaryTask
from elasticdl.worker.tasks.export import ExportTask
from elasticdl.worker.tasks.export_folders import export_folders


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
        """Whether everything trained is reported: always, once `run` has returned."""
        return True

    def leave(self) -> None:
        """Do nothing: the ring's leases do not belong to one worker."""

    def run(self) -> None:
        """Compile, and train until the ring has no more items. Raises Ended, UserError."""
        data = self.assignment.spec.data
        self.callbacks.begin({"epochs": data.num_epochs, "batch_size": data.minibatch_size})
        # Compile before joining: the other members would have to wait for it.
        self.trainer.warm_up(first_batch(self.sources, Task.TRAINING))
        self.reading.read_ahead()
        self.reading.start()
        self.copies.start()
        self.trainer.run()


@final
@dataclass(frozen=True, slots=True)
class MasterOfRing:
    """The master's host, and the certificate that verifies it, as PEM; None: clear text."""

    host: str
    authority: str | None


def assemble_ring(
    assignment: Assignment,
    master: MasterOfRing,
    source: ItemSource,
    generations: Generations,
    context: WorkerContext,
) -> RingWorker:
    """Load the user's module, build the model and all stages.

    Raises UserError for any mistake in the module, CannotRun without Horovod.
    """
    spec = assignment.spec
    virtual = spec.training.virtual_workers
    ring = _ring(master, virtual)
    module = load_module(spec.model)
    sources = sources_of(assignment, module, context.watch.moving)
    model = built(assignment, module, sources)
    rate = Rate(model.optimizer, module)
    exchange = Exchange(ring, list(model.state().values()))
    step = CompiledStep(ps_model := model.ps_model(), module)
    callbacks = _callbacks(assignment, module, model, context)
    tasks: Mapping[Task, TaskRunner] = {
        Task.EVALUATION: EvaluationTask(step, context),
        Task.SUMMARY: SummaryTask(step, RingRounds(callbacks, model), context.outbox),
        Task.EXPORT: _export_task(assignment, ps_model, module, context),
    }
    names = list(model.state())
    copies = Copies(exchange, names, generations.copies, context)
    marks = BarrierTasks(source, sources, tasks, step, context)
    listener = RingListener(marks, copies, callbacks, rate, Restoring(exchange, names))
    reading = RingReading(
        source,
        sources,
        context.watch,
        context.shutdown,
        generations.changed,
        context.gauges.times,
        virtual,
    )
    ring_step = VirtualStep(model, ring, virtual) if virtual else RingStep(model, ring)
    parts = RingDeps(ring, exchange, ring_step, reading, listener, virtual)
    trainer = RingTrainer(str(assignment.name), master.host, parts, context, generations)
    return RingWorker(assignment, sources, trainer, reading, callbacks, copies)


def _export_task(
    assignment: Assignment, ps_model: PsModel, module: ModelModule, context: WorkerContext
) -> ExportTask:
    return ExportTask(
        _NoServers(),
        ps_model.parameters,
        partial(export, ps_model, zoo=module.zoo),
        assignment.output,
        export_folders(
            assignment.output, assignment.spec.checkpoint.keep_export_max, assignment.run
        ),
        context.outbox,
    )


def _callbacks(
    assignment: Assignment, module: ModelModule, model: RingModel, context: WorkerContext
) -> JobCallbacks:
    spec = assignment.spec
    training, validates = spec.action is Action.TRAIN, bool(spec.data.validation_data)
    files = CallbackFiles(assignment.job_dir, assignment.name, validates)
    occasion = Occasion(
        model.model, module.zoo, context.outbox, lambda _: None, validates, training, files
    )
    with user_code("callbacks", module.zoo):
        callbacks = module.callbacks() if module.callbacks else None
        return JobCallbacks(list(callbacks or ()), occasion)


def _ring(master: MasterOfRing, virtual_workers: int) -> HorovodRing:
    if virtual_workers:  # before Horovod makes TensorFlow run something
        use_one_thread()
    relay = RelayThread(master.authority, MASTER_NAME) if master.authority is not None else None
    return HorovodRing(master_host=master.host, relay=relay)


@final
class _NoServers:
    """The `ParameterReader` of a worker whose Keras variables are the whole model."""

    def dense_of(self, lease: Lease) -> Floats:
        return np.empty(0, np.float32)

    def rows_of(self, lease: Lease, table: int) -> Iterator[tuple[Int64s, Floats]]:
        raise AssertionError("a ring's model has no tables")
