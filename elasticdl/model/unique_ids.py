"""Find the distinct ids of a batch by table, and where each lookup finds its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from elasticdl.embedding.spec import Dtype
from elasticdl.errors import UserError
from elasticdl.model import embedding_hooks
from elasticdl.model.ids import IdGraph, LookupSite
from elasticdl.model.ps_model import PsModel
from elasticdl.native import _native
from elasticdl.rpc.parameters import Floats, Int64s


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

    def repeats_ids(self, lookups: Lookups) -> bool:
        """Whether one or several lookups of a table ask for an id more than once."""
        asked = Counter[int]()
        for site, positions in zip(self.sites, lookups.positions, strict=True):
            asked[site.table] += positions.size
        return any(count > lookups.ids[table].size for table, count in asked.items())

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


def merged(
    gradients: Sequence[Floats],
    lookups: Lookups,
    sites: Sequence[LookupSite],
    tables: Sequence[int],
    dtype: Dtype,
) -> tuple[Floats, ...]:
    """Sum gradients of lookups by distinct id: [*shape of ids, dim] -> [n_t, dim].

    `tables` are the dims of the tables. Releases the GIL.
    """
    sums: list[Floats | None] = [None] * len(tables)
    for number, site in enumerate(sites):
        dim = tables[site.table]
        positions = lookups.positions[number].reshape(-1)
        rows = _native.merge_rows(
            gradients[number].reshape(-1, dim), positions, len(lookups.ids[site.table])
        )
        before = sums[site.table]
        # In place: `before` belongs to this call, and a table may be large.
        sums[site.table] = rows if before is None else np.add(before, rows, out=before)
    return tuple(
        np.zeros((0, dim), dtype.value) if total is None else total
        for total, dim in zip(sums, tables, strict=True)
    )
