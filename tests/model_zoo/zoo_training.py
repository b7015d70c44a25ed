"""Train a module of the zoo three ways on the same batches, from the same values: plain Keras, real
parameter servers on loopback, and the step of a ring with one member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from elasticdl.data import Reader, Records, open_custom_reader, open_reader
from elasticdl.flag_values import Scalar
from elasticdl.job_flags import ModelSection
from elasticdl.model.dry_run import DryRun
from elasticdl.model.export import export
from elasticdl.model.input import Feeder
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import Alone, RingStep
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, Shard, ShardId, Task
from tests.contract.ps_stage import LIMIT_S, Stage, all_rows
from tests.reference_initializers import initial_weights

ZOO = Path(__file__).parents[2] / "model_zoo"
SEED = 5
EVALUATED = 512
"""Examples of a batch of evaluation."""


@dataclass(frozen=True)
class Case:
    """A module, its data and how to train it; `train` and `test` are names of files."""

    model_def: str
    data: str
    suffix: str
    epochs: int = 1
    size: int = 64
    records: int = 0
    train: str = "train"
    test: str = "test"
    params: Mapping[str, Scalar] = field(default_factory=dict)
    reader_params: Mapping[str, Any] = field(default_factory=dict)
    reaches: Mapping[str, float] = field(default_factory=dict)
    """What metrics of plain Keras are at least."""
    tables: int = 0
    """How many embeddings servers hold, at least."""


@dataclass(frozen=True)
class Curves:
    """What came of it; `losses` are those of each step, by how it was trained."""

    losses: Mapping[str, list[float]]
    plain: Mapping[str, float]
    servers: Mapping[str, float]
    """Metrics at the end."""
    apart: float
    """The largest difference between a weight of the ring's model and of the plain one."""
    tables: int
    """How many embeddings the servers held."""


def load(model_def: str) -> ModelModule:
    return load_module(ModelSection(model_zoo=str(ZOO), model_def=model_def))


def open_data(module: ModelModule, origin: Path, params: Mapping[str, Any]) -> Reader:
    if module.custom_data_reader is not None:
        return open_custom_reader(module.custom_data_reader, str(origin), params)
    return open_reader(str(origin), params)


def take(records: Records, rows: np.ndarray) -> Records:
    return (
        {name: column[rows] for name, column in records.items()}
        if isinstance(records, Mapping)
        else records[rows]
    )


