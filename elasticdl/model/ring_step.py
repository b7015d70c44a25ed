"""Train one synchronous step on a part of a global minibatch, in one call of a compiled function.

Every member computes gradients on its part, all reduce them inside the function, and each applies
the same update to its own variables. The result must equal that of one process on the whole
minibatch. Therefore a member contributes its mean gradient times its number of examples, and that
number; the sum of the former is divided by the sum of the latter. A member with an empty part
contributes zeros. The averages of layers (batch normalisation) are reduced in the same way.

Everything travels as a few long vectors: one per float type, cut into pieces of some megabytes, so
that the reduction of the last layers overlaps with the gradients of the first. Gradients of
embedding rows are gathered instead (`row_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from elasticdl.model.contribution import Contribution, Contributions, Part, PartFunctions
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.optimizers import with_rate
from elasticdl.model.packing import Packing, Reducer, wide
from elasticdl.model.ring_model import RingModel
from elasticdl.model.row_gradients import RowSlices, gathered
from elasticdl.model.usercode import user_code


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
    """The result of one step, equal on all members except for `waited_s`.

    `loss` is the mean over all `examples` of the global minibatch. Nothing is applied if there are
    no examples, or if `nonfinite` names a value. `wishes` counts members that asked for a pause.
    `waited_s`: seconds that this member waited after it had computed its part.
    """

    loss: float
    examples: int
    wishes: int
    nonfinite: str = ""
    waited_s: float = 0.0

    @property
    def applied(self) -> bool:
        """Whether the model changed."""
        return self.examples > 0 and not self.nonfinite


@final
@dataclass(frozen=True, slots=True)
class Sums:
    """Reduced contributions: numbers of tensors in `packing`; sparse ones as ids and rows."""

    packing: Packing
    numbers: int
    dense: dict[int, int]
    averages: list[int]
    rows: dict[int, RowSlices]


@final
class Update:
    """Builds, in graphs, the reduction of contributions and the update of the model."""

    def __init__(self, model: RingModel, contributions: Contributions) -> None:
        self._model = model
        self._contributions = contributions

    def reduced(
        self,
        control: Tensor,
        mine: Contribution,
        reducer: Reducer,
        ready: Callable[[list[Tensor]], None] = lambda tensors: None,
    ) -> Sums:
        """Pass a contribution through `reducer`.

        `control` has the part's number, the iteration, and whether to ask for a pause. `ready`
        gets what will be reduced.
        """
        packing, sparse = Packing(reducer), self._contributions.sparse
        # Use the gradients' type, so that these numbers travel in the same vector.
        dtype = wide([variable.dtype for variable in self._model.trainable])
        rate = self._rate()
        scalars = [
            mine.examples,
            mine.loss,
            control[2],
            # All others add 0, so the sum is the first part's rate: no broadcast is needed.
            *([] if rate is None else [tf.where(control[0] == 0, rate.value, 0)]),
        ]
        numbers = packing.add(tf.stack([tf.cast(scalar, dtype) for scalar in scalars]))
        dense = {
            index: packing.add(gradient)
            for index, gradient in enumerate(mine.gradients)
            if sparse[index] is False
        }
        averages = [packing.add(average) for average in mine.averages]
        slices = {
            index: mine.gradients[index] for index, is_sparse in enumerate(sparse) if is_sparse
        }
        rows = gathered(reducer, slices, summed=self._model.sums_rows)
        ready(packing.added())
        packing.reduce()
        return Sums(packing, numbers, dense, averages, rows)

    def applied(self, sums: Sums, local: Sequence[tuple[Any, Tensor]]) -> list[Tensor]:
        """Update the model; returns what `outcome` takes. `local` variables take these values."""
        examples, loss, wishes, *rates = tf.unstack(sums.packing.get(sums.numbers))
        # All parts may be empty; then nothing is applied, but the division still runs.
        divisor = tf.maximum(examples, 1.0)
        gradients = [
            self._divided(sums, index, divisor) for index in range(len(self._model.trainable))
        ]
        changes = [
            sums.packing.get(number) / tf.cast(divisor, self._model.averaged[index].dtype)
            for index, number in enumerate(sums.averages)
        ]
        skips = self._skips_overflow()
        finite = tf.stack(
            [_finite(loss), *(_finite(part) | skips for part in gradients if part is not None)]
        )
        # Apply only after the last reduction: a ring that breaks there leaves no partial step.
        with tf.control_dependencies(changes):
            good = tf.logical_and(examples > 0, tf.reduce_all(finite))
        tf.cond(
            good,
            lambda: self._apply(rates, gradients, changes, local),
            lambda: tf.constant(False),
        )
        return [loss / divisor, examples, wishes, finite]

    def _apply(
        self,
        rates: list[Tensor],
        gradients: list[Any],
        changes: list[Tensor],
        local: Sequence[tuple[Any, Tensor]],
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

    def outcome(self, outputs: Sequence[Tensor], waited_s: float) -> RingOutcome:
        """What a call of the graph returned, for the trainer."""
        loss, examples, wishes, finite = (tensor.numpy() for tensor in outputs)
        blamed = self._blamed(finite)
        return RingOutcome(float(loss), int(examples), int(wishes), blamed, waited_s)

    def _rate(self) -> keras.Variable:
        """The learning rate variable, or None for a schedule.

        Rank 0's value is used on all members, since callbacks may differ between them.
        """
        rate = with_rate(self._model.optimizer)._learning_rate
        return rate if isinstance(rate, keras.Variable) else None

    def _skips_overflow(self) -> Tensor:
        """Whether the optimizer handles gradients that are not finite: it lowers its scale instead.

        At a scale of 1 it is not the scale that makes them overflow.
        """
        scale = getattr(self._model.optimizer, "dynamic_scale", None)
        return tf.constant(False) if scale is None else scale.value > 1

    def _divided(
        self, sums: Sums, index: int, divisor: Tensor
    ) -> tf.Tensor | tf.IndexedSlices | None:
        variable = self._model.trainable[index].value
        if index in sums.dense:
            return sums.packing.get(sums.dense[index]) / tf.cast(divisor, variable.dtype)
        if index not in sums.rows:
            return None
        ids, values = sums.rows[index]
        values = tf.cast(values / tf.cast(divisor, values.dtype), variable.dtype)
        return tf.IndexedSlices(values, ids, tf.shape(variable, tf.int64))

    def _blamed(self, finite: tf.Tensor) -> str:
        if finite.all():
            return ""
        names = [
            variable.path
            for variable, sparse in zip(
                self._model.trainable, self._contributions.sparse, strict=True
            )
            if sparse is not None
        ]
        return ", ".join(
            [name for name, good in zip(["loss", *names], finite, strict=True) if not good][:2]
        )


@final
class RingStep:
    """Compiles the step at the first batch. It belongs to one thread at a time.

    Raises UserError if user code raises, and the errors of `Reducer.guarded`.
    """

    def __init__(self, model: RingModel, reducer: Reducer) -> None:
        self._model = model
        self._reducer = reducer
        contributions = Contributions(model)
        self._update = Update(model, contributions)
        self._functions = PartFunctions(contributions, self._reduce_and_apply)
        self._calls = 0
        with tf.device("CPU:0"):
            self._contributed = tf.Variable(0, dtype=tf.int64, trainable=False)
            """The latest call that reached its reductions; shows other threads who waits."""

    def waits(self) -> bool:
        """In `train`: this member has done its part and waits for the others'. From any thread."""
        return int(self._contributed.numpy()) == self._calls

    def train(
        self, parts: Sequence[Part], *, rank: int, size: int, iteration: int, wish: bool = False
    ) -> RingOutcome:
        """Run one step of `size` members. `parts` is this member's only part of the minibatch.

        `iteration` counts applied steps; random numbers depend only on it and on `rank`. `wish`
        asks all members for a pause.
        """
        (part,) = parts
        self._calls += 1
        control = tf.constant([rank, iteration, int(wish), self._calls], tf.int64)
        with user_code("the training step", self._model.module.zoo):
            function = self._functions.of(part)
            with self._reducer.guarded():
                *outputs, waited_s = function(control)
        return self._update.outcome(outputs, float(waited_s.numpy()))

    def _reduce_and_apply(self, control: Tensor, mine: Contribution) -> list[Tensor]:
        begun_s: list[Tensor] = []

        def ready(tensors: list[Tensor]) -> None:
            # Record the call only when its inputs are ready: before that this member still
            # computes.
            with tf.control_dependencies(tensors):
                self._contributed.assign(control[3])
                begun_s.append(tf.timestamp())

        sums = self._update.reduced(control, mine, self._reducer, ready)
        *outputs, finite = self._update.applied(sums, mine.local)
        # It needs the last reduction, but not the update.
        with tf.control_dependencies([finite]):
            waited_s = tf.timestamp() - begun_s[0]
        return [*outputs, finite, waited_s]


def _finite(tensor: tf.Tensor | tf.IndexedSlices) -> Tensor:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return tf.reduce_all(tf.math.is_finite(values))
