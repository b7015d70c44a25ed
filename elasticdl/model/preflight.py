"""Validate a model and its data before a job starts: count records, try a step of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, final

from elasticdl.addresses import is_address
from elasticdl.checkpoint import copies, directories
from elasticdl.cluster.local.machine import CUDA_VISIBLE, member_gpus
from elasticdl.data import open_custom_reader, open_reader
from elasticdl.data.base import Block, Reader
from elasticdl.data.custom import NotAReader
from elasticdl.data.origins import require
from elasticdl.errors import Corrupted, PermanentError, UserError
from elasticdl.formatting import BUILDING, amount
from elasticdl.job import DATA_FLAGS, JobSpec
from elasticdl.job_choices import Action, Strategy
from elasticdl.jobdir.output_folder import refuse_output_address
from elasticdl.jobdir.working_directory import directory_of
from elasticdl.model.bad_record_filter import BadRecordFilter, Fed
from elasticdl.model.checkpoint_fit import check_checkpoint
from elasticdl.model.dry_run import (
    DryRun,
    begin_callbacks,
    check_callbacks,
    check_destination,
    check_processor,
    process_once,
)
from elasticdl.model.horovod import horovod, refuse_shared_gpus
from elasticdl.model.input import Feeder, grouping
from elasticdl.model.metrics import LOSS
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import clips, refuse_two_schedules
from elasticdl.model.output_arrays import file_arrays
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import RingModel
from elasticdl.model.stages import Stages
from elasticdl.model.step import CompiledStep
from elasticdl.model.structure import Structure
from elasticdl.model.sync_choice import sync_choice
from elasticdl.model.usercode import place, user_code
from elasticdl.shard import Shard, ShardId, Source, Task
from elasticdl.storage.folders import try_to_write

_FIRST_BATCHES = 8
"""Minibatches to try before it is an error that `feed` keeps none of their records."""


@final
@dataclass(slots=True)
class TaskData:
    """The sources of one task, and its first batch."""

    sources: Sequence[Source]
    features: Structure
    labels: Structure


@final
@dataclass(slots=True)
class JobPreflight:
    """The preflight of one job."""

    spec: JobSpec
    module: ModelModule
    stages: Stages = field(default_factory=Stages)
    data: dict[Task, TaskData] = field(default_factory=dict)
    columns: dict[Task, Sequence[str]] = field(default_factory=dict)
    """The names of the columns of each task's data, where its format has names."""
    warnings: list[str] = field(default_factory=list)
    processes: bool = False
    """Whether the module's processor gets the predictions of the first batch."""
    again: bool = False
    """Whether an earlier master of the job may have written results already."""
    grouping: str = ""
    """The likely mistake in `feed`, for when the model rejects its output."""

    def run(self) -> dict[str, Any]:
        """Check everything and return the result, ready for JSON.

        Raises UserError for the first problem, and CannotRun without Horovod for a ring.
        """
        if self.spec.trains_on_ring:
            self._check_ring()
        refuse_output_address(self.spec, again=self.again)
        self._refuse_checkpoint_address()
        if is_address(self.spec.checkpoint.tensorboard_log_dir):
            try_to_write(self.spec.checkpoint.tensorboard_log_dir)
        if self.spec.action is Action.PREDICT:
            check_destination(self.module, self.spec.checkpoint.output)
        for task, origin in self.spec.origins().items():
            self.stages.begin(f"reading the {task} data")
            with self._about_columns(task):
                self.data[task] = self._data(task, origin)
        self.warnings += check_callbacks(
            self.module, on_ring=self.spec.training.distribution_strategy is Strategy.ALLREDUCE
        )
        try:
            self.stages.begin(BUILDING)
            dry_run = self._dry_run()
            self._refuse_another_model(dry_run)
            self.stages.begin("trying one step of each kind")
            tried = self._try(dry_run)
            if self.spec.action is Action.TRAIN:
                on_ring = self.spec.trains_on_ring
                begin_callbacks(self.module, dry_run.ps_model, on_ring=on_ring)
                self._warn_if_nothing_trains(dry_run.ps_model)
        except UserError as error:
            error.hint = self.grouping or error.hint
            raise
        if self.spec.action is Action.TRAIN:
            refuse_two_schedules(self.module, dry_run.ps_model.optimizer)
        check_processor(self.module)
        return {
            "ok": True,
            **self._sources(),
            "steps": sync_choice(
                self.spec,
                dry_run.ps_model.optimizer,
                self._training_records(),
                has_tables=bool(dry_run.ps_model.tables),
            ).as_json(),
            "model": {**dry_run.summary(), **tried},
            "warnings": self.warnings,
        }

    def _check_ring(self) -> None:
        """Raise CannotRun without Horovod, UserError if members would share a GPU."""
        built = horovod()
        if not self.spec.on_kubernetes:
            envs = self.spec.cluster.envs
            gpus = len(member_gpus(envs, os.environ))
            workers = self.spec.cluster.num_workers
            refuse_shared_gpus(built, workers, gpus, of_envs=CUDA_VISIBLE in envs)

    def _refuse_checkpoint_address(self) -> None:
        """Raise UserError if the job cannot begin with a stored checkpoint, or store its own."""
        kept = self.spec.checkpoint
        if is_address(kept.checkpoint_dir_for_init):
            copies.peek(kept.checkpoint_dir_for_init)
        place = self.spec.checkpoint_copies or self.spec.checkpoints_at
        if not place:
            return
        if not kept.resume and not self.again:
            copies.refuse_foreign(place)
        try_to_write(place)

    def _refuse_another_model(self, dry_run: DryRun) -> None:
        """Raise UserError if the checkpoint that the job starts from belongs to another model.

        Only a checkpoint on this machine is checked here. Otherwise, the processes that restore it
        check it.
        """
        kept = self.spec.checkpoint
        if kept.resume:
            location = directory_of(self.spec.cluster.job_dir).checkpoints
        elif kept.checkpoint_dir_for_init and not is_address(kept.checkpoint_dir_for_init):
            location = Path(kept.checkpoint_dir_for_init)
        else:
            return
        trains = self.spec.action is Action.TRAIN
        # A damaged checkpoint is passed over when the job starts, which takes the one before it.
        for directory in directories.complete_ones(location):
            with suppress(Corrupted):
                check_checkpoint(directory, dry_run.ps_model, dry_run.ring, trains=trains)
                break

    def _training_records(self) -> int:
        data = self.data.get(Task.TRAINING)
        return sum(source.records for source in data.sources) if data else 0

    def _sources(self) -> dict[str, list[dict[str, Any]]]:
        keys = {
            Task.TRAINING: "training",
            Task.EVALUATION: "validation",
            Task.PREDICTION: "prediction",
        }
        return {
            key: [
                {"name": source.name, "records": source.records, "fingerprint": source.fingerprint}
                for source in (self.data[task].sources if task in self.data else ())
            ]
            for task, key in keys.items()
        }

    def _data(self, task: Task, origin: str) -> TaskData:
        """The sources of a task, and the first batch that `feed` makes of them."""
        with user_code("the data reader", self.module.zoo):
            if self.module.custom_data_reader is None and not is_address(origin):
                require(origin, DATA_FLAGS[task])
            reader = self._reader(origin)
            try:
                sources = tuple(reader.sources())
                self.columns[task] = reader.metadata.column_names
                feeder = Feeder(self.module, task, reader.metadata)
                features, labels = self._first_batch(reader, sources, feeder, task)
            finally:
                reader.close()
        return TaskData(sources, features, labels)

    @contextmanager
    def _about_columns(self, task: Task) -> Iterator[None]:
        """Add to a UserError how the columns of the data differ from those of training."""
        try:
            yield
        except UserError as error:
            there, here = self.columns.get(Task.TRAINING, ()), self.columns.get(task, ())
            lacks, adds = [set(one) - set(other) for one, other in ((there, here), (here, there))]
            differences = [
                f"{verb} {', '.join(name for name in names if name in only)}"
                for verb, names, only in (("lacks", there, lacks), ("adds", here, adds))
                if only
            ]
            if there and here and differences:
                error.message = (
                    f"{DATA_FLAGS[task]} has other columns than {DATA_FLAGS[Task.TRAINING]}: it"
                    f" {' and '.join(differences)}; {error.message}"
                )
            raise

    def _reader(self, origin: str) -> Reader:
        data = self.spec.data
        if self.module.custom_data_reader is None:
            return open_reader(
                origin,
                data.data_reader_params,
                max_bad_records=data.max_bad_records,
                counting=self.stages.counted,
                moving=self.stages.moving,
            )
        factory = self.module.custom_data_reader
        records_per_task = data.records_per_task or None
        try:
            with user_code("custom_data_reader", self.module.zoo, factory):
                return open_custom_reader(
                    factory, origin, data.data_reader_params, records_per_task=records_per_task
                )
        except NotAReader as error:
            error.message = f"{place(factory)}: {error.message}"
            raise

    def _first_batch(
        self, reader: Reader, sources: Sequence[Source], feeder: Feeder, task: Task
    ) -> tuple[Structure, Structure]:
        source = next((source for source in sources if source.records > 0), None)
        if source is None:
            raise UserError(
                f"the {task} data has no records",
                hint=f"sources: {', '.join(source.name for source in sources) or 'none'}",
            )
        size = self.spec.data.minibatch_size
        sieve = BadRecordFilter(feeder, reader, self.spec.data.max_bad_records)
        for begin in range(0, min(source.records, _FIRST_BATCHES * size), size):
            shard = Shard(ShardId(0), source.name, begin, min(begin + size, source.records))
            batch = self._fed(shard, reader.read(shard), sieve)
            if batch is not None:
                return batch
        function = self.module.feed_batch or self.module.feed
        where = self.module.path if function is None else place(function)
        raise UserError(
            f"{where}: feed kept none of the first"
            f" {amount(min(source.records, _FIRST_BATCHES * size), 'record')} of {source.name}"
        )

    def _fed(
        self, shard: Shard, blocks: Iterable[Block], sieve: BadRecordFilter
    ) -> tuple[Structure, Structure] | None:
        """(features, labels) of the first block of which `feed` keeps something."""
        seen = 0
        for block in blocks:
            good = block.count - block.bad
            fed = sieve(block.records, shard, range(seen, seen + good)) if good else Fed(None)
            self.warnings += [text for text in fed.bad_examples if text not in self.warnings]
            if fed.minibatch is not None:
                self.grouping = self.grouping or grouping(fed.minibatch, good)
                return fed.minibatch
            seen += good
        return None

    def _dry_run(self) -> DryRun:
        first = next(iter(self.data.values()))
        if self.spec.training.distribution_strategy is Strategy.ALLREDUCE:
            data, params = self.spec.data, self.spec.model.model_params
            ring = RingModel.build(self.module, params, seed=data.seed, features=first.features)
            whole = ring.ps_model()
            return DryRun(self.module, whole, CompiledStep(whole, self.module), ring)
        ps_model = PsModel.build(
            self.module,
            self.spec.model.model_params,
            threshold_bytes=self.spec.training.embedding_threshold_bytes,
            seed=self.spec.data.seed,
            features=first.features,
        )
        if (
            self.spec.trains_in_steps
            and self.spec.gradients_per_step > 1
            and clips(ps_model.optimizer)
        ):
            raise UserError(
                f"--sync with {type(ps_model.optimizer).__name__}, which clips gradients here",
                hint=(
                    "workers would clip their own gradients, not the mean of a step as Keras does:"
                    " remove the clipping, or train on a ring (--distribution-strategy"
                    " AllreduceStrategy)"
                ),
            )
        if (mixed := ps_model.mixed_dtypes()) is not None:
            self.warnings.append(mixed)
        return DryRun(self.module, ps_model, CompiledStep(ps_model, self.module))

    def _warn_if_nothing_trains(self, ps_model: PsModel) -> None:
        """Keras warns of such a model, too."""
        if ps_model.parameters.trainable_size == 0 and not any(
            table.trainable for table in ps_model.tables
        ):
            self.warnings.append(
                f"{place(self.module.custom_model)}: the model has no trainable weights"
            )

    def _try(self, dry_run: DryRun) -> dict[str, Any]:
        """Run one step of each kind of work that the job has."""
        tried: dict[str, Any] = {}
        if (training := self.data.get(Task.TRAINING)) is not None:
            outcome = dry_run.train(training.features, training.labels)
            tried["loss"] = outcome.loss
            if outcome.nonfinite:
                self.warnings.append(
                    f"{place(self.module.loss)}: the first batch yields NaN or infinity in"
                    f" {outcome.nonfinite} (loss {outcome.loss}): look for NaN in the data, and for"
                    " logarithms of 0 and divisions by 0"
                )
        evaluated = self.data.get(Task.EVALUATION)
        if evaluated is not None:
            with self._about_columns(Task.EVALUATION):
                metrics = dry_run.evaluate(evaluated.features, evaluated.labels)
            self.warnings += [
                f"metric {name} is {value} for the first batch"
                for name, value in metrics.items()
                if name != LOSS and not isfinite(value)
            ]
            tried["metrics"] = sorted(metrics)
        if (predicted := self.data.get(Task.PREDICTION)) is not None:
            outputs = dry_run.predict(predicted.features)
            self._check_outputs(outputs, predicted.features)
            if self.processes:
                check_processor(self.module)
                process_once(self.module, outputs)
        return tried

    def _check_outputs(self, outputs: Structure, features: Structure) -> None:
        """Raise UserError if files of predictions could not hold these outputs."""
        if self.module.prediction_outputs_processor is not None:
            return
        try:
            file_arrays(outputs, features)
        except PermanentError as error:
            where = place(self.module.custom_model)
            raise UserError(f"{where}: {error.message}", hint=error.hint) from error
