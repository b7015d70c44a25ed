"""What a training graph returns of gradients: sums, and squares where Keras squares slices.

The gradient of a variable that was gathered from is a `tf.IndexedSlices`, with a slice for each
time that an id came. Keras adds the slices of a row when it applies them, but squares each by
itself, and `clipvalue` clips each. A regularizer or a clip by norm makes the gradient one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import tensorflow as tf

from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.ids import LookupSite
from elasticdl.model.optimizers import clipped, clips
from elasticdl.model.ps_model import PsModel

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""(begin, end) of parts of the flat vector, in their order."""


@final
@dataclass(frozen=True, slots=True)
class GradientLayout:
    """The tensors that follow a step's flat vector, in this order.

    Squares of the flat gradient in `spans`, one vector for all of them; the gradient of each lookup
    of a table that is not in `whole`; the sums by distinct id of each table in `whole`, and the
    squares by distinct id of those in `squared`.
    """

    spans: Spans
    whole: tuple[int, ...]
    squared: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class LookedUp:
    """Rows in a graph: `rows[t]` is [n_t, dim], those of the distinct ids of table t;
    `positions[site.array]` has the places in it of what the lookup at that site gets.
    """

    rows: Sequence[Tensor]
    positions: Sequence[Tensor]
    sites: Sequence[LookupSite]

    def slices(self, table: int, by_lookup: Sequence[Tensor]) -> tf.IndexedSlices:
        """The gradient of a table's rows, from those of all lookups."""
        rows = self.rows[table]
        values, indices = [rows[:0]], [tf.zeros([0], tf.int32)]
        for site, gradient in zip(self.sites, by_lookup, strict=True):
            if site.table == table:
                values.append(tf.reshape(gradient, [-1, rows.shape[1]]))
                indices.append(tf.reshape(self.positions[site.array], [-1]))
        return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), tf.shape(rows))


@final
@dataclass(frozen=True, slots=True)
class StepGradients:
    """Gradients of a step, clipped if the optimizer clips: tensors, or slices as Keras has them.

    `dense`: of each trainable variable that servers hold in the flat vector. `by_lookup`: of the
    rows of each lookup of a table that is not in `by_table`.
    """

    ps_model: PsModel
    dense: list[Any]
    by_lookup: list[Tensor]
    by_table: dict[int, Any]

    @classmethod
    def of(
        cls,
        ps_model: PsModel,
        rows: LookedUp,
        dense: Sequence[Any],
        by_lookup: Sequence[Tensor],
        by_regularizer: Mapping[int, Tensor],
    ) -> StepGradients:
        """Wrap what the tape returns. `by_regularizer`: what each table's regularizer adds."""
        # Frozen tables stay out: their gradients must not count in a global norm.
        moving = [number for number, layer in enumerate(ps_model.tables) if layer.trainable]
        by_lookup = [
            gradient if site.table in moving else tf.zeros_like(gradient)
            for site, gradient in zip(rows.sites, by_lookup, strict=True)
        ]
        clipping = clips(ps_model.optimizer)
        by_table: dict[int, Any] = {
            table: rows.slices(table, by_lookup)
            for table in (range(len(ps_model.tables)) if clipping else by_regularizer)
        }
        for table, gradient in by_regularizer.items():
            if table in moving:
                by_table[table] = tf.convert_to_tensor(by_table[table]) + gradient
        if clipping:
            every = clipped(ps_model.optimizer, [*dense, *(by_table[table] for table in moving)])
            dense = every[: len(dense)]
            by_table.update(zip(moving, every[len(dense) :], strict=True))
        left = [
            gradient
            for site, gradient in zip(rows.sites, by_lookup, strict=True)
            if site.table not in by_table
        ]
        return cls(ps_model, list(dense), left, by_table)

    def sums(self) -> list[Tensor]:
        """Sums of `dense`, as tensors."""
        return [tf.convert_to_tensor(gradient) for gradient in self.dense]

    def results(self) -> tuple[list[Tensor], GradientLayout]:
        """What follows the flat vector."""
        flat = self._flat_squares()
        squared = {
            table: _squared(gradient)
            for table, gradient in self.by_table.items()
            if self._squares and isinstance(gradient, tf.IndexedSlices)
        }
        return [
            *([tf.concat([*flat.values()], 0)] if flat else []),
            *self.by_lookup,
            *(tf.convert_to_tensor(part) for part in (*self.by_table.values(), *squared.values())),
        ], GradientLayout(tuple(flat), tuple(self.by_table), tuple(squared))

    @property
    def _squares(self) -> bool:
        return self.ps_model.parameters.optimizer.squares

    def _flat_squares(self) -> dict[tuple[int, int], Tensor]:
        """Squares by span of the flat vector."""
        squares: dict[tuple[int, int], Tensor] = {}
        begin = 0
        for spec, gradient in zip(self.ps_model.parameters.dense, self.dense, strict=False):
            if self._squares and isinstance(gradient, tf.IndexedSlices):
                sums = tf.reshape(tf.convert_to_tensor(_squared(gradient)), [-1])
                dtype = self.ps_model.parameters.dtype.value
                squares[begin, begin + spec.size] = tf.cast(sums, dtype)
            begin += spec.size
        return squares


def _squared(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.square(slices.values), slices.indices, slices.dense_shape)
