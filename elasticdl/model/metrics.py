"""Metrics of a model module: updated inside the compiled step, merged by adding states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import UserError
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.module import ModelModule
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import place, user_code, wrong_result

States: TypeAlias = Mapping[str, tuple[tuple[float, ...], ...]]
"""For each metric, the flat values of each of its variables.

Their elementwise sum merges the metrics of two workers.
"""

LOSS = "loss"


@final
@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric on one output; `output` None: on labels and predictions as they are."""

    name: str
    output: str | None
    metric: Any
    function: Callable[..., Any] | None = None
    """The user's function that the metric is a mean of."""


@final
class Metrics:
    """The module's metrics and the mean loss, named "loss" unless the module has such a metric."""

    def __init__(self, module: ModelModule, model: keras.Model) -> None:
        self._model = model
        self._zoo = module.zoo
        self._function = module.eval_metrics_fn
        self.loss = keras.metrics.Mean(name=LOSS)
        with user_code("eval_metrics_fn", module.zoo, module.eval_metrics_fn):
            metrics = module.eval_metrics_fn() if module.eval_metrics_fn else {}
        self._named = tuple(_named(metrics, module))
        _refuse_twice(self._named, module)

    def update(
        self, labels: Structure, predictions: Structure, loss: Tensor, examples: Tensor
    ) -> None:
        """Add a batch; called while a function is traced."""
        self.loss.update_state(loss, sample_weight=examples)
        for named in self._named:
            function = named.function or self._function
            with user_code(f"metric {named.name}", self._zoo, function):
                named.metric.update_state(*self._of_output(named, labels, predictions))

    def states(self) -> dict[str, tuple[tuple[float, ...], ...]]:
        """States since the last reset."""
        return {
            name: tuple(tuple(variable.numpy().ravel().tolist()) for variable in metric.variables)
            for name, metric in self._all().items()
        }

    def reset(self) -> None:
        for metric in self._all().values():
            metric.reset_state()

    @property
    def complete(self) -> bool:
        """Whether all metrics have their variables; some create them at their first update."""
        return all(metric.variables for metric in self._all().values())

    def values(self, states: States) -> dict[str, float]:
        """The metrics' values: `name`, or `name/i` for each element of an array.

        Raises:
            UserError: a state does not fit its metric.
        """
        values: dict[str, float] = {}
        for name, metric in self._all().items():
            if name in states:
                _load(name, metric, states[name])
                with user_code(f"metric {name}", self._zoo):
                    values.update(_scalars(name, metric.result()))
        self.reset()
        return values

    def _all(self) -> dict[str, Any]:
        return {LOSS: self.loss, **{named.name: named.metric for named in self._named}}

    def _of_output(
        self, named: NamedMetric, labels: Structure, predictions: Structure
    ) -> tuple[Structure, Structure]:
        if named.output is None:
            return labels, predictions
        return _part(labels, named.output, self._model, "labels"), _part(
            predictions, named.output, self._model, "outputs"
        )


def _part(values: Structure, output: str, model: keras.Model, what: str) -> Structure:
    """The values of one output, by key or by its position in the model's output names."""
    if isinstance(values, Mapping):
        if output not in values:
            raise UserError(
                f"eval_metrics_fn names the output {output!r}, but the {what} are"
                f" {', '.join(map(str, values))}"
            )
        return values[output]
    if isinstance(values, (list, tuple)):
        names = list(getattr(model, "output_names", ()))
        if output not in names:
            raise UserError(
                f"eval_metrics_fn names the output {output!r}, but the model's outputs are"
                f" {', '.join(names) or 'unnamed'}"
            )
        return values[names.index(output)]
    return values


def _named(metrics: object, module: ModelModule) -> Iterator[NamedMetric]:
    where = place(module.eval_metrics_fn) if module.eval_metrics_fn else module.path
    if not isinstance(metrics, Mapping):
        assert module.eval_metrics_fn is not None
        raise wrong_result(module.eval_metrics_fn, "eval_metrics_fn", metrics, "{name: metric}")
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            for inner, metric in value.items():
                yield _named_metric(f"{name}_{inner}", str(name), metric, where)
        else:
            yield _named_metric(str(name), None, value, where)


def _named_metric(name: str, output: str | None, value: object, where: str) -> NamedMetric:
    function = value if callable(value) and not _is_metric(value) else None
    return NamedMetric(name, output, _metric(name, value, where), function)


def _is_metric(value: object) -> bool:
    return isinstance(value, keras.metrics.Metric) or (
        isinstance(value, type) and issubclass(value, keras.metrics.Metric)
    )


def _refuse_twice(named: Sequence[NamedMetric], module: ModelModule) -> None:
    """Raise UserError if one object has two names: it would count each example twice."""
    names: dict[int, str] = {}
    for metric in named:
        first = names.setdefault(id(metric.metric), metric.name)
        if first != metric.name:
            where = place(module.eval_metrics_fn) if module.eval_metrics_fn else module.path
            raise UserError(
                f"{where}: metrics {first!r} and {metric.name!r} are the same object",
                hint="create one metric for each name",
            )


def _metric(name: str, value: object, where: str) -> keras.metrics.Metric:
    """A Keras metric as it is, or the mean of a function's values per example."""
    if isinstance(value, keras.metrics.Metric):
        return value
    if isinstance(value, type) and issubclass(value, keras.metrics.Metric):
        return value()
    if callable(value):
        return keras.metrics.MeanMetricWrapper(_flat(value), name=name)
    raise UserError(
        f"{where}: metric {name!r} is {value!r}, expected a Keras metric or a function(labels,"
        " predictions)"
    )


def _flat(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Cast the values of the user's function, of any numeric or boolean type, to float32.

    Values of unknown rank, as of `tf.squeeze` without an axis, become a vector: Keras cannot
    average them.
    """

    def values(labels: Structure, predictions: Structure) -> Tensor:
        result = keras.ops.cast(function(labels, predictions), "float32")
        return result if result.shape.rank is not None else tf.reshape(result, [-1])

    return values


def _load(name: str, metric: keras.metrics.Metric, arrays: tuple[tuple[float, ...], ...]) -> None:
    sizes = [int(np.prod(variable.shape)) for variable in metric.variables]
    if sizes != [len(array) for array in arrays]:
        raise UserError(
            f"metric {name!r} has states of {sizes} numbers, got {[len(array) for array in arrays]}"
        )
    for variable, array in zip(metric.variables, arrays, strict=True):
        variable.assign(np.asarray(array).reshape(variable.shape))


def _scalars(name: str, result: Structure) -> dict[str, float]:
    if isinstance(result, Mapping):
        return {
            key: value
            for inner, part in result.items()
            for key, value in _scalars(f"{name}/{inner}", part).items()
        }
    array = np.asarray(result)
    if array.ndim == 0:
        return {name: float(array)}
    return {f"{name}/{index}": float(value) for index, value in enumerate(array.ravel())}
