"""Try one batch of a job without parameter servers, to find mistakes before any process starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec
from elasticdl.embedding.table import native_table
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.model.metrics import LOSS, Metrics
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizer_view import OptimizerView
from elasticdl.model.optimizers import with_rate
from elasticdl.model.output_arrays import for_processor
from elasticdl.model.ps_model import PsModel
from elasticdl.model.ring_model import RingModel
from elasticdl.model.ring_step import Alone, RingStep
from elasticdl.model.step import CompiledStep, Lookups
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import missing, place, user_code, wrong_result
from elasticdl.rpc.parameters import Pulled

_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


@final
@dataclass(frozen=True, slots=True)
class DryRunStep:
    """A training step; `nonfinite` names the values that are NaN or infinite."""

    loss: float
    nonfinite: str = ""


@final
@dataclass(frozen=True, slots=True)
class DryRun:
    """The model with its initial values."""

    module: ModelModule
    ps_model: PsModel
    step: CompiledStep
    ring: RingModel | None = None
    """The ring's model, for a job without servers; `ps_model` wraps the same model then."""

    def pulled(self, lookups: Lookups) -> Pulled:
        """The parameters that servers would return at version 0."""
        parameters = self.ps_model.parameters
        plain = OptimizerSpec(kind=OptimizerKind.SGD)
        rows = tuple(
            native_table(table, plain, parameters.dtype).peek(ids)
            for table, ids in zip(parameters.tables, lookups.ids, strict=True)
        )
        return Pulled((0,), self.ps_model.dense(), rows)

    def train(self, features: Structure, labels: Structure) -> DryRunStep:
        """Run one training step, after checking the shape of the loss. Raises UserError."""
        outputs = self.predict(features)
        with user_code("loss", self.module.zoo, self.module.loss):
            value = self.module.loss(labels, tf.nest.map_structure(tf.convert_to_tensor, outputs))
        _check_loss(value, outputs, self.module)
        if self.ring is not None:
            step = RingStep(self.ring, Alone())
            alone = step.train([(features, labels)], rank=0, size=1, iteration=0)
            return DryRunStep(alone.loss, alone.nonfinite)
        lookups = self.step.prepare(features, training=True)
        outcome = self.step.train(features, labels, lookups, self.pulled(lookups))
        return DryRunStep(outcome.loss, outcome.nonfinite)

    def summary(self) -> dict[str, Any]:
        """The model's size, tables and optimizer, for people and programs."""
        parameters, ring = self.ps_model.parameters, self.ring
        if ring is None:
            size, optimizer = (
                parameters.trainable_size + parameters.additive_size,
                parameters.optimizer.model_dump(mode="json"),
            )
        else:
            size = sum(
                int(np.prod(variable.shape)) for variable in (*ring.trainable, *ring.averaged)
            )
            optimizer = {"kind": type(with_rate(ring.optimizer)).__name__.lower()}
        tables = [{"name": table.name, "dim": table.dim} for table in parameters.tables]
        return {"dense_parameters": size, "tables": tables, "optimizer": optimizer}

    def predict(self, features: Structure) -> Structure:
        """The model's outputs. Raises UserError."""
        lookups = self.step.prepare(features)
        return self.step.predict(features, lookups, self.pulled(lookups))

    def evaluate(self, features: Structure, labels: Structure) -> Mapping[str, float]:
        """Values of the metrics.

        They must not change if two workers evaluate half of the batch each.

        Raises UserError.
        """
        try:
            whole = self.step.metric_values(self._states(features, labels))
        except UserError:
            self._refuse_metric(features, labels)
            raise
        count = int(tf.nest.flatten(features)[0].shape[0])
        if count > 1 and not _composite((features, labels)):
            first, second = (
                self._states(
                    *tf.nest.map_structure(lambda leaf, part=part: leaf[part], (features, labels))
                )
                for part in (slice(0, count // 2), slice(count // 2, count))
            )
            summed = {
                name: tuple(
                    tuple(np.add(a, b).tolist())
                    for a, b in zip(first[name], second[name], strict=True)
                )
                for name in first
            }
            _check_sums(whole, self.step.metric_values(summed), self.module)
        return whole

    def _refuse_metric(self, features: Structure, labels: Structure) -> None:
        """Raise UserError for the metric that fails on this batch, if one does.

        An error of a compiled step does not name the metric.
        """
        outputs = tf.nest.map_structure(tf.convert_to_tensor, self.predict(features))
        metrics = Metrics(self.module, self.ps_model.model)
        metrics.update(labels, outputs, tf.constant(0.0), tf.constant(1.0))

    def _states(
        self, features: Structure, labels: Structure
    ) -> dict[str, tuple[tuple[float, ...], ...]]:
        self.step.reset_metrics()
        lookups = self.step.prepare(features)
        self.step.evaluate(features, labels, lookups, self.pulled(lookups))
        return self.step.metric_states()


def begin_callbacks(module: ModelModule, ps_model: PsModel, *, on_ring: bool) -> None:
    """Run `on_train_begin` of the module's own callbacks, as a worker does. Raises UserError.

    Keras' own callbacks are left out: some write files.
    """
    with user_code("callbacks", module.zoo, module.callbacks):
        callbacks = [*(module.callbacks() or ())] if module.callbacks is not None else []
    own = [
        callback
        for callback in callbacks
        if not type(callback).__module__.startswith(("keras.", "elasticdl."))
    ]
    if own and not on_ring:
        ps_model.model.optimizer = OptimizerView(ps_model.optimizer, lambda: 0)
    for callback in own:
        with user_code(f"{type(callback).__name__}.on_train_begin", module.zoo):
            callback.set_params({})
            callback.set_model(ps_model.model)
            callback.on_train_begin({})


_OF_OPTIMIZERS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check_callbacks(module: ModelModule, *, on_ring: bool = False) -> list[str]:
    """Check the result of `callbacks()` and return a warning for each option that a job ignores.

    Raises UserError.
    """
    if module.callbacks is None:
        return []
    with user_code("callbacks", module.zoo, module.callbacks):
        callbacks = module.callbacks()
    if not isinstance(callbacks, (list, tuple, type(None))):
        raise wrong_result(module.callbacks, "callbacks", callbacks, "a list of Keras callbacks")
    for callback in callbacks or ():
        if not isinstance(callback, keras.callbacks.Callback):
            made = isinstance(callback, type) and f"create one: {callback.__name__}()"
            raise UserError(
                f"{place(module.callbacks)}: callbacks returned a list with {callback!r}, expected"
                " Keras callbacks",
                hint=made or "derive its class from keras.callbacks.Callback",
            )
        _check_monitor(callback, place(module.callbacks))
        if isinstance(callback, _OF_OPTIMIZERS) and not on_ring:
            raise UserError(
                f"{place(module.callbacks)}: keras.callbacks.{type(callback).__name__} sets the"
                " learning rate of an optimizer, but parameter servers apply it",
                hint=(
                    "use elasticdl.model.callbacks.LearningRateScheduler(schedule), which calls"
                    " schedule(version), or a Keras schedule"
                ),
            )
    left_out = [
        text
        for callback in callbacks or ()
        if isinstance(callback, keras.callbacks.TensorBoard)
        for text in _left_out(callback)
    ]
    return [
        f"{place(module.callbacks)}: ignoring {text}: for TensorBoard, a job writes only the"
        " metrics of epochs"
        for text in left_out
    ]


def _check_monitor(callback: keras.callbacks.Callback, where: str) -> None:
    """Refuse a Keras callback that waits for a training metric, which a job does not compute."""
    name = getattr(callback, "monitor", None)
    ours = type(callback).__module__.startswith("keras.")
    if ours and isinstance(name, str) and name != "loss" and not name.startswith("val_"):
        raise UserError(
            f"{where}: {type(callback).__name__} monitors {name!r}, a metric of training, but a job"
            " computes metrics on validation data only",
            hint=f"monitor 'val_{name}', or 'loss'",
        )


def _left_out(board: keras.callbacks.TensorBoard) -> list[str]:
    asked = {
        name: getattr(board, name) for name in ("histogram_freq", "write_images", "embeddings_freq")
    }
    asked["update_freq"] = 0 if board.update_freq == "epoch" else board.update_freq
    return [f"{name}={value}" for name, value in asked.items() if value]


def check_processor(module: ModelModule) -> None:
    """Check the signature of `PredictionOutputsProcessor.process`. Raises UserError."""
    if module.prediction_outputs_processor is None:
        return
    with user_code("PredictionOutputsProcessor", module.zoo):
        processor = module.prediction_outputs_processor()
    if problem := missing(processor.process, {"predictions": None, "worker_id": 0}):
        raise UserError(
            f"{place(processor.process)}: PredictionOutputsProcessor.process: {problem}",
            hint="expected process(self, predictions, worker_id)",
        )


def process_once(module: ModelModule, outputs: Structure) -> None:
    """Pass a batch to the module's processor, with worker -1. Raises UserError."""
    if module.prediction_outputs_processor is not None:
        with user_code("PredictionOutputsProcessor.process", module.zoo):
            module.prediction_outputs_processor().process(for_processor(outputs), -1)


def check_destination(module: ModelModule, output: str) -> None:
    """Check that predictions have exactly one destination: `--output` or the module's processor.

    Raises UserError.
    """
    if module.prediction_outputs_processor is None and not output:
        raise UserError(
            "predictions have no destination",
            hint="set --output to a directory, or add a PredictionOutputsProcessor to the module",
        )
    if module.prediction_outputs_processor is not None and output:
        raise UserError(
            f"{place(module.prediction_outputs_processor)}: PredictionOutputsProcessor receives the"
            f" predictions, so nothing would be written to --output {output}",
            hint="remove --output",
        )


def _check_loss(value: Structure, outputs: Structure, module: ModelModule) -> None:
    where = place(module.loss)
    if not tf.is_tensor(value):
        expected = "a tensor: a scalar, or a value per example"
        hint = ""
        if isinstance(value, keras.losses.Loss):
            hint = f"call it: {type(value).__name__}(...)(labels, predictions)"
        elif isinstance(value, (bool, int, float, np.generic)):
            hint = "compute it with operations of tf or keras.ops, which have gradients"
        raise wrong_result(module.loss, "loss", value, expected, hint)
    leaves = tf.nest.flatten(outputs)
    count = len(leaves[0])
    shape = tuple(value.shape)
    if shape and shape[0] != count:
        raise UserError(
            f"{where}: loss returned a tensor of shape {shape}, expected a scalar or {count}"
            " values, one per example"
        )
    if count > 1 and shape == (count, count) and len(leaves) == 1 and leaves[0].size == count:
        raise UserError(
            f"{where}: loss returned a tensor of shape {shape} for {amount(count, 'example')}:"
            " labels and predictions were broadcast",
            hint=f"predictions have shape {leaves[0].shape}; give labels the same shape in feed",
        )


def _check_sums(
    whole: Mapping[str, float], summed: Mapping[str, float], module: ModelModule
) -> None:
    for name, value in whole.items():
        if name != LOSS and not np.isclose(
            value, summed[name], rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True
        ):
            where = place(module.eval_metrics_fn) if module.eval_metrics_fn else module.path
            raise UserError(
                f"{where}: metric {name!r} is {value:g} for a batch, but {summed[name]:g} when the"
                " states of its two halves are added",
                hint=(
                    "workers evaluate parts of the data and the master adds their states; use a"
                    " metric whose state is a sum, or a function that returns a value per example"
                ),
            )


def _composite(structure: Structure) -> bool:
    return any(
        isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)) for leaf in tf.nest.flatten(structure)
    )
