"""What a table of embedding rows does: its protocol, and a readable implementation in NumPy.

The table in C++ and this one pass one contract suite.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elasticdl.embedding.spec import MAX_DIM, Dtype, OptimizerSpec, TableSpec
from elasticdl.rpc.parameters import Squares
from tests.reference_initializers import initial_weights
from tests.reference_optimizers import idle, initial_slot, update

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

    def apply(
        self,
        ids: Int64s,
        gradients: Floats,
        learning_rate: float,
        step: int,
        squares: Squares | None = None,
    ) -> None:
        """One update of the rows `ids` (distinct) by [len(ids), dim] gradients; makes missing rows
        first. `squares`: of the gradients that these are the sums of.

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


_VIEWS = 8


@final
class ReferenceTable:
    """A `Table`."""

    def __init__(
        self, spec: TableSpec, optimizer: OptimizerSpec, dtype: Dtype = Dtype.FLOAT32
    ) -> None:
        """Raises ValueError unless the table's dim is 1 to MAX_DIM."""
        if not 1 <= spec.dim <= MAX_DIM:
            raise ValueError(f"a table's dim is {spec.dim}: expected 1 to {MAX_DIM}")
        self._spec = spec
        self._optimizer = optimizer
        self._dtype = dtype
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}
        """id -> index into `_rows`, in the order of making."""
        self._rows: Floats = np.empty((0, self.row_floats), dtype.value)
        self._last: list[tuple[int, float]] = []
        """By row: the step that moved it last, and its learning rate (0: not known)."""
        self._step, self._start_rate = 0, 0.0
        """Updates of the model, and the learning rate of the first one with a rate."""
        self._views: dict[int, Floats] = {}

    @property
    def dim(self) -> int:
        return self._spec.dim

    @property
    def row_floats(self) -> int:
        return self._spec.dim * (1 + self._optimizer.slots)

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return (
                self._rows.nbytes
                + sum(rows.nbytes for rows in self._views.values())
                + 16 * len(self._places)
            )

    def __len__(self) -> int:
        return len(self._places)

    def lookup(self, ids: Int64s) -> Floats:
        _require(ids, np.int64, 1)
        with self._lock:
            places = self._make(ids)
            return self._settled(places, self._step)[:, : self.dim]

    def peek(self, ids: Int64s, view: int = LIVE) -> Floats:
        _require(ids, np.int64, 1)
        with self._lock:
            rows = self._frozen(view)
            # A missing row has its initial value; `peek` makes none.
            out = self._initial(ids)
            for i, place in enumerate(self._places.get(int(id_), len(rows)) for id_ in ids):
                if place < len(rows):
                    out[i] = rows[place, : self.dim]
            return out

    def apply(
        self,
        ids: Int64s,
        gradients: Floats,
        learning_rate: float,
        step: int,
        squares: Squares | None = None,
    ) -> None:
        _require(ids, np.int64, 1)
        _require(gradients, self._dtype.value, 2, (len(ids), self.dim))
        if step < 1:
            raise ValueError(f"step is {step}: the first update is step 1")
        with self._lock:
            places = self._make(ids)
            rows = self._settled(places, step - 1)
            parts = self._parts(rows)
            update(
                self._optimizer,
                learning_rate,
                step,
                parts,
                gradients,
                self._all(squares, gradients),
            )
            self._rows[places] = rows
            for place in places:
                # Updates may come out of order.
                if self._last[place][0] < step:
                    self._last[place] = step, float(np.float32(learning_rate))
        self.advance(step, learning_rate)

    def advance(self, step: int, learning_rate: float = 0.0) -> None:
        with self._lock:
            self._step = max(self._step, step)
            # As precise as the rate of a row: a checkpoint has it as one.
            self._start_rate = self._start_rate or float(np.float32(learning_rate))

    def begin_view(self, view: int) -> None:
        with self._lock:
            if not 0 <= view < _VIEWS or view in self._views:
                raise ValueError(f"view {view}: expected one of 0 to 7 that has not begun")
            self._views[view] = self._settled(range(len(self._rows)), self._step)

    def end_view(self, view: int) -> None:
        with self._lock:
            self._views.pop(view, None)

    def view_rows(self, view: int) -> int:
        with self._lock:
            return len(self._frozen(view))

    def read(self, view: int, first_row: int, max_rows: int) -> tuple[Int64s, Floats]:
        with self._lock:
            rows = self._frozen(view)[first_row : first_row + max_rows]
            ids = list(self._places)[first_row : first_row + len(rows)]
            return np.array(ids, np.int64), rows.copy()

    def insert(self, ids: Int64s, values: Floats) -> None:
        _require(ids, np.int64, 1)
        _require(values, self._dtype.value, 2, (len(ids), self.row_floats))
        with self._lock:
            places = self._make(ids)
            for place, row in zip(places, values, strict=True):
                self._rows[place] = row
                self._last[place] = self._step, 0.0

    def _all(self, squares: Squares | None, gradients: Floats) -> Floats:
        """The squares of each row's gradients."""
        each: Floats = gradients * gradients
        if squares is not None:
            marks, sums = squares
            if len(marks) != (len(gradients) + 63) // 64:
                raise ValueError(f"marks are {len(marks)} words: expected one for each 64 ids")
            marked = np.unpackbits(marks.view(np.uint8), bitorder="little")[: len(gradients)] == 1
            _require(sums, self._dtype.value, 2, (int(marked.sum()), self.dim))
            each[marked] = sums
        return each

    def _parts(self, rows: Floats) -> Floats:
        """The same memory as [1 + slots, rows, dim]."""
        return np.moveaxis(rows.reshape(len(rows), 1 + self._optimizer.slots, self.dim), 1, 0)

    def _settled(self, places: Iterable[int], step: int) -> Floats:
        """Copies of rows as they are after a step."""
        rows: Floats = self._rows[list(places)]
        for row, place in zip(rows, places, strict=True):
            last, rate = self._last[place]
            parts = self._parts(row[np.newaxis])
            idle(self._optimizer, last, step - last, rate or self._start_rate, parts)
        return rows

    def _frozen(self, view: int) -> Floats:
        if view < 0:
            return self._settled(range(len(self._rows)), self._step)
        if view not in self._views:
            raise IndexError(f"there is no view {view}")
        return self._views[view]

    def _initial(self, ids: Int64s) -> Floats:
        spec = self._spec
        return initial_weights(spec.initializer, spec.seed, ids, spec.dim, self._dtype)

    def _make(self, ids: Int64s) -> NDArray[np.intp]:
        """Indices of the ids' rows, made where missing."""
        new = [id_ for id_ in dict.fromkeys(ids.tolist()) if id_ not in self._places]
        if new:
            weights = self._initial(np.array(new, np.int64))
            slots = [
                np.full_like(weights, initial_slot(self._optimizer, slot))
                for slot in range(self._optimizer.slots)
            ]
            first = len(self._places)
            self._places.update((id_, first + i) for i, id_ in enumerate(new))
            self._last += [(self._step, 0.0)] * len(new)
            self._rows = np.concatenate([self._rows, np.concatenate([weights, *slots], axis=1)])
        return np.array([self._places[id_] for id_ in ids.tolist()], np.intp)


def _require(
    array: NDArray[Any], dtype: DTypeLike, axes: int, shape: tuple[int, ...] | None = None
) -> None:
    if array.dtype != dtype or array.ndim != axes or not array.flags.c_contiguous:
        raise TypeError(
            f"expected a C-contiguous {np.dtype(dtype)} array of {axes} axes, got {array.dtype} of"
            f" shape {array.shape}"
        )
    if shape is not None and array.shape != shape:
        raise ValueError(f"the array is {list(array.shape)}: expected {list(shape)}")
