"""Train one synchronous step on a part of a global minibatch, in one call of a compiled function.

Every member computes gradients on its part, all reduce them inside the function, and each applies
the same update to its own variables. The result must equal that of one process on the whole
minibatch. Therefore a member contributes its mean gradient times its number of examples, and that
number; the sum of the former is divided by the sum of the latter. A member with an empty part
contributes zeros. The averages of layers (batch normalisation) are reduced in the same way.

Everything travels as a few long vectors: one per float type, cut into pieces of some megabytes, so
that the reduction of the last layers overlaps with the gradients of the first. Sparse gradients
travel as such.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.packing import Packing, Reducer, wide
from elasticdl.model.ring_model import RingModel
from elasticdl.model.structure import Structure, fits, input_specs, relaxed
from elasticdl.model.usercode import user_code

SMALL_BYTES = 1 << 20
"""Largest variable whose sparse gradient is reduced as a dense one.

Measured with 6,656 ids per step on two members of one machine, dense is faster at 1 MB, 1.7 times
slower at 4 MB and nine times slower at 16 MB.
"""

_CALLS_PER_STEP = 256
"""Random numbers per generator and step, before they overlap with those of the next step."""

_RANK_STRIDE = 0x9E3779B1


@final
class Alone:
    """The `Reducer` of a ring with one member."""

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def guarded(self) -> AbstractContextManager[None]:
        """A null context: nothing can fail."""
        return nullcontext()


@final
@dataclass(frozen=True, slots=True)
class RingOutcome:
    """The result of one step, equal on all members.

    `loss` is the mean over all `examples` of the global minibatch. Nothing is applied if there are
    no examples, or if `nonfinite` names a value. `wishes` counts members that asked for a pause.
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
    """The contribution of one member, scaled by its number of examples.

    Gradients are None where the loss does not depend on the variable.
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
    """Compiles the step at the first batch. It belongs to one thread at a time.

    Raises UserError if user code raises, and the errors of `Reducer.guarded`.
    """

    def __init__(self, model: RingModel, reducer: Reducer) -> None:
        self._model = model
        self._reducer = reducer
        self._compiled: list[_Compiled] = []
        self._nothing: Callable[..., Any] | None = None
        self._sparse: tuple[bool | None, ...] = ()
        """For each trainable variable: whether its gradient is sparse; None: it has none.

        Known after the first trace.
        """
        self._calls = 0
        with tf.device("CPU:0"):
            self._contributed = tf.Variable(0, dtype=tf.int64, trainable=False)
            """The latest call that reached its reductions; shows other threads who waits."""

    def waits(self) -> bool:
        """In `train`: this member has done its part and waits for the others'. From any thread."""
        return int(self._contributed.numpy()) == self._calls

    def train(
        self,
        part: tuple[Structure, Structure] | None,
        *,
        rank: int,
        iteration: int,
        wish: bool = False,
    ) -> RingOutcome:
        """Run one step on this member's part of the global minibatch: features, labels, or None.

        `iteration` counts applied steps; random numbers depend only on it and on `rank`. `wish`
        asks all members for a pause.
        """
        self._calls += 1
        control = tf.constant([rank, iteration, int(wish), self._calls], tf.int64)
        if part is None:
            with self._reducer.guarded():
                made = self._function_of_nothing()(control)
        else:
            flat = [
                tf.convert_to_tensor(tensor)
                for tensor in tf.nest.flatten(part, expand_composites=True)
            ]
            with user_code("the training step", self._model.module.zoo):
                function = self._function(*part)
                with self._reducer.guarded():
                    made = function(control, *flat)
        loss, examples, wishes, finite = (tensor.numpy() for tensor in made)
        return RingOutcome(float(loss), int(examples), int(wishes), self._blamed(finite))

    def _function(self, features: Structure, labels: Structure) -> Callable[..., Any]:
        """The function traced for batches like this one.

        A dimension that changes, other than the first, becomes unknown.
        """
        specs: Structure = (input_specs(features), input_specs(labels))
        leaves = tf.nest.flatten((features, labels), expand_composites=True)
        flat = [tf.convert_to_tensor(leaf) for leaf in leaves]
        for compiled in self._compiled:
            if fits((compiled.features, compiled.labels), (features, labels), flat):
                return compiled.function
            specs = relaxed((compiled.features, compiled.labels), specs)

        # Flat arguments: rank and iteration are tensors, so that they never cause a new trace.
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
        """The step of a member whose part is empty; a first batch must have been traced before."""
        assert self._compiled, "a member must see a batch before a step with an empty part"
        if self._nothing is None:

            def step(control: Tensor) -> list[Tensor]:
                return self._reduce_and_apply(control, self._zero())

            signature = [tf.TensorSpec([4], tf.int64)]
            self._nothing = tf.function(
                step, input_signature=signature, autograph=False
            ).get_concrete_function()
        return self._nothing

    def _computed(self, control: Tensor, features: Structure, labels: Structure) -> _Contribution:
        variables = [variable.value for variable in self._model.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with keras.StatelessScope(
                [*self._random(control), *self._regularised()], collect_losses=True
            ) as scope:
                outputs = self._model.model(features, training=True)
                losses = list(self._model.model.losses)
            value, examples = self._mean_loss(labels, outputs)
            total = tf.add_n(
                [value, *(tf.cast(tf.reduce_sum(loss), value.dtype) for loss in losses)]
            )
            # Weight by examples: parts differ in size, so a mean of means would be biased.
            scaled = total * tf.cast(examples, total.dtype)
        gradients = [_dense_if_small(gradient) for gradient in tape.gradient(scaled, variables)]
        self._sparse = tuple(
            None if gradient is None else isinstance(gradient, tf.IndexedSlices)
            for gradient in gradients
        )
        averages = [
            self._difference(scope, variable) * tf.cast(examples, variable.dtype)
            for variable in self._model.averaged
        ]
        return _Contribution(gradients, averages, examples, scaled, self._local(scope))

    def _mean_loss(self, labels: Structure, outputs: Structure) -> tuple[Tensor, Tensor]:
        """The loss, and the number of values that it is the mean of.

        These are the values that the user's loss returns, or the examples.
        """
        module = self._model.module
        with user_code("loss", module.zoo, module.loss):
            value = module.loss(labels, outputs)
        if value.shape.rank == 0:
            leaf = tf.nest.flatten(outputs, expand_composites=True)[0]
            # A scalar loss hides its number of values: count the examples of the outputs.
            return value, tf.shape(leaf)[0]
        return tf.reduce_mean(value), tf.size(value)

    def _random(self, control: Tensor) -> list[tuple[Any, Tensor]]:
        """States of random generators in this step; they depend only on seed, step and rank."""
        mapping = []
        for seed in self._model.seeds:
            # Derived from rank and step, not advanced: a repeated step draws the same numbers.
            offset = tf.stack([control[0] * _RANK_STRIDE, control[1] * _CALLS_PER_STEP])
            mapping.append((seed, seed.value + tf.cast(offset, seed.value.dtype)))
        return mapping

    def _regularised(self) -> list[tuple[Any, Tensor]]:
        """Keras looks up regularised weights in the scope.

        All others are read where they are used, as slices where possible.
        """
        regularised = [
            variable for variable in self._model.trainable if variable.regularizer is not None
        ]
        return [(variable, tf.convert_to_tensor(variable.value)) for variable in regularised]

    def _difference(self, scope: keras.StatelessScope, variable: keras.Variable) -> Tensor:
        new = scope.get_current_value(variable)
        return (
            tf.zeros_like(variable.value)
            if new is None
            else tf.cast(new, variable.dtype) - variable.value
        )

    def _local(self, scope: keras.StatelessScope) -> list[tuple[Any, Tensor]]:
        """Other variables that layers assign, such as counters; they stay local."""
        ours = {
            id(variable_here)
            for variable_here in (*self._model.trainable, *self._model.averaged, *self._model.seeds)
        }
        others = [
            (variable_here, scope.get_current_value(variable_here))
            for variable_here in self._model.model.variables
            if id(variable_here) not in ours
        ]
        return [(variable, value) for variable, value in others if value is not None]

    def _zero(self) -> _Contribution:
        gradients: list[Any] = []
        for variable, sparse in zip(self._model.trainable, self._sparse, strict=True):
            value = variable.value
            if sparse:
                rows = tf.zeros([0, *value.shape[1:]], value.dtype)
                gradients.append(
                    # No rows, but the member must take part in the exchange, or the others wait.
                    tf.IndexedSlices(rows, tf.zeros([0], tf.int64), tf.shape(value, tf.int64))
                )
            else:
                gradients.append(None if sparse is None else tf.zeros(value.shape, value.dtype))
        averages = [
            tf.zeros(variable_zero.shape, variable_zero.dtype)
            for variable_zero in self._model.averaged
        ]
        return _Contribution(
            gradients,
            averages,
            tf.constant(0),
            tf.constant(
                0.0, wide([variable_zero.dtype for variable_zero in self._model.trainable])
            ),
        )

    def _reduce_and_apply(self, control: Tensor, mine: _Contribution) -> list[Tensor]:
        packing = Packing(self._reducer)
        # Use the gradients' type, so that these numbers travel in the same vector.
        dtype = wide([variable.dtype for variable in self._model.trainable])
        rate = self._rate()
        scalars = [
            mine.examples,
            mine.loss,
            control[2],
            # All others add 0, so the sum is rank 0's rate: no broadcast is needed.
            *([] if rate is None else [tf.where(control[0] == 0, rate.value, 0)]),
        ]
        numbers = packing.add(tf.stack([tf.cast(scalar, dtype) for scalar in scalars]))
        dense = {
            index: packing.add(gradient)
            for index, gradient in enumerate(mine.gradients)
            if self._sparse[index] is False
        }
        averages = [packing.add(average) for average in mine.averages]
        rows = {
            index: self._gathered(index, gradient)
            for index, gradient in enumerate(mine.gradients)
            if self._sparse[index]
        }
        # Record the call only when its inputs are ready: before that this member still computes.
        with tf.control_dependencies(packing.added()):
            self._contributed.assign(control[3])
        packing.reduce()
        examples, loss, wishes, *rates = tf.unstack(packing.get(numbers))
        # All parts may be empty; then nothing is applied, but the division still runs.
        divisor = tf.maximum(examples, 1.0)
        gradients = [
            self._divided(packing, index, dense, rows, divisor)
            for index in range(len(mine.gradients))
        ]
        changes = [
            packing.get(number) / tf.cast(divisor, self._model.averaged[index].dtype)
            for index, number in enumerate(averages)
        ]
        finite = tf.stack([_finite(part) for part in (loss, *gradients) if part is not None])
        # Apply only after the last reduction: a ring that breaks there leaves no partial step.
        with tf.control_dependencies(changes):
            good = tf.logical_and(examples > 0, tf.reduce_all(finite))
        tf.cond(
            good,
            lambda: self._apply(rates, gradients, changes, mine.local),
            lambda: tf.constant(False),
        )
        return [loss / divisor, examples, wishes, finite]

    def _apply(
        self,
        rates: list[Tensor],
        gradients: list[Any],
        changes: list[Tensor],
        local: list[tuple[Any, Tensor]],
    ) -> Tensor:
        """Apply reduced gradients and changes of averages; set this member's own variables.

        `rates`: rank 0's learning rate; empty for a schedule.
        """
        rate = self._rate()
        if rate is not None:
            rate.assign(tf.cast(rates[0], rate.dtype))
        self._model.optimizer.apply(gradients, list(self._model.trainable))
        for variable, change in zip(self._model.averaged, changes, strict=True):
            variable.assign(variable.value + change)
        for variable, value in local:
            variable.assign(value)
        return tf.constant(True)

    def _rate(self) -> keras.Variable:
        """The learning rate variable, or None for a schedule.

        Rank 0's value is used on all members, since callbacks may differ between them.
        """
        rate = self._model.optimizer._learning_rate
        return rate if isinstance(rate, keras.Variable) else None

    def _gathered(self, index: int, gradient: tf.IndexedSlices) -> tuple[Tensor, Tensor]:
        """Distinct ids and, for each, the sum over all members.

        Each member merges its own ids before they travel.
        """
        mine, sums = _merged(
            tf.cast(gradient.indices, tf.int64),
            tf.cast(gradient.values, wide([gradient.values.dtype])),
        )
        return _merged(
            self._reducer.gathered(f"ids.{index}", mine),
            self._reducer.gathered(f"rows.{index}", sums),
        )

    def _divided(
        self,
        packing: Packing,
        index: int,
        dense: dict[int, int],
        rows: dict[int, tuple[Tensor, Tensor]],
        divisor: Tensor,
    ) -> tf.Tensor | tf.IndexedSlices | None:
        variable = self._model.trainable[index].value
        if index in dense:
            return packing.get(dense[index]) / tf.cast(divisor, variable.dtype)
        if index not in rows:
            return None
        ids, values = rows[index]
        values = tf.cast(values / tf.cast(divisor, values.dtype), variable.dtype)
        return tf.IndexedSlices(values, ids, tf.shape(variable, tf.int64))

    def _blamed(self, finite: tf.Tensor) -> str:
        if finite.all():
            return ""
        names = [
            variable.path
            for variable, sparse in zip(self._model.trainable, self._sparse, strict=True)
            if sparse is not None
        ]
        return ", ".join(
            [name for name, good in zip(["loss", *names], finite, strict=True) if not good][:2]
        )


def _dense_if_small(
    gradient: tf.Tensor | tf.IndexedSlices | None,
) -> tf.Tensor | tf.IndexedSlices | None:
    """Convert slices of a small variable to a tensor.

    A tensor travels with the others, while slices need two exchanges of their own.
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


def _finite(tensor: tf.Tensor | tf.IndexedSlices) -> Tensor:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return tf.reduce_all(tf.math.is_finite(values))
