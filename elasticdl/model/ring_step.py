"""One synchronous training step on a part of a global minibatch, as one call of a compiled
function.

Every member computes gradients on its part, all reduce them inside the function, and every member
applies the same update to
its own variables. So that the result is that of one process on the whole minibatch, a member
contributes its mean gradient
times its examples, and its examples; the sum of the first is divided by the sum of the second. A
member whose part is empty
contributes zeros. The averages that layers keep (batch normalisation) are reduced in the same way.

All that is reduced travels as a few long vectors: one of each float type, cut in pieces of some
megabytes so that the
reduction of the last layers overlaps with the gradients of the first. Sparse gradients travel as
such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.ring_model import RingModel
from elasticdl.model.structure import Structure, fits, input_specs, relaxed
from elasticdl.model.usercode import user_code

BUCKET_BYTES = 16 << 20
SMALL_BYTES = 1 << 20
"""A sparse gradient of a variable of at most this size is reduced as a dense one (measured with
6,656 ids a step on two members of
one machine: faster at 1 MB, slower by 1.7 times at 4 MB and by nine times at 16 MB).
"""

_CALLS_PER_STEP = 256
"""Random numbers that one generator may be asked for in one step before they overlap with those of
the next step.
"""

_RANK_STRIDE = 0x9E3779B1


class Reducer(Protocol):
    """What a step needs of the ring.

    Called while a function is traced; the same calls in the same order on all members.
    """

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """Sum over all members of a float32 or float64 vector; bit for bit the same on all of
        them.
        """

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """All members' rows, in the order of their ranks; the first axis may differ between
        members.
        """

    def guarded(self) -> AbstractContextManager[None]:
        """Around calls of functions that reduce: what the ring raises becomes an error of this
        product's own tree.
        """


@final
class Alone:
    """The `Reducer` of somebody who is a ring of one."""

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """The sum of one."""
        return tensor

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """The rows of one."""
        return tensor

    def guarded(self) -> AbstractContextManager[None]:
        """Nothing can break."""
        return nullcontext()


@final
@dataclass(frozen=True, slots=True)
class RingOutcome:
    """What one step did, the same on all members.

    `loss` is the mean over all `examples` of the global minibatch. Without examples, and if
    `nonfinite` names something,
    nothing was applied. `wishes` counts members that asked for a pause.
    """

    loss: float
    examples: int
    wishes: int
    nonfinite: str = ""

    @property
    def applied(self) -> bool:
        """Whether the model changed."""
        return self.examples > 0 and not self.nonfinite


@final
@dataclass(slots=True)
class _Contribution:
    """Everything that one member brings in, scaled by its examples.

    Gradients are None where the loss does not depend on it.
    """

    gradients: list[Any]
    averages: list[Tensor]
    examples: Tensor
    loss: Tensor
    local: list[tuple[Any, Tensor]] = field(default_factory=list)


@final
@dataclass(slots=True)
class _Compiled:
    features: Structure
    labels: Structure
    function: Callable[..., Any]


@final
class RingStep:
    """Traces at the first batch.

    One thread at a time. Raises UserError for what user code raises, and what
    `Reducer.guarded` does.
    """

    def __init__(self, model: RingModel, reducer: Reducer) -> None:
        self._model = model
        self._reducer = reducer
        self._compiled: list[_Compiled] = []
        self._nothing: Callable[..., Any] | None = None
        self._sparse: tuple[bool | None, ...] = ()
        """Of each trainable variable: whether its gradient is sparse, None where it has none.

        Known after the first trace.
        """
        self._calls = 0
        with tf.device("CPU:0"):
            self._contributed = tf.Variable(0, dtype=tf.int64, trainable=False)
            """The newest call that came to its reductions: nothing else tells from outside who
            waits for whom.
            """

    def waits(self) -> bool:
        """In `train`: this member's part is done, and it waits for the others'. From any thread."""
        return int(self._contributed.numpy()) == self._calls

    def train(
        self,
        part: tuple[Structure, Structure] | None,
        *,
        rank: int,
        iteration: int,
        wish: bool = False,
    ) -> RingOutcome:
        """One step on this member's part (features, labels) of the global minibatch; None: its part
        is empty.

        `iteration` counts applied steps: random numbers depend on it and on `rank` only. `wish`:
        ask all for a pause.
        """
        self._calls += 1
        control = tf.constant([rank, iteration, int(wish), self._calls], tf.int64)
        if part is None:
            with self._reducer.guarded():
                made = self._function_of_nothing()(control)
        else:
            flat = [
                tf.convert_to_tensor(one) for one in tf.nest.flatten(part, expand_composites=True)
            ]
            with user_code("the training step", self._model.module.zoo):
                function = self._function(*part)
                with self._reducer.guarded():
                    made = function(control, *flat)
        loss, examples, wishes, finite = (one.numpy() for one in made)
        return RingOutcome(float(loss), int(examples), int(wishes), self._blamed(finite))

    def _function(self, features: Structure, labels: Structure) -> Callable[..., Any]:
        """Traced for batches that look like this one.

        A dimension other than the first that changes becomes unknown.
        """
        specs: Structure = (input_specs(features), input_specs(labels))
        leaves = tf.nest.flatten((features, labels), expand_composites=True)
        flat = [tf.convert_to_tensor(one) for one in leaves]
        for compiled in self._compiled:
            if fits((compiled.features, compiled.labels), (features, labels), flat):
                return compiled.function
            specs = relaxed((compiled.features, compiled.labels), specs)

        def step(control: Tensor, *given: Tensor) -> list[Tensor]:
            part = tf.nest.pack_sequence_as(specs, given, expand_composites=True)
            return self._reduce_and_apply(control, self._computed(control, *part))

        signature = [tf.TensorSpec([4], tf.int64), *tf.nest.flatten(specs, expand_composites=True)]
        function: Callable[..., Any] = tf.function(
            step, input_signature=signature, autograph=False
        ).get_concrete_function()
        self._compiled.append(_Compiled(specs[0], specs[1], function))
        return function

    def _function_of_nothing(self) -> Callable[..., Any]:
        """For a member whose part is empty; the others' function must have been traced here
        before.
        """
        assert self._compiled, "a member has to see a batch before it can take part without one"
        if self._nothing is None:

            def step(control: Tensor) -> list[Tensor]:
                return self._reduce_and_apply(control, self._zero())

            signature = [tf.TensorSpec([4], tf.int64)]
            self._nothing = tf.function(
                step, input_signature=signature, autograph=False
            ).get_concrete_function()
        return self._nothing

    def _computed(self, control: Tensor, features: Structure, labels: Structure) -> _Contribution:
        variables = [one.value for one in self._model.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with keras.StatelessScope(
                [*self._random(control), *self._regularised()], collect_losses=True
            ) as scope:
                outputs = self._model.model(features, training=True)
                losses = list(self._model.model.losses)
            value, examples = self._mean_loss(labels, outputs)
            total = tf.add_n([value, *(tf.cast(tf.reduce_sum(one), value.dtype) for one in losses)])
            scaled = total * tf.cast(examples, total.dtype)
        gradients = [_dense_if_small(one) for one in tape.gradient(scaled, variables)]
        self._sparse = tuple(
            None if one is None else isinstance(one, tf.IndexedSlices) for one in gradients
        )
        averages = [
            self._difference(scope, one) * tf.cast(examples, one.dtype)
            for one in self._model.averaged
        ]
        return _Contribution(gradients, averages, examples, scaled, self._local(scope))

    def _mean_loss(self, labels: Structure, outputs: Structure) -> tuple[Tensor, Tensor]:
        """The loss, and how many values it is the mean of: those that the user's loss gives, or the
        examples.
        """
        value = self._model.module.loss(labels, outputs)
        if value.shape.rank == 0:
            leaf = tf.nest.flatten(outputs, expand_composites=True)[0]
            return value, tf.shape(leaf)[0]
        return tf.reduce_mean(value), tf.size(value)

    def _random(self, control: Tensor) -> list[tuple[Any, Tensor]]:
        """States of random generators in this step: from where they began, the step and the rank,
        and from nothing else.
        """
        mapping = []
        for seed in self._model.seeds:
            offset = tf.stack([control[0] * _RANK_STRIDE, control[1] * _CALLS_PER_STEP])
            mapping.append((seed, seed.value + tf.cast(offset, seed.value.dtype)))
        return mapping

    def _regularised(self) -> list[tuple[Any, Tensor]]:
        """Keras looks regularised weights up in the scope; the others are read where they are used,
        as slices where possible.
        """
        regularised = [one for one in self._model.trainable if one.regularizer is not None]
        return [(one, tf.convert_to_tensor(one.value)) for one in regularised]

    def _difference(self, scope: keras.StatelessScope, variable: Any) -> Tensor:  # noqa: ANN401 - a Keras variable
        new = scope.get_current_value(variable)
        return (
            tf.zeros_like(variable.value)
            if new is None
            else tf.cast(new, variable.dtype) - variable.value
        )

    def _local(self, scope: keras.StatelessScope) -> list[tuple[Any, Tensor]]:
        """What else layers assign, such as counters: kept as it is here."""
        ours = {
            id(one) for one in (*self._model.trainable, *self._model.averaged, *self._model.seeds)
        }
        others = [
            (one, scope.get_current_value(one))
            for one in self._model.model.variables
            if id(one) not in ours
        ]
        return [(variable, value) for variable, value in others if value is not None]

    def _zero(self) -> _Contribution:
        gradients: list[Any] = []
        for variable, sparse in zip(self._model.trainable, self._sparse, strict=True):
            value = variable.value
            if sparse:
                rows = tf.zeros([0, *value.shape[1:]], value.dtype)
                gradients.append(
                    tf.IndexedSlices(rows, tf.zeros([0], tf.int64), tf.shape(value, tf.int64))
                )
            else:
                gradients.append(None if sparse is None else tf.zeros(value.shape, value.dtype))
        averages = [tf.zeros(one.shape, one.dtype) for one in self._model.averaged]
        return _Contribution(
            gradients,
            averages,
            tf.constant(0),
            tf.constant(0.0, _wide([one.dtype for one in self._model.trainable])),
        )

    def _reduce_and_apply(self, control: Tensor, mine: _Contribution) -> list[Tensor]:
        packing = _Packing(self._reducer)
        # In the gradients' own type, so that they travel in the same vector.
        wide = _wide([one.dtype for one in self._model.trainable])
        rate = self._rate()
        told = [
            mine.examples,
            mine.loss,
            control[2],
            *([] if rate is None else [tf.where(control[0] == 0, rate.value, 0)]),
        ]
        numbers = packing.add(tf.stack([tf.cast(one, wide) for one in told]))
        dense = {
            index: packing.add(one)
            for index, one in enumerate(mine.gradients)
            if self._sparse[index] is False
        }
        averages = [packing.add(one) for one in mine.averages]
        rows = {
            index: self._gathered(index, one)
            for index, one in enumerate(mine.gradients)
            if self._sparse[index]
        }
        with tf.control_dependencies(packing.added()):
            self._contributed.assign(control[3])
        packing.reduce()
        examples, loss, wishes, *rates = tf.unstack(packing.get(numbers))
        divisor = tf.maximum(examples, 1.0)
        gradients = [
            self._divided(packing, index, dense, rows, divisor)
            for index in range(len(mine.gradients))
        ]
        changes = [
            packing.get(one) / tf.cast(divisor, self._model.averaged[i].dtype)
            for i, one in enumerate(averages)
        ]
        finite = tf.stack([_finite(loss), *(_finite(one) for one in gradients if one is not None)])

        def apply() -> Tensor:
            if rate is not None:
                rate.assign(tf.cast(rates[0], rate.dtype))
            self._model.optimizer.apply(gradients, list(self._model.trainable))
            for variable, change in zip(self._model.averaged, changes, strict=True):
                variable.assign(variable.value + change)
            for variable, value in mine.local:
                variable.assign(value)
            return tf.constant(True)

        with tf.control_dependencies(
            changes
        ):  # a ring that breaks in the last of its reductions leaves no half of a step
            good = tf.logical_and(examples > 0, tf.reduce_all(finite))
        tf.cond(good, apply, lambda: tf.constant(False))
        return [loss / divisor, examples, wishes, finite]

    def _rate(self) -> Any:  # noqa: ANN401 - a Keras variable
        """The learning rate where it is a number: rank 0's counts on all members, since callbacks
        may know more on some of them.
        """
        rate = self._model.optimizer._learning_rate
        return rate if isinstance(rate, keras.Variable) else None

    def _gathered(self, index: int, gradient: tf.IndexedSlices) -> tuple[Tensor, Tensor]:
        """Distinct ids and, for each, the sum over all members.

        Each member's are distinct when they travel.
        """
        mine, sums = _merged(
            tf.cast(gradient.indices, tf.int64),
            tf.cast(gradient.values, _wide([gradient.values.dtype])),
        )
        return _merged(
            self._reducer.gathered(f"ids.{index}", mine),
            self._reducer.gathered(f"rows.{index}", sums),
        )

    def _divided(
        self,
        packing: _Packing,
        index: int,
        dense: dict[int, int],
        rows: dict[int, tuple[Tensor, Tensor]],
        divisor: Tensor,
    ) -> Any:  # noqa: ANN401 - a tensor, slices, or None
        variable = self._model.trainable[index].value
        if index in dense:
            return packing.get(dense[index]) / tf.cast(divisor, variable.dtype)
        if index not in rows:
            return None
        ids, values = rows[index]
        values = tf.cast(values / tf.cast(divisor, values.dtype), variable.dtype)
        return tf.IndexedSlices(values, ids, tf.shape(variable, tf.int64))

    def _blamed(self, finite: Any) -> str:  # noqa: ANN401 - bool[1 + gradients]
        if finite.all():
            return ""
        names = [
            one.path
            for one, sparse in zip(self._model.trainable, self._sparse, strict=True)
            if sparse is not None
        ]
        return ", ".join(
            [name for name, good in zip(["loss", *names], finite, strict=True) if not good][:2]
        )


@final
class _Packing:
    """Puts tensors into vectors to be reduced, and takes them out again.

    Half types travel as float32.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._tensors: list[Tensor] = []
        self._results: list[Tensor] = []

    def add(self, tensor: Tensor) -> int:
        """The number by which `get` gives its sum."""
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def added(self) -> list[Tensor]:
        """Everything that `add` was given."""
        return list(self._tensors)

    def reduce(self) -> None:
        """Begin all reductions: the last tensors, whose gradients are there first, in the first
        vectors.
        """
        self._results = [None] * len(self._tensors)
        buckets: dict[Any, list[list[int]]] = {}
        for index in reversed(range(len(self._tensors))):
            tensor = self._tensors[index]
            parts = buckets.setdefault(_wide([tensor.dtype]), [[]])
            if parts[-1] and self._bytes([*parts[-1], index]) > BUCKET_BYTES:
                parts.append([])
            parts[-1].append(index)
        for dtype, parts in buckets.items():
            for number, part in enumerate(parts):
                self._reduce(f"{tf.as_dtype(dtype).name}.{number}", dtype, part)

    def get(self, number: int) -> Tensor:
        """The sum over all members."""
        return self._results[number]

    def _bytes(self, part: Sequence[int]) -> int:
        return sum(
            int(np.prod(self._tensors[one].shape.as_list())) * self._tensors[one].dtype.size
            for one in part
        )

    def _reduce(self, name: str, dtype: Any, part: Sequence[int]) -> None:  # noqa: ANN401
        flat = tf.concat([tf.cast(tf.reshape(self._tensors[one], [-1]), dtype) for one in part], 0)
        sizes = [int(np.prod(self._tensors[one].shape.as_list())) for one in part]
        for one, piece in zip(
            part, tf.split(self._reducer.reduced(name, flat), sizes), strict=True
        ):
            self._results[one] = tf.cast(
                tf.reshape(piece, self._tensors[one].shape), self._tensors[one].dtype
            )


def _dense_if_small(gradient: Any) -> Any:  # noqa: ANN401 - a tensor, slices, or None
    """Slices of a small variable as a tensor: it travels with the others, where slices need two
    exchanges of their own.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = tf.get_static_value(gradient.dense_shape)
    if shape is None or int(np.prod(shape)) * gradient.values.dtype.size > SMALL_BYTES:
        return gradient
    return tf.ensure_shape(
        tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0]), shape
    )


def _merged(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids, and for each the sum of its rows."""
    distinct, places = tf.unique(ids)
    return distinct, tf.math.unsorted_segment_sum(rows, places, tf.size(distinct))


def _wide(dtypes: Sequence[Any]) -> Any:  # noqa: ANN401 - tf.DType
    """float64 if one of them is, else float32."""
    return tf.float64 if any(tf.as_dtype(one) == tf.float64 for one in dtypes) else tf.float32


def _finite(tensor: Any) -> Tensor:  # noqa: ANN401 - a tensor or slices
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return tf.reduce_all(tf.math.is_finite(values))
