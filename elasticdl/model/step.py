"""One step of a served model as one call of a compiled function: arrays in, arrays out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.model.array_tensors import tensor_of
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.ids import IdGraph, trace_ids
from elasticdl.model.metrics import Metrics, States
from elasticdl.model.module import ModelModule
from elasticdl.model.optimizers import learning_rate, schedule_of
from elasticdl.model.ps_model import PsModel
from elasticdl.model.structure import Structure, fits, input_specs, relaxed
from elasticdl.model.tracing import Batches, Function, Tracer
from elasticdl.model.unique_ids import LookupPlan, Lookups, merged
from elasticdl.model.usercode import user_code
from elasticdl.rpc.parameters import DenseSquares, Floats, Pulled, Squares

__all__ = ["CompiledStep", "Lookups", "States", "StepOutcome"]


@final
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of one step, to be pushed.

    `dense` is [trainable_size + additive_size]: gradients, then differences of additive
    variables. `gradients[t]` is [n_t, dim of table t]: one row per distinct id, duplicates
    summed, clipped if the optimizer clips. `nonfinite` is '' if all values are finite. Otherwise it
    names what is not: "loss", a variable's path or a table's name.
    """

    loss: float
    dense: Floats
    gradients: tuple[Floats, ...]
    learning_rate: float
    nonfinite: str = ""
    examples: float = 1.0
    """The number of values that the loss is the mean of; it weights the gradient in a step."""
    squares: tuple[Squares, ...] = ()
    """By table; () if the optimizer squares nothing, or no id repeats."""
    dense_squares: DenseSquares | None = None


@final
@dataclass(slots=True)
class _Compiled:
    """All functions traced for one form of batches; `specs` are those of the features."""

    specs: Structure
    graphs: dict[bool, tuple[IdGraph, LookupPlan]] = field(default_factory=dict)
    functions: dict[str, tuple[Structure, Function, Any]] = field(default_factory=dict)
    """Kind -> (specs of labels, the function, the meaning of its results)."""


