"""What one part of a global minibatch contributes to a step of the ring: gradients, and averages of
layers.

A contribution is the mean gradient of the part times its number of examples, and that number. The
sum of the former over all parts, divided by the sum of the latter, is the gradient of the whole
minibatch. An empty part contributes zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.model.building import Variable, outputs_of
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.packing import wide
from elasticdl.model.ring_model import RingModel
from elasticdl.model.structure import Structure, fits, input_specs, relaxed
from elasticdl.model.usercode import user_code

Part: TypeAlias = tuple[Structure, Structure] | None
"""Features and labels; None: no records."""

SMALL_BYTES = 1 << 20
"""Largest variable whose sparse gradient is reduced as a dense one, if its slices may be summed.

Measured with 6,656 ids per step on two members of one machine, dense is faster at 1 MB, 1.7 times
slower at 4 MB and nine times slower at 16 MB.
"""

_CALLS_PER_STEP = 256
"""Random numbers per generator and step, before they overlap with those of the next step."""

_RANK_STRIDE = 0x9E3779B1


@final
@dataclass(slots=True)
class Contribution:
    """The contribution of one part, scaled by its number of examples.

    Gradients are None where the loss does not depend on the variable.
    """

    gradients: list[Any]
    averages: list[Tensor]
    examples: Tensor
    loss: Tensor
    local: list[tuple[Any, Tensor]] = field(default_factory=list)


@final
class Contributions:
    """Builds contributions in graphs. It belongs to one thread at a time."""

    def __init__(self, model: RingModel) -> None:
        self._model = model
        self.sparse: tuple[bool | None, ...] = ()
        """For each trainable variable: whether its gradient is sparse; None: it has none.

        Known after the first trace.
        """
        self.local: list[Any] = []
        """Other variables that layers assign; known after the first trace, too."""

    def computed(self, control: Tensor, features: Structure, labels: Structure) -> Contribution:
        """In a graph, the contribution of these records; `control` begins with part and step."""
        variables = [variable.value for variable in self._model.trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with keras.StatelessScope(
                [*self._random(control), *self._regularised()], collect_losses=True
            ) as scope:
                outputs = outputs_of(self._model.model, features, self._model.module, training=True)
                losses = list(self._model.model.losses)
            value, examples = self._mean_loss(labels, outputs)
            total = tf.add_n(
                [value, *(tf.cast(tf.reduce_sum(loss), value.dtype) for loss in losses)]
            )
            # Weight by examples: parts differ in size, so a mean of means would be biased.
            weighted = total * tf.cast(examples, total.dtype)
            scaled = self._model.optimizer.scale_loss(total)
        by_optimizer = scaled is not total
        gradients = tape.gradient(scaled if by_optimizer else weighted, variables)
        if by_optimizer:
            # Not the loss is weighted: in float16, larger gradients would overflow on their way.
            gradients = [_times(examples, gradient) for gradient in gradients]
        gradients = [
            self._dense_if_small(_shaped(gradient, variable))
            for gradient, variable in zip(gradients, self._model.trainable, strict=True)
        ]
        self.sparse = tuple(
            None if gradient is None else isinstance(gradient, tf.IndexedSlices)
            for gradient in gradients
        )
        averages = [
            self._difference(scope, variable) * tf.cast(examples, variable.dtype)
            for variable in self._model.averaged
        ]
        local = self._local(scope)
        self.local = [variable for variable, _ in local]
        return Contribution(gradients, averages, examples, weighted, local)

    def _dense_if_small(
        self, gradient: tf.Tensor | tf.IndexedSlices | None
    ) -> tf.Tensor | tf.IndexedSlices | None:
        """Convert slices of a small variable to a tensor, if they may be summed.

        A tensor travels with the others, while slices need two more exchanges.
        """
        if not isinstance(gradient, tf.IndexedSlices) or not self._model.sums_rows:
            return gradient
        shape = tf.get_static_value(gradient.dense_shape)
        if shape is None or int(np.prod(shape)) * gradient.values.dtype.size > SMALL_BYTES:
            return gradient
        return tf.ensure_shape(
            tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0]), shape
        )

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
        """States of random generators in this step; they depend only on seed, step and part."""
        mapping = []
        for seed in self._model.seeds:
            # Derived from part and step, not advanced: a repeated step draws the same numbers.
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

    def nothing(self) -> Contribution:
        """In a graph, the contribution of no records; after the first `computed`."""
        gradients: list[Any] = []
        for variable, sparse in zip(self._model.trainable, self.sparse, strict=True):
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
        return Contribution(
            gradients,
            averages,
            tf.constant(0),
            tf.constant(
                0.0, wide([variable_zero.dtype for variable_zero in self._model.trainable])
            ),
            [(variable, tf.convert_to_tensor(variable.value)) for variable in self.local],
        )


@final
@dataclass(slots=True)
class _Compiled:
    features: Structure
    labels: Structure
    function: Callable[..., list[Tensor]]


@final
class PartFunctions:
    """Compiles `body(control, contribution)` for parts of each shape, and for the empty part.

    A dimension that changes, other than the first, becomes unknown. It belongs to one thread at a
    time.
    """

    def __init__(
        self, contributions: Contributions, body: Callable[[Tensor, Contribution], list[Tensor]]
    ) -> None:
        self._contributions = contributions
        self._body = body
        self._compiled: list[_Compiled] = []
        self._nothing: Callable[..., list[Tensor]] | None = None

    def of(self, part: Part) -> Callable[[Tensor], list[Tensor]]:
        """The function of `control` for this part. Any thread may call it."""
        if part is None:
            return self._of_nothing()
        flat = [
            tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(part, expand_composites=True)
        ]
        function = self._traced(*part, flat)
        return lambda control: function(control, *flat)

    def _traced(
        self, features: Structure, labels: Structure, flat: list[Tensor]
    ) -> Callable[..., list[Tensor]]:
        specs: Structure = (input_specs(features), input_specs(labels))
        for compiled in self._compiled:
            if fits((compiled.features, compiled.labels), (features, labels), flat):
                return compiled.function
            specs = relaxed((compiled.features, compiled.labels), specs)

        # Flat arguments: part and iteration are tensors, so that they never cause a new trace.
        def step(control: Tensor, *leaves: Tensor) -> list[Tensor]:
            part = tf.nest.pack_sequence_as(specs, leaves, expand_composites=True)
            return self._body(control, self._contributions.computed(control, *part))

        signature = [tf.TensorSpec([4], tf.int64), *tf.nest.flatten(specs, expand_composites=True)]
        function: Callable[..., list[Tensor]] = tf.function(
            step, input_signature=signature, autograph=False
        ).get_concrete_function()
        self._compiled.append(_Compiled(specs[0], specs[1], function))
        return function

    def _of_nothing(self) -> Callable[..., list[Tensor]]:
        assert self._compiled, "a member must see a batch before a step with an empty part"
        if self._nothing is None:

            def step(control: Tensor) -> list[Tensor]:
                return self._body(control, self._contributions.nothing())

            signature = [tf.TensorSpec([4], tf.int64)]
            self._nothing = tf.function(
                step, input_signature=signature, autograph=False
            ).get_concrete_function()
        return self._nothing


def _times(
    factor: Tensor, gradient: tf.Tensor | tf.IndexedSlices | None
) -> tf.Tensor | tf.IndexedSlices | None:
    return (
        None if gradient is None else tf.math.scalar_mul(tf.cast(factor, gradient.dtype), gradient)
    )


def _shaped(
    gradient: tf.Tensor | tf.IndexedSlices | None, variable: Variable
) -> tf.Tensor | tf.IndexedSlices | None:
    """Give a gradient its variable's shape, which it may lack where inputs have any length."""
    if isinstance(gradient, tf.IndexedSlices):
        gradient.values.set_shape([None, *variable.shape[1:]])
    elif gradient is not None:
        gradient.set_shape(variable.shape)
    return gradient
