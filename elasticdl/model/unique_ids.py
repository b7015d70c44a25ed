"""Find the distinct ids of a batch by table, and where each lookup finds its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import UserError
from elasticdl.model import embedding_hooks
from elasticdl.model.gradients import GradientLayout
from elasticdl.model.ids import IdGraph, LookupSite
from elasticdl.model.ps_model import PsModel
from elasticdl.native import _native
from elasticdl.rpc.parameters import Floats, Int64s, Squares


@final
@dataclass(frozen=True, slots=True)
class Lookups:
    """What a batch needs of the tables.

    `ids[t]`: int64[n_t], the distinct ids of table t to pull. `positions[k]`: int32 of any shape;
    for each id of lookup k, its row's index in `ids[t]`.
    """

    ids: tuple[Int64s, ...]
    positions: tuple[NDArray[np.int32], ...]


@final
@dataclass(frozen=True, slots=True)
class LookupPlan:
    """Finds duplicates once for all tables that use the same id arrays.

    `groups[g]` is a set of such id arrays, and `group_of[t]` the group of table t (None: never
    looked up). `slots[s]` is (group, index within the group) of one array of positions.
    `sites[k].array` is the slot of lookup k.
    """

    groups: tuple[tuple[int, ...], ...]
    group_of: tuple[int | None, ...]
    slots: tuple[tuple[int, int], ...]
    sites: tuple[LookupSite, ...]
    first_site: tuple[int, ...]
    """Slot -> a lookup that uses its positions."""

    @classmethod
    def of(cls, graph: IdGraph, tables: int) -> LookupPlan:
        """The plan for a model's lookups."""
        arrays_of: list[dict[int, None]] = [{} for _ in range(tables)]
        for site in graph.sites:
            arrays_of[site.table][site.array] = None
        # Wide & deep models look up the same ids in two tables: find their duplicates once.
        groups: dict[tuple[int, ...], int] = {}
        group_of = tuple(
            groups.setdefault(tuple(arrays), len(groups)) if arrays else None
            for arrays in arrays_of
        )
        slots: dict[tuple[int, int], int] = {}
        sites, first_site = [], []
        for number, site in enumerate(graph.sites):
            group = group_of[site.table]
            assert group is not None
            slot = (group, list(groups)[group].index(site.array))
            if slot not in slots:
                slots[slot] = len(slots)
                first_site.append(number)
            sites.append(LookupSite(site.table, slots[slot], site.shape))
        return cls(tuple(groups), group_of, tuple(slots), tuple(sites), tuple(first_site))

    def lookups(self, arrays: Sequence[Int64s], ps_model: PsModel) -> Lookups:
        """Distinct ids and positions of a batch.

        Raises:
            UserError: an id is outside -input_dim..input_dim - 1 (Keras allows negative ids).
        """
        arrays = self._wrapped(arrays, ps_model)
        unique = [_unique([arrays[index] for index in group]) for group in self.groups]
        ids = tuple(_NONE if group is None else unique[group][0] for group in self.group_of)
        for table, layer in enumerate(ps_model.tables):
            _check(ids[table], layer)
        positions = [unique[group][1][place] for group, place in self.slots]
        return Lookups(ids, tuple(positions[site.array] for site in self.sites))

    def _wrapped(self, arrays: Sequence[Int64s], ps_model: PsModel) -> Sequence[Int64s]:
        """Map negative ids of a bounded vocabulary to rows from the end, as Keras does."""
        wrapped = list(arrays)
        for index, array in enumerate(arrays):
            if array.size and array.min() < 0:
                sizes = {
                    embedding_hooks.vocabulary(ps_model.tables[table])
                    for table, group in enumerate(self.group_of)
                    if group is not None and index in self.groups[group]
                }
                # If tables of different sizes share the array, no single offset fits; `_check` then
                # refuses its negative ids.
                if len(sizes) == 1 and (size := sizes.pop()) is not None:
                    wrapped[index] = np.where(array < 0, array + size, array)
        return wrapped


_NONE = np.empty(0, np.int64)