@final
class CompiledStep:
    """Traces at the first batch; a smaller last batch does not trace again.

    `prepare` may run in another thread than the rest. `train`, `evaluate`, `predict` and the
    metrics belong to one thread at a time. All release the GIL while they compute. Raises
    UserError, with the user's frames, if user code raises.
    """

    def __init__(self, ps_model: PsModel, module: ModelModule) -> None:
        self._ps_model = ps_model
        self._module = module
        self._metrics = Metrics(module, ps_model.model)
        self._tracing = threading.RLock()
        self._compiled: list[_Compiled] = []
        self._labels: Structure = None
        rate = _rate(ps_model, module)
        self._schedule = (
            rate if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) else None
        )
        self._rate: Callable[[int], float] = rate if self._schedule is None else lambda _: 0.0

    def prepare(self, features: Structure, *, training: bool = False) -> Lookups:
        """Run the part of the model that computes ids, and find distinct ids.

        Raises:
            UserError: an id is outside of its vocabulary (names the layer).
        """
        flat = _flat(features)
        with self._user_code(f"the model of {self._module.path}"):
            graph, plan = self._ids(self._for(features, flat), training)
            return plan.lookups(graph(flat), self._ps_model)

    def train(
        self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled
    ) -> StepOutcome:
        """Loss and gradients at the pulled parameters; changes only local state (random seeds)."""
        flat = _flat(features)
        with self._user_code("the training step"):
            compiled = self._for(features, flat)
            (function, layout), plan = self._function(compiled, "train", labels)
            arguments = self._arguments(plan, lookups, pulled, flat, labels)
            loss, examples, dense, *rest = function(*arguments)
        # With a Keras schedule the graph computes the rate and returns it last.
        rate = float(rest.pop()) if self._schedule is not None else self._rate(pulled.version)
        arrays = [_array(tensor) for tensor in rest]
        dense_squares = DenseSquares(layout.spans, arrays.pop(0)) if layout.spans else None
        rows = merged(arrays, lookups, plan.sites, layout, self._ps_model)
        outcome = StepOutcome(
            float(loss),
            _array(dense),
            rows.sums,
            rate,
            examples=float(examples),
            squares=rows.squares,
            dense_squares=dense_squares,
        )
        return outcome if _finite(outcome) else self._blamed(outcome)

    def evaluate(
        self, features: Structure, labels: Structure, lookups: Lookups, pulled: Pulled
    ) -> None:
        flat = _flat(features)
        with self._user_code("evaluation"):
            (function, _), plan = self._function(self._for(features, flat), "evaluate", labels)
            function(*self._arguments(plan, lookups, pulled, flat, labels))

    def predict(self, features: Structure, lookups: Lookups, pulled: Pulled) -> Structure:
        """Outputs of the model as NumPy arrays, in the model's structure."""
        flat = _flat(features)
        with self._user_code("prediction"):
            (function, structure), plan = self._function(self._for(features, flat), "predict", ())
            outputs = function(*self._arguments(plan, lookups, pulled, flat, ()))
        return tf.nest.pack_sequence_as(structure, [_array(tensor) for tensor in outputs])

    def metric_states(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """States since the last reset; always has "loss".

        Metrics of several outputs are named `output_name`.
        """
        return self._metrics.states()

    def reset_metrics(self) -> None:
        """Begin a new round."""
        self._metrics.reset()

    def metric_values(self, states: States) -> dict[str, float]:
        """Values of metrics from their (merged) states. Resets the metrics.

        Raises:
            UserError: a state does not fit its metric.
        """
        if not self._metrics.complete:
            with self._user_code("evaluation"):
                self._complete_metrics()
        return self._metrics.values(states)

    def _user_code(self, doing: str) -> AbstractContextManager[None]:
        return user_code(doing, self._module.zoo, self._module.custom_model)

    def _complete_metrics(self) -> None:
        """Trace an evaluation, since some metrics create their variables at their first batch.

        This process may not have seen a batch. Labels are then assumed to look like the outputs.
        """
        compiled = self._compiled[-1] if self._compiled else _Compiled(self._ps_model.inputs)
        labels = (
            self._labels
            if self._labels is not None
            else self._function(compiled, "predict", ())[0][1]
        )
        self._function(compiled, "evaluate", labels)

    def _for(self, features: Structure, flat: Sequence[Tensor]) -> _Compiled:
        """The functions compiled for batches like this one.

        A dimension that changes, other than the first, becomes unknown.
        """
        for compiled in self._compiled:
            if fits(compiled.specs, features, flat):
                return compiled
        with self._tracing:
            specs = input_specs(features)
            for compiled in self._compiled:
                if fits(compiled.specs, features, flat):
                    return compiled
                specs = relaxed(compiled.specs, specs)
            self._compiled.append(_Compiled(specs))
            return self._compiled[-1]

    def _ids(self, compiled: _Compiled, training: bool) -> tuple[IdGraph, LookupPlan]:
        traced = compiled.graphs.get(training)
        if traced is None:
            with self._tracing:
                graph = trace_ids(self._ps_model, self._module, compiled.specs, training=training)
                traced = compiled.graphs.setdefault(
                    training, (graph, LookupPlan.of(graph, len(self._ps_model.tables)))
                )
        return traced

    def _function(
        self, compiled: _Compiled, kind: str, labels: Structure
    ) -> tuple[tuple[Function, Any], LookupPlan]:
        """A traced function with the meaning of its results, and the plan of its lookups."""
        training = kind == "train"
        plan = self._ids(compiled, training)[1]
        traced = compiled.functions.get(kind)
        if traced is None or not fits(
            traced[0], labels, tf.nest.flatten(labels, expand_composites=True)
        ):
            with self._tracing:
                specs = (
                    input_specs(labels)
                    if traced is None
                    else relaxed(traced[0], input_specs(labels))
                )
                if kind != "predict":
                    self._labels = specs
                tracer = Tracer(
                    self._ps_model,
                    self._module,
                    self._metrics,
                    Batches(compiled.specs, specs, plan.sites),
                )
                match kind:
                    case "train":
                        traced = (specs, *tracer.trained(self._schedule))
                    case "evaluate":
                        traced = (specs, tracer.evaluated(), None)
                    case _:
                        traced = (specs, *tracer.predicted())
                compiled.functions[kind] = traced
        return traced[1:], plan

    def _arguments(
        self,
        plan: LookupPlan,
        lookups: Lookups,
        pulled: Pulled,
        features: Sequence[Tensor],
        labels: Structure,
    ) -> list[Tensor]:
        assert pulled.dense is not None
        return [
            *(tensor_of(part) for part in (pulled.dense, *pulled.rows)),
            *(tensor_of(lookups.positions[site]) for site in plan.first_site),
            tf.constant(pulled.version, tf.int64),
            *features,
            *_flat(labels),
        ]

    def _blamed(self, outcome: StepOutcome) -> StepOutcome:
        """Name the first variable, else the first table, whose gradient is not finite."""
        names = [] if np.isfinite(outcome.loss) else ["loss"]
        end = 0
        for spec in self._ps_model.parameters.dense:
            begin, end = end, end + spec.size
            if not np.isfinite(outcome.dense[begin:end]).all():
                names.append(spec.path)
                break
        for table, gradient in zip(
            self._ps_model.parameters.tables, outcome.gradients, strict=True
        ):
            if not np.isfinite(gradient).all():
                names.append(table.name)
                break
        return replace(outcome, nonfinite=", ".join(names))


def _rate(ps_model: PsModel, module: ModelModule) -> Any:  # noqa: ANN401 - Keras has no types
    """A Keras schedule, or a function from version to learning rate."""
    if (schedule := schedule_of(module)) is not None:
        return _guarded(schedule, module)
    rate = learning_rate(ps_model.optimizer)
    if isinstance(rate, float):
        return lambda _: rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return rate
    return _guarded(lambda _: rate(), module)


def _guarded(schedule: Callable[[int], Any], module: ModelModule) -> Callable[[int], float]:
    def rate(version: int) -> float:
        with user_code("the learning rate schedule", module.zoo):
            return float(schedule(version))

    return rate


def _flat(structure: Structure) -> list[Tensor]:
    """Leaves as eager tensors; ragged and sparse leaves give each of their parts."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [leaf if isinstance(leaf, tf.Tensor) else tf.convert_to_tensor(leaf) for leaf in leaves]


def _array(tensor: Tensor) -> Floats:
    """A read-only view of the tensor's memory, which it keeps alive.

    NumPy lacks bfloat16, so that becomes float32.
    """
    if tensor.dtype == tf.bfloat16:
        tensor = tf.cast(tensor, tf.float32)
    return np.asarray(memoryview(tensor)) if tensor.dtype != tf.string else tensor.numpy()


def _finite(outcome: StepOutcome) -> bool:
    """Whether all values are finite, in one BLAS pass.

    Only a sum of squares that overflows needs a second pass.
    """
    for array in (outcome.dense, *outcome.gradients):
        flat = array.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            # NaN and infinity propagate into the sum, so one number answers for the array.
            square = np.dot(flat, flat)
        if not np.isfinite(square) and not np.isfinite(flat).all():
            return False
    return bool(np.isfinite(outcome.loss))
