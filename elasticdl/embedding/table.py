"""Tables of embedding rows by id: the protocol and its implementations.

Two implementations pass one contract suite: `native_table` (C++, used by parameter servers) and
`reference.ReferenceTable` (NumPy, the readable statement of its behaviour).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import Dtype, OptimizerSpec, TableSpec
from elasticdl.native import _native

Floats: TypeAlias = NDArray[np.floating[Any]]
"""float32 or float64; all arrays of one table are of the same type."""
Int64s: TypeAlias = NDArray[np.int64]

LIVE = -1
"""The number for the present rows, instead of a view."""


class Table(Protocol):
    """Rows of `row_floats` values: `dim` weights, then the optimizer's slots of `dim` each.

    Any int64 is an id.

    Thread-safe; each call is atomic. Arrays must be C-contiguous and of the dtype named, else
    TypeError; wrong shapes raise ValueError; a view that is not there raises IndexError. The caller
    owns returned arrays.
    """

    @property
    def dim(self) -> int: ...

    @property
    def row_floats(self) -> int: ...

    @property
    def memory_bytes(self) -> int:
        """Memory of rows, ids, index and views."""

    def __len__(self) -> int:
        """Rows made so far."""

    def lookup(self, ids: Int64s) -> Floats:
        """Weights [len(ids), dim]; makes missing rows. Ids may repeat.

        The values of a new row depend only on (seed, id).
        """

    def peek(self, ids: Int64s, view: int = LIVE) -> Floats:
        """Look rows up in a view without making any: missing ones read as their initial values."""

    def apply(self, ids: Int64s, gradients: Floats, learning_rate: float, step: int) -> None:
        """One update of the rows `ids` (distinct) by [len(ids), dim] gradients; makes missing rows
        first.

        `step` is the 1-based number of the model's update: Adam corrects the bias of every row by
        it, however often it was touched.

        As in Keras, rows that are not named go on by their momentum or by Adam's averages. A table
        makes up for that when a row is next read or updated, in constant time; such steps are taken
        at the learning rate of the row's last update. Weights of such rows do not decay.
        """

    def advance(self, step: int, learning_rate: float = 0.0) -> None:
        """The model has had `step` updates, whether or not they named rows of this table.

        `learning_rate` is that of the last one; 0 if it is not known.
        """

    def begin_view(self, view: int) -> None:
        """Freezes the rows as view 0..7, which must not have begun.

        Later writes copy the row they change, once.
        """

    def end_view(self, view: int) -> None:
        """Drop a view; an absent one is no error."""

    def view_rows(self, view: int) -> int:
        """Rows in a view."""

    def read(self, view: int, first_row: int, max_rows: int) -> tuple[Int64s, Floats]:
        """Up to `max_rows` rows in the order they were made: ids int64[n] and values [n,
        row_floats].
        """

    def insert(self, ids: Int64s, values: Floats) -> None:
        """Insert or replace whole rows [len(ids), row_floats] as returned by `read`."""


def native_table(
    spec: TableSpec, optimizer: OptimizerSpec, dtype: Dtype = Dtype.FLOAT32
) -> _native.Table:
    """The table in C++. The seed counts modulo 2^64."""
    initializer = _native.InitializerSpec(
        spec.initializer.kind.value, spec.initializer.a, spec.initializer.b
    )
    return _native.Table(
        spec.dim, initializer, native_optimizer(optimizer), spec.seed % 2**64, dtype.value
    )


def native_optimizer(spec: OptimizerSpec) -> _native.OptimizerSpec:
    """The same rule for the extension."""
    return _native.OptimizerSpec(**spec.model_dump(mode="json"))
