"""The id graph: only the part of a model between its inputs and its served embedding layers.

The model is traced once with embeddings of zeros, and the ids of each lookup are recorded. Then the
graph is pruned to what these ids need. Ids that are an unchanged input need no graph. Ids from the
same computation are recognised, so that they are computed and deduplicated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import UserError
from elasticdl.model import embedding_hooks
from elasticdl.model.building import outputs_of
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.module import ModelModule
from elasticdl.model.ps_model import PsModel
from elasticdl.model.structure import Structure
from elasticdl.rpc.parameters import Int64s

Key: TypeAlias = tuple[Any, ...]
"""Identifies a computation; tensors with equal keys are equal."""


@final
@dataclass(frozen=True, slots=True)
class LookupSite:
    """One call of a served layer: its table, the number of its id array, the ids' static shape."""

    table: int
    array: int
    shape: tuple[int | None, ...] | None


@final
@dataclass(frozen=True, slots=True)
class IdGraph:
    """Computes id arrays from flat features; `sites[k]` is the model's k-th lookup."""

    sites: tuple[LookupSite, ...]
    _inputs: Mapping[int, int]
    """Array -> the flat feature that it equals."""
    _fetched: tuple[int, ...]
    _function: Callable[..., Any] | None

    def __call__(self, features: Sequence[Tensor]) -> list[Int64s]:
        """The id arrays, int64 of any shape, from the flat features of a batch."""
        arrays: dict[int, Int64s] = {
            index: as_int64(features[feature]) for index, feature in self._inputs.items()
        }
        if self._function is not None:
            computed = self._function(*features)
            arrays.update(
                (index, as_int64(tensor))
                for index, tensor in zip(self._fetched, computed, strict=True)
            )
        return [arrays[index] for index in range(len(arrays))]


def as_int64(tensor: Tensor) -> Int64s:
    """C-contiguous int64, without a copy if it is that already."""
    array = tensor if isinstance(tensor, np.ndarray) else np.asarray(memoryview(tensor))
    return np.ascontiguousarray(array, dtype=np.int64)


def trace_ids(
    ps_model: PsModel, module: ModelModule, specs: Structure, *, training: bool
) -> IdGraph:
    """Trace the model for features of these type specs, if it has served layers.

    Raises:
        UserError: ids depend on an embedding's rows, or a layer is called within a loop (names the
            layer), or the call makes a lookup table (names the line).
    """
    if not ps_model.tables:
        return IdGraph((), {}, (), None)
    seen: list[tuple[int, Tensor]] = []
    rows: dict[str, int] = {}

    def record(table: int, ids: Tensor) -> Tensor:
        if ids.graph is not graphs[0] or tf.compat.v1.get_default_graph() is not graphs[0]:
            raise UserError(
                f"embedding layer {ps_model.tables[table].name!r} is called within a loop, a"
                " condition or a mapped function, so its rows cannot be fetched in advance",
                hint=(
                    "call it once outside, on all ids, or keep it dense with a higher"
                    " --embedding-threshold-bytes"
                ),
            )
        seen.append((table, ids))
        zeros = embedding_hooks.zeros(ids, ps_model.tables[table].output_dim)
        rows[zeros.op.name] = table
        return zeros

    graphs: list[tf.Graph] = []

    def call(*flat: Tensor) -> list[Tensor]:
        graphs.append(tf.compat.v1.get_default_graph())
        features = tf.nest.pack_sequence_as(specs, flat, expand_composites=True)
        with embedding_hooks.lookups(record), keras.StatelessScope():
            outputs_of(ps_model.model, features, module, training=training)
        return []

    wrapped = tf.compat.v1.wrap_function(call, tf.nest.flatten(specs, expand_composites=True))
    return _cut(wrapped, seen, ps_model, rows)


def _cut(
    wrapped: tf.types.experimental.ConcreteFunction,
    seen: Sequence[tuple[int, Tensor]],
    ps_model: PsModel,
    rows: Mapping[str, int],
) -> IdGraph:
    feeds = [
        tensor
        for tensor in wrapped.inputs
        if tensor.op.type == "Placeholder" and tensor.dtype != tf.resource
    ]
    placeholders = {tensor.op.name: index for index, tensor in enumerate(feeds)}
    numbers = _value_numbers(wrapped.graph, placeholders)
    keys: dict[Key, int] = {}
    sites: list[LookupSite] = []
    sources: list[Tensor] = []
    for table, ids in seen:
        _check_independent(ids, rows, ps_model.tables[table].name, ps_model)
        source = _source(ids)
        key = (numbers[source.op.name], source.value_index)
        if key not in keys:
            keys[key] = len(sources)
            sources.append(source)
        shape = tuple(ids.shape.as_list()) if ids.shape.rank is not None else None
        sites.append(LookupSite(table, keys[key], shape))
    inputs = {
        index: placeholders[source.op.name]
        for index, source in enumerate(sources)
        if source.op.name in placeholders
    }
    fetched = tuple(index for index in range(len(sources)) if index not in inputs)
    with wrapped.graph.as_default():
        fetches = [tf.cast(sources[index], tf.int64) for index in fetched]
    function = wrapped.prune(feeds, fetches) if fetches else None
    return IdGraph(tuple(sites), inputs, fetched, function)


def _source(ids: Tensor) -> Tensor:
    """Skip identities and casts from one integer type to another."""
    while ids.op.type == "Identity" or (
        ids.op.type == "Cast" and ids.op.inputs[0].dtype in (tf.int32, tf.int64)
    ):
        ids = ids.op.inputs[0]
    return ids


def _value_numbers(graph: tf.Graph, placeholders: Mapping[str, int]) -> dict[str, int]:
    """Operation name -> number, equal for stateless operations that compute the same value."""
    numbers: dict[str, int] = {}
    known: dict[Key, int] = {}
    for operation in graph.get_operations():  # in order of creation: inputs first
        key: Key = (operation.name,)
        if operation.name in placeholders:
            key = ("input", placeholders[operation.name])
        elif not operation.op_def.is_stateful and operation.type != "Placeholder":
            attributes = tuple(
                sorted(
                    (name, value.SerializeToString())
                    for name, value in operation.node_def.attr.items()
                )
            )
            key = (
                operation.type,
                attributes,
                *((numbers[source.op.name], source.value_index) for source in operation.inputs),
            )
        numbers[operation.name] = known.setdefault(key, len(known))
    return numbers


def _check_independent(ids: Tensor, rows: Mapping[str, int], layer: str, ps_model: PsModel) -> None:
    """Raise UserError if ids depend on an embedding's values; its output's shape is allowed."""
    visited: set[str] = set()
    stack = [ids.op]
    while stack:
        operation = stack.pop()
        if operation.name in visited or operation.type in ("Shape", "ShapeN", "Size", "Rank"):
            continue
        visited.add(operation.name)
        if operation.name in rows:
            raise UserError(
                f"the ids of embedding layer {layer!r} depend on the rows of"
                f" {ps_model.tables[rows[operation.name]].name!r}, so they are unknown before those"
                " rows are fetched",
                hint=(
                    "keep one of the two dense: elasticdl.model.layers.Embedding(..., served=False)"
                ),
            )
        stack.extend(source.op for source in operation.inputs)
        stack.extend(operation.control_inputs)