def _unique(arrays: Sequence[Int64s]) -> tuple[Int64s, list[NDArray[np.int32]]]:
    """Distinct ids of all arrays together, and positions in the shape of each array."""
    if len(arrays) == 1:
        ids, positions = _native.unique_ids(arrays[0].reshape(-1))
        return ids, [positions.reshape(arrays[0].shape)]
    # Together, so that an id in two arrays is pulled once.
    ids, positions = _native.unique_ids(np.concatenate([array.reshape(-1) for array in arrays]))
    ends = np.cumsum([array.size for array in arrays])[:-1]
    return ids, [
        part.reshape(array.shape)
        for part, array in zip(np.split(positions, ends), arrays, strict=True)
    ]


def _check(ids: Int64s, layer: object) -> None:
    size = embedding_hooks.vocabulary(layer)
    if size is None or not ids.size:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        name = getattr(layer, "name", "")
        raise UserError(
            f"embedding layer {name!r} received id {low if low < 0 else high}, expected"
            f" 0..{size - 1} (its input_dim is {size})",
            hint=(
                "raise input_dim, hash the ids, or use elasticdl.model.layers.Embedding without"
                " input_dim"
            ),
        )


@final
@dataclass(frozen=True, slots=True)
class RowGradients:
    """What a batch has for the rows of its distinct ids, by table.

    `sums[t]` is [n_t, dim]: the gradients of each id, added. `squares`: those of ids that come
    several times; () if the optimizer squares nothing, or no id repeats.
    """

    sums: tuple[Floats, ...]
    squares: tuple[Squares, ...] = ()


def merged(
    gradients: Sequence[Floats],
    lookups: Lookups,
    sites: Sequence[LookupSite],
    layout: GradientLayout,
    ps_model: PsModel,
) -> RowGradients:
    """Merge gradients of lookups, [*shape of ids, dim], by distinct id; `layout` has their order.

    Releases the GIL.
    """
    spec, left = ps_model.parameters, iter(gradients)
    values: list[list[Floats]] = [[] for _ in spec.tables]
    positions: list[list[NDArray[np.int32]]] = [[] for _ in spec.tables]
    arrays: list[list[int]] = [[] for _ in spec.tables]
    for site, places in zip(sites, lookups.positions, strict=True):
        if site.table not in layout.whole:
            arrays[site.table].append(site.array)
            values[site.table].append(next(left).reshape(-1, spec.tables[site.table].dim))
            positions[site.table].append(places.reshape(-1))
    whole = {table: next(left) for table in layout.whole}
    squared = {table: next(left) for table in layout.squared}
    sums, squares = list[Floats](), list[Squares]()
    marks: dict[tuple[int, ...], NDArray[np.uint64]] = {}
    for number, (table, ids) in enumerate(zip(spec.tables, lookups.ids, strict=True)):
        parts = values[number], positions[number], ids.size
        none = np.zeros((0, table.dim), spec.dtype.value)
        sums.append(whole[number] if number in whole else _summed(*parts, none))
        if number in squared:
            squares.append((np.full(-(-ids.size // 64), 2**64 - 1, np.uint64), squared[number]))
        elif spec.optimizer.squares and values[number]:
            # Of tables that look up the same ids, the same ones repeat.
            same = tuple(arrays[number])
            if same not in marks:
                marks[same] = _native.mark_repeated(positions[number], ids.size)
            given = values[number], positions[number], marks[same], ids.size
            squares.append((marks[same], _native.merge_squares(*given)))
        else:
            squares.append((np.zeros(-(-ids.size // 64), np.uint64), none))
    repeated = any(part.size for _, part in squares)
    return RowGradients(tuple(sums), tuple(squares) if repeated else ())


def _summed(
    values: Sequence[Floats], positions: Sequence[NDArray[np.int32]], count: int, none: Floats
) -> Floats:
    if not values:
        return none
    parts = [
        _native.merge_rows(value, places, count)
        for value, places in zip(values, positions, strict=True)
    ]
    for part in parts[1:]:
        # In place: it belongs to this call, and a table may be large.
        np.add(parts[0], part, out=parts[0])
    return parts[0]
