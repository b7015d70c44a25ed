"""Synchronous steps of several parts, in one process instead of a job's many.

The order of records, `feed`, the compiled step and the server are a job's own. They compute one
possible order of a job's steps, as if its workers took turns and shared one random state.
`python -m bench.peer_parts CASE` takes a case as `peer_quality` does, with the number of `parts`,
and prints the same.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

from bench.peer_quality import print_curve
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.data import open_reader
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core.data.sharding import ShardPlan, training_plan
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep
from elasticdl.native import _native
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, Shard, ShardId, Source, Task
from elasticdl.tokens import bulk_key, bulk_token
from elasticdl.worker.pipeline.assignment import Assignment, sources_of
from elasticdl.worker.pipeline.first_batch import first_features
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.record_order import LoadedShard, RecordWindow, order_of

NAME, LIMIT_S = ProcessName(Role.WORKER, 0), 60.0


def spec_of(case: Mapping[str, Any]) -> JobSpec:
    flags = {
        "model_zoo": case["model_zoo"],
        "model_def": case["model_def"],
        "training_data": case["train"],
        "validation_data": case["test"],
        "minibatch_size": case["batch"],
        "num_epochs": case["epochs"],
        "num_workers": case["parts"],
        "model_params": json.dumps(case["params"]) if case["params"] else {},
        "data_reader_params": json.dumps(case["reader_params"]) if case["reader_params"] else {},
        "seed": case["seed"],
        "sync": True,
    }
    return JobSpec.from_flags(Action.TRAIN, flags)


Part = tuple[Shard, RecordWindow]


@final
class Data:
    """Records of a job, in the order in which its workers would take them by turns."""

    def __init__(self, spec: JobSpec, sources: Sources) -> None:
        self._spec, self._sources = spec, sources

    def steps(self) -> Iterator[list[Part]]:
        """The parts of each step. A step never mixes epochs."""
        plan = training_plan(self._spec, self._sources.reader(Task.TRAINING).sources())
        for epoch in range(plan.epochs):
            parts: list[Part] = []
            for part in self._parts(plan, epoch):
                parts.append(part)
                if len(parts) == self._spec.gradients_per_step:
                    yield parts
                    parts = []
            if parts:
                yield parts

    def _parts(self, plan: ShardPlan, epoch: int) -> Iterator[Part]:
        left = deque(plan.order(epoch))
        at_work: deque[Iterator[Part]] = deque()
        while left or at_work:
            while left and len(at_work) < self._spec.cluster.num_workers.high:
                at_work.append(self._windows(plan, epoch, left.popleft()))
            windows = at_work.popleft()
            if (part := next(windows, None)) is not None:
                yield part
                at_work.append(windows)

    def _windows(self, plan: ShardPlan, epoch: int, number: int) -> Iterator[Part]:
        shard = plan.shard(number, ShardId(epoch * plan.shards + number))
        loaded = LoadedShard.read(shard, self._sources.reader(Task.TRAINING).read(shard))
        order = order_of(shard.records, plan.order_seed(epoch, number))
        for window in loaded.windows(order, 0, self._sources.window(Task.TRAINING)):
            yield shard, window

    def fed(self, task: Task, part: Part) -> tuple[Any, Any] | None:
        shard, window = part
        batch: tuple[Any, Any] | None = self._sources.sieve(task)(
            window.records, shard, window.places
        ).minibatch
        return batch

    def test(self) -> Iterator[Part]:
        reader = self._sources.reader(Task.EVALUATION)
        for source in reader.sources():
            shard = Shard(ShardId(0), source.name, 0, source.records)
            loaded = LoadedShard.read(shard, reader.read(shard))
            for window in loaded.windows(order_of(shard.records, None), 0, 512):
                yield shard, window


@final
class Trained:
    """A model on a server of its own."""

    def __init__(self, module: ModelModule, spec: JobSpec, sources: Sources) -> None:
        self._parts = spec.gradients_per_step
        key = bulk_key("bench", 0)
        self._server = _native.Server(0, 1, key, turns=self._parts)
        address = f"127.0.0.1:{self._server.listen('127.0.0.1')}"
        self._pool = ServerPool([address], str(NAME), [bulk_token(key, str(NAME))])
        model = _model(module, spec, sources)
        self._step = CompiledStep(model, module)
        self._pool.initialise(model.parameters, model.dense(), timeout_s=LIMIT_S)
        self._pushes = self._steps = 0

    def close(self) -> None:
        self._pool.close()
        self._server.stop()

    def step(self, data: Data, parts: list[Part]) -> None:
        """One step: the mean of the gradients of all parts, computed at one version."""
        named = []
        for shard, window in parts:
            made = data.fed(Task.TRAINING, (shard, window))
            if made is None:
                continue
            lookups = self._step.prepare(made[0], training=True)
            pulled = self._pool.pull(lookups.ids, timeout_s=LIMIT_S)
            outcome = self._step.train(*made, lookups, pulled)
            if outcome.nonfinite:
                raise RuntimeError(f"{outcome.nonfinite} is not finite")
            self._pushes += 1
            update = Update(
                sequence=self._pushes,
                applied=Applied(shard.id, 0, window.end),
                versions=pulled.versions,
                learning_rate=outcome.learning_rate,
                dense=outcome.dense,
                ids=lookups.ids,
                gradients=outcome.gradients,
                squares=outcome.squares,
                dense_squares=outcome.dense_squares,
            )
            self._pool.push(update, timeout_s=LIMIT_S)
            named.append((str(NAME), self._pushes, outcome.examples))
        if named:
            self._steps += 1
            self._server.apply_step(self._steps, named)

    def metric(self, data: Data, name: str) -> float:
        self._step.reset_metrics()
        for part in data.test():
            made = data.fed(Task.EVALUATION, part)
            if made is not None:
                lookups = self._step.prepare(made[0])
                pulled = self._pool.pull(lookups.ids, timeout_s=LIMIT_S)
                self._step.evaluate(*made, lookups, pulled)
        return self._step.metric_values(self._step.metric_states())[name.replace("/", "_")]


def _model(module: ModelModule, spec: JobSpec, sources: Sources) -> PsModel:
    settings: dict[str, Any] = {
        "threshold_bytes": spec.training.embedding_threshold_bytes,
        "seed": spec.data.seed,
    }
    try:
        return PsModel.build(module, spec.model.model_params, **settings)
    except NeedsFeatures:
        features = first_features(sources, Task.TRAINING)
        model = PsModel.build(module, spec.model.model_params, features=features, **settings)
        return replace(model, open_inputs=sources.open_features(Task.TRAINING))


def _sources(case: Mapping[str, Any]) -> tuple[Source, ...]:
    origins = case["train"], case["test"]
    return tuple(
        source
        for origin in origins
        for source in open_reader(origin, dict(case["reader_params"])).sources()
    )


def train(case: Mapping[str, Any]) -> Iterator[tuple[int, Callable[[], float]]]:
    """Yield steps so far, and what computes the metric, as `peer_quality.train` yields models."""
    spec = spec_of(case)
    module = load_module(spec.model)
    sources = sources_of(Assignment(NAME, spec, Path(), "bench", _sources(case)), module)
    data, done = Data(spec, sources), 0
    trained = Trained(module, spec, sources)
    metric = partial(trained.metric, data, case["metric"])
    try:
        for parts in data.steps():
            trained.step(data, parts)
            done += 1
            if done % case["look_steps"] == 0:
                yield done, metric
        if done % case["look_steps"]:
            yield done, metric
    finally:
        trained.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print_curve(given, train(given))
