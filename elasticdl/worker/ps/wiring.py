"""Assemble a worker for one job: the module, the model, the data, and the stages between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from elasticdl.errors import PermanentError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.export import export
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import Parameters
from elasticdl.shard import Lease, Task
from elasticdl.worker.pipeline.assignment import Assignment, sources_of
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.first_batch import first_features
from elasticdl.worker.pipeline.loop import Loop, TaskRunner
from elasticdl.worker.pipeline.prefetch import Prefetch
from elasticdl.worker.pipeline.reading import Feeding, ShardReading, Sources
from elasticdl.worker.ps.trainer import Bounds, PsTrainer
from elasticdl.worker.ps.turns import Turns
from elasticdl.worker.tasks.callback_files import CallbackFiles
from elasticdl.worker.tasks.callbacks import JobCallbacks, Occasion
from elasticdl.worker.tasks.evaluation import EvaluationTask, SummaryTask
from elasticdl.worker.tasks.export import ExportTask
from elasticdl.worker.tasks.export_folders import export_folders
from elasticdl.worker.tasks.prediction import (
    FileSink,
    PredictionTask,
    Processor,
    ProcessorSink,
    Sink,
)
from elasticdl.worker.tasks.prediction_files import prediction_files
from elasticdl.worker.tasks.training import TrainingTask


@final
@dataclass(frozen=True, slots=True)
class Worker:
    """All parts, not started yet."""

    assignment: Assignment
    ps_model: PsModel
    trainer: PsTrainer
    callbacks: JobCallbacks
    loop: Loop
    stages: tuple[ShardReading | Feeding | Prefetch, ...]

    def run(self) -> None:
        """Work until there is no more work, or the worker ends."""
        self.loop.run()

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything trained is pushed and reported.

        False if that takes longer or fails.
        """
        return self.trainer.settle(timeout_s)

    def leave(self) -> None:
        """The worker drains."""
        self.loop.leave()

    def start(self) -> bool:
        """Give the servers initial values and start all stages; the loop runs after that.

        False if all servers had values already. Raises PermanentError if a job without training
        finds no trained parameters on the servers.
        """
        spec = self.assignment.spec
        initialised = self.trainer.start(self.ps_model.parameters, self.ps_model.dense())
        if initialised and spec.action is not Action.TRAIN:
            raise PermanentError(
                "the parameter servers have no trained parameters",
                hint="set --checkpoint-dir-for-init to a checkpoint",
            )
        self.callbacks.begin(
            {"epochs": spec.data.num_epochs, "batch_size": spec.data.minibatch_size}
        )
        # The readers start last: until the servers have values, a batch could not be loaded.
        for stage in self.stages:
            stage.start()
        return initialised


def assemble(
    assignment: Assignment,
    parameters: Parameters,
    context: WorkerContext,
    turns: Turns | None = None,
) -> Worker:
    """Load the user's module, build the model and all stages.

    `turns`: train in synchronous steps. Raises UserError for any mistake in the module.
    """
    module = load_module(assignment.spec.model)
    sources = sources_of(assignment, module, context.watch.moving)
    ps_model, step = _model(assignment, module, sources)
    pieces = Pieces(assignment, module, sources, ps_model, step)
    return put_together(pieces, parameters, context, turns)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts that the stages of a worker use."""

    assignment: Assignment
    module: ModelModule
    sources: Sources
    ps_model: PsModel
    step: CompiledStep


def put_together(
    pieces: Pieces, parameters: Parameters, context: WorkerContext, turns: Turns | None = None
) -> Worker:
    """Build all stages around a model and its step.

    Raises UserError for a mistake in the module's callbacks.
    """
    assignment, module, sources, ps_model, step = (
        pieces.assignment,
        pieces.module,
        pieces.sources,
        pieces.ps_model,
        pieces.step,
    )
    trainer = PsTrainer(step, parameters, context, _bounds(assignment.spec, ps_model), turns=turns)
    callbacks = _callbacks(pieces, trainer, context)
    tasks: Mapping[Task, TaskRunner] = {
        Task.TRAINING: TrainingTask(trainer, callbacks, context.watch),
        Task.EVALUATION: EvaluationTask(step, context),
        Task.SUMMARY: SummaryTask(step, callbacks, context.outbox),
        Task.PREDICTION: PredictionTask(step, _sink(assignment, module, context), context),
        Task.EXPORT: ExportTask(
            trainer,
            ps_model.parameters,
            partial(export, ps_model, zoo=module.zoo),
            assignment.output,
            export_folders(
                assignment.output, assignment.spec.checkpoint.keep_export_max, assignment.run
            ),
            context.outbox,
        ),
    }
    reading = ShardReading(sources, context)
    feeding = Feeding(reading, sources, context)
    loading = Prefetch(feeding, trainer, context)
    loop = Loop(loading, trainer, tasks, context)
    return Worker(assignment, ps_model, trainer, callbacks, loop, (reading, feeding, loading))


def _callbacks(pieces: Pieces, trainer: PsTrainer, context: WorkerContext) -> JobCallbacks:
    assignment, module, ps_model = pieces.assignment, pieces.module, pieces.ps_model

    def refresh(lease: Lease) -> None:
        ps_model.set_dense(trainer.dense_of(lease))

    validates = bool(assignment.spec.data.validation_data)
    occasion = Occasion(
        ps_model.model,
        module.zoo,
        context.outbox,
        refresh,
        validates,
        assignment.spec.action is Action.TRAIN,
        CallbackFiles(assignment.job_dir, assignment.name, validates),
        ps_model.optimizer,
    )
    with user_code("callbacks", module.zoo):
        return JobCallbacks(list(module.callbacks() or ()) if module.callbacks else [], occasion)


def _model(
    assignment: Assignment, module: ModelModule, sources: Sources
) -> tuple[PsModel, CompiledStep]:
    """The model and its step.

    A model without inputs before its first call is built with a first batch.
    """
    spec = assignment.spec
    build = partial(
        PsModel.build,
        module,
        spec.model.model_params,
        threshold_bytes=spec.training.embedding_threshold_bytes,
        seed=spec.data.seed,
    )
    try:
        ps_model = build()
    except NeedsFeatures:
        features = first_features(sources, assignment.main_task)
        ps_model = replace(
            build(features=features), open_inputs=sources.open_features(assignment.main_task)
        )
        step = CompiledStep(ps_model, module)
        step.prepare(features)
        return ps_model, step
    return ps_model, CompiledStep(ps_model, module)


def _bounds(spec: JobSpec, ps_model: PsModel) -> Bounds:
    staleness, nonfinite = spec.training.max_staleness, spec.training.max_nonfinite_steps
    if spec.trains_in_steps:
        return Bounds(0, max_nonfinite_steps=nonfinite)
    if staleness != "auto":
        return Bounds(staleness, max_nonfinite_steps=nonfinite)
    # Momentum 0.9 repeats a stale gradient in ten steps; docs/explanation/staleness.md measures it.
    momentum = ps_model.parameters.optimizer.momentum
    return Bounds(0 if momentum else 1, adaptive=True, max_nonfinite_steps=nonfinite)


def _sink(assignment: Assignment, module: ModelModule, context: WorkerContext) -> Sink:
    if module.prediction_outputs_processor is None or assignment.spec.action is not Action.PREDICT:
        return FileSink(prediction_files(assignment.output), context)
    with user_code("PredictionOutputsProcessor", module.zoo):
        processor: Processor = module.prediction_outputs_processor()
    return ProcessorSink(processor, module.zoo, assignment.name.index, context)