def all_records(reader: Reader) -> tuple[Any, int]:
    """Everything as one block."""
    blocks = [
        block
        for source in reader.sources()
        for block in reader.read(Shard(ShardId(1), source.name, 0, source.records))
    ]
    parts: list[Any] = [block.records for block in blocks]
    count = sum(block.count for block in blocks)
    if isinstance(parts[0], Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, count
    return np.concatenate(parts), count


def batches(
    module: ModelModule, reader: Reader, task: Task, size: int, epochs: int = 0
) -> Iterator[Any]:
    """(features, labels) of windows of `size` records; 0 epochs: once, in order.

    Training leaves out a smaller last window, which would cost another trace of each step.
    """
    feeder = Feeder(module, task, reader.metadata)
    records, count = all_records(reader)
    for epoch in range(max(1, epochs)):
        random = np.random.default_rng(epoch)
        order = random.permutation(count) if epochs else np.arange(count)
        for begin in range(0, count - size + 1 if epochs else count, size):
            batch = feeder(take(records, order[begin : begin + size]))
            assert batch is not None
            yield batch


class Plain:
    """Keras: gradients, then the optimizer, as plainly as can be."""

    def __init__(self, module: ModelModule, params: Mapping[str, Scalar], features: Any) -> None:
        reset_uids()
        self.module, self.model, self.optimizer = (
            module,
            module.custom_model(**params),
            module.optimizer(),
        )
        self.model(features)
        self.optimizer.build(self.model.trainable_variables)
        # Without AutoGraph, as workers compile their steps.
        self._step = tf.function(self._train, autograph=False, reduce_retracing=True)

    def _train(self, features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.module.loss(labels, self.model(features, training=True)))
        weights = self.model.trainable_variables
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        self.optimizer.apply(gradients, weights)
        return loss

    def train(self, features: Any, labels: Any, rate: float | None) -> float:
        if rate is not None:
            self.optimizer.learning_rate.assign(rate)
        return float(self._step(features, labels))


class OnRing:
    """The step of a ring with one member."""

    def __init__(self, module: ModelModule, params: Mapping[str, Scalar], features: Any) -> None:
        self.ring = RingModel.build(module, params, seed=SEED, features=features)
        self.model = self.ring.model
        self._step = RingStep(self.ring, Alone())
        self._iteration = 0

    def train(self, features: Any, labels: Any, rate: float | None) -> float:
        if rate is not None:
            self.ring.optimizer.learning_rate.assign(rate)
        part = [(features, labels)]
        outcome = self._step.train(part, rank=0, size=1, iteration=self._iteration)
        assert outcome.applied, outcome
        self._iteration += 1
        return outcome.loss


class OnServers:
    """A worker's step, on every embedding and weight pulled from servers and pushed to them."""

    def __init__(self, module: ModelModule, params: Mapping[str, Scalar], features: Any) -> None:
        self.module = module
        self.model = PsModel.build(module, params, threshold_bytes=0, seed=SEED, features=features)
        self.step = CompiledStep(self.model, module)
        self._sequence = 0

    def begin(self, pool: ServerPool) -> None:
        """Give the initial values to the servers."""
        self._pool = pool
        assert pool.initialise(self.model.parameters, self.model.dense(), timeout_s=LIMIT_S)

    def train(self, features: Any, labels: Any, rate: float | None) -> float:
        lookups = self.step.prepare(features, training=True)
        pulled = self._pool.pull(lookups.ids, timeout_s=LIMIT_S)
        outcome = self.step.train(features, labels, lookups, pulled)
        assert not outcome.nonfinite, outcome
        if rate is not None:
            assert outcome.learning_rate == np.float32(rate)
        self._sequence += 1
        update = Update(
            sequence=self._sequence,
            applied=Applied(ShardId(1), 0, self._sequence),
            versions=pulled.versions,
            learning_rate=outcome.learning_rate,
            dense=outcome.dense,
            ids=lookups.ids,
            gradients=outcome.gradients,
            squares=outcome.squares,
            dense_squares=outcome.dense_squares,
        )
        self._pool.push(update, timeout_s=LIMIT_S)
        return outcome.loss

    def export(self, folder: Path) -> None:
        """Write what the servers hold as a SavedModel."""
        tables = [
            [all_rows(self._pool, table)] for table in range(len(self.model.parameters.tables))
        ]
        none = [np.empty(0, np.int64) for _ in tables]
        dense = self._pool.pull(none, timeout_s=LIMIT_S).dense
        assert dense is not None
        export(self.model, dense, tables, folder)

    def predict(self, features: Any) -> Any:
        lookups = self.step.prepare(features)
        pulled = self._pool.pull(lookups.ids, timeout_s=LIMIT_S)
        return self.step.predict(features, lookups, pulled)

    def evaluate(self, data: list[Any]) -> Mapping[str, float]:
        # The metrics of the check: they must not depend on how batches are divided.
        checked = DryRun(self.module, self.model, self.step).evaluate(*data[-1])
        assert "loss" in checked
        self.step.reset_metrics()
        for features, labels in data:
            lookups = self.step.prepare(features)
            pulled = self._pool.pull(lookups.ids, timeout_s=LIMIT_S)
            self.step.evaluate(features, labels, lookups, pulled)
        return self.step.metric_values(self.step.metric_states())


def train_alike(case: Case, folder: Path) -> Curves:
    """Train the three from one set of initial values."""
    module = load(case.model_def)
    reader = open_data(module, folder / f"{case.train}.{case.suffix}", case.reader_params)
    training = list(batches(module, reader, Task.TRAINING, case.size, case.epochs))
    features, _ = training[0]
    ring = OnRing(module, case.params, features)
    servers = OnServers(module, case.params, features)
    plain = Plain(module, case.params, features)
    _begin_alike(ring.model, servers.model, plain.model)
    schedule = _schedule(module)

    def losses_of(system: Any) -> list[float]:
        return [
            system.train(*batch, schedule and schedule(number))
            for number, batch in enumerate(training)
        ]

    with unoptimized_graphs():
        losses = {"plain": losses_of(plain)}
    losses["ring"] = losses_of(ring)
    with closing(Stage(2)) as stage:
        servers.begin(stage.pool())
        losses["servers"] = losses_of(servers)
        reader = open_data(module, folder / f"{case.test}.{case.suffix}", case.reader_params)
        data = list(batches(module, reader, Task.EVALUATION, EVALUATED))
        on_servers = servers.evaluate(data)
    apart = max(
        float(np.max(np.abs(mine.numpy() - theirs.numpy())))
        for mine, theirs in zip(plain.model.weights, ring.model.weights, strict=True)
        if mine.dtype == "float32"
    )
    metrics = evaluate(module, plain.model, data)
    return Curves(losses, metrics, on_servers, apart, len(servers.model.parameters.tables))


@contextmanager
def unoptimized_graphs() -> Iterator[None]:
    """Have TensorFlow run graphs as traced: optimizing one takes longer than its few steps."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def _begin_alike(ring: keras.Model, servers: PsModel, plain: keras.Model) -> None:
    """Rows begin as on the servers, the rest as in the ring's model."""
    named = {variable.path: variable for variable in ring.variables}
    for variable in servers.variables:
        variable.assign(named[variable.path])
    for layer, table in zip(servers.tables, servers.parameters.tables, strict=True):
        ids = np.arange(layer.input_dim)
        rows = initial_weights(table.initializer, table.seed, ids, table.dim)
        named[f"{table.name}/embeddings"].assign(rows)
    for mine, theirs in zip(plain.variables, ring.variables, strict=True):
        mine.assign(theirs)


def _schedule(module: ModelModule) -> Any:
    made = module.callbacks() if module.callbacks else []
    schedules = [callback.schedule for callback in made if hasattr(callback, "schedule")]
    return schedules[-1] if schedules else None


def evaluate(module: ModelModule, model: keras.Model, data: list[Any]) -> dict[str, float]:
    """Values of eval_metrics_fn; those of outputs as `output_name`."""
    assert module.eval_metrics_fn is not None
    metrics = {name: _as_metric(metric) for name, metric in _flat(module.eval_metrics_fn())}
    for features, labels in data:
        predictions = model(features, training=False)
        for (output, _), metric in metrics.items():
            metric.update_state(
                labels[output] if output else labels, predictions[output] if output else predictions
            )
    return {
        f"{output}_{name}" if output else name: float(metric.result())
        for (output, name), metric in metrics.items()
    }


def _flat(metrics: Mapping[str, Any], output: str = "") -> Iterator[tuple[tuple[str, str], Any]]:
    for name, metric in metrics.items():
        if isinstance(metric, Mapping):
            yield from _flat(metric, name)
        else:
            yield (output, name), metric


def _as_metric(metric: Any) -> keras.metrics.Metric:
    return (
        metric
        if isinstance(metric, keras.metrics.Metric)
        else keras.metrics.MeanMetricWrapper(metric, name="function")
    )
