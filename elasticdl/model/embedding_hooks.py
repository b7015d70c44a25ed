"""Patch `keras.layers.Embedding` so that a layer of a user's model can do without a matrix.

The class itself is patched once, when this module is imported, before any user module. Layers are
created as always. While `building` is active, `build` creates no variable for a layer that is to be
served, and its `call` gets the rows from the active lookup:

- none (the functional graph is being built): zeros of the right shape;
- a recorder (`elasticdl.model.ids`): zeros, and the ids are recorded;
- the compiled step or the export: rows from outside.

Layers that are not served, and all layers outside of `building`, behave exactly as in Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from elasticdl.embedding.spec import Dtype
from elasticdl.errors import UserError
from elasticdl.rpc.parameters import Int64s

Tensor: TypeAlias = Any
"""A TensorFlow tensor (the package has no types)."""

Lookup: TypeAlias = Callable[[int, Tensor], Tensor]
"""(table, integer ids of any shape) -> weights [*shape of ids, dim]."""

_MARK = "_elasticdl_table"
_CHOICE = "_elasticdl_served"


@final
@dataclass(slots=True)
class Building:
    """The served layers of the model that is being built, in Keras's build order; index = table."""

    threshold_bytes: int
    layers: list[Any] = field(default_factory=list)

    def wants(self, layer: keras.layers.Embedding) -> bool:
        """Whether the layer's rows are to live on the servers."""
        choice = getattr(layer, _CHOICE, None)
        if choice is not None:
            return bool(choice)
        if isinstance(layer, keras.layers.ReversibleEmbedding):
            return False  # it also multiplies by its matrix
        return (
            vocabulary(layer) is None
            or layer.input_dim * layer.output_dim * _bytes_of(layer) >= self.threshold_bytes
        )


def _bytes_of(layer: keras.layers.Embedding) -> int:
    """Size of one of its weights; 4 if that type is unsupported, which is refused later."""
    return Dtype(layer.variable_dtype).bytes if layer.variable_dtype in tuple(Dtype) else 4


_building: ContextVar[Building | None] = ContextVar("building", default=None)
_lookup: ContextVar[Lookup | None] = ContextVar("lookup", default=None)
_matrices: ContextVar[Mapping[int, Int64s] | None] = ContextVar("matrices", default=None)


@contextmanager
def building(threshold_bytes: int) -> Iterator[Building]:
    """Embedding layers built in the body become served if they are large enough."""
    made = Building(threshold_bytes)
    token = _building.set(made)
    try:
        yield made
    finally:
        _building.reset(token)


@contextmanager
def lookups(lookup: Lookup) -> Iterator[None]:
    """Served layers called in the body get their rows from `lookup`."""
    token = _lookup.set(lookup)
    try:
        yield
    finally:
        _lookup.reset(token)


@contextmanager
def matrices(values: Mapping[int, Int64s]) -> Iterator[None]:
    """`model.save_weights` in the body writes `values[table]` in the place of its matrix."""
    token = _matrices.set(values)
    try:
        yield
    finally:
        _matrices.reset(token)


def vocabulary(layer: keras.layers.Embedding) -> int | None:
    """Number of ids; None if any int64 is an id."""
    return None if getattr(layer, "unbounded", False) else int(layer.input_dim)


def table_of(layer: keras.layers.Layer) -> int | None:
    """The table of a served layer; None for other layers."""
    return getattr(layer, _MARK, None)


def zeros(ids: Tensor, dim: int) -> Tensor:
    """float32[*shape of ids, dim]."""
    rows = tf.zeros(tf.concat([tf.shape(ids), [dim]], 0))
    rows.set_shape([*ids.shape, dim] if ids.shape.rank is not None else None)
    return rows


def _refuse_unsupported(layer: keras.layers.Embedding) -> None:
    unsupported = {
        "embeddings_constraint": layer.embeddings_constraint,
        "lora_rank": layer.lora_rank,
        "quantization": layer.quantization_mode,
        "a variable type other than float32 or float64": (
            None if layer.variable_dtype in tuple(Dtype) else layer.variable_dtype
        ),
    }
    for name, value in unsupported.items():
        if value is not None:
            raise UserError(
                f"embedding layer {layer.name!r} has {name}, which is unsupported for rows on"
                " parameter servers",
                hint=_KEEP,
            )


_KEEP = (
    "remove it, or keep the layer's matrix dense: raise --embedding-threshold-bytes, "
    "or use elasticdl.model.layers.Embedding(..., served=False)"
)

_keras_build = keras.layers.Embedding.build
_keras_call = keras.layers.Embedding.call
_keras_embeddings = keras.layers.Embedding.embeddings
_keras_save = keras.layers.Embedding.save_own_variables
_keras_load = keras.layers.Embedding.load_own_variables


def _build(self: keras.layers.Embedding, input_shape: object = None) -> None:
    if self.built:
        return
    active = _building.get()
    if active is None or not active.wants(self):
        if vocabulary(self) is None:
            raise UserError(
                f"embedding layer {self.name!r} needs an input_dim, since its matrix is dense here",
                hint="set input_dim",
            )
        _keras_build(self, input_shape)
        return
    _refuse_unsupported(self)
    setattr(self, _MARK, len(active.layers))
    active.layers.append(self)
    self.built = True


def _call(self: keras.layers.Embedding, inputs: Tensor) -> Tensor:
    table = table_of(self)
    if table is None:
        return _keras_call(self, inputs)
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.with_flat_values(_call(self, inputs.flat_values))
    if isinstance(inputs, tf.SparseTensor):
        inputs = tf.sparse.to_dense(inputs)
    ids = inputs if inputs.dtype in ("int32", "int64") else ops.cast(inputs, "int64")
    lookup = _lookup.get()
    rows = zeros(ids, self.output_dim) if lookup is None else lookup(table, ids)
    return ops.cast(rows, dtype=self.compute_dtype)


def _embeddings(self: keras.layers.Embedding) -> Tensor:
    if table_of(self) is None:
        return _keras_embeddings.fget(self)
    raise UserError(
        f"the model uses the matrix of embedding layer {self.name!r} directly, but its rows live"
        " on parameter servers",
        hint=_KEEP,
    )


def _set_weights(self: keras.layers.Embedding, weights: Any) -> None:  # noqa: ANN401 - as in Keras
    """Keep a layer dense if it receives a matrix: such values cannot be made row by row."""
    if table_of(self) is not None:
        _unserve(self)
    keras.layers.Layer.set_weights(self, weights)


def _unserve(layer: keras.layers.Embedding) -> None:
    active = _building.get()
    if active is None or vocabulary(layer) is None or getattr(layer, _CHOICE, None):
        raise UserError(
            f"embedding layer {layer.name!r} receives weights, but its rows live on parameter"
            " servers",
            hint=_KEEP,
        )
    active.layers.remove(layer)
    delattr(layer, _MARK)
    for table, other in enumerate(active.layers):
        setattr(other, _MARK, table)
    layer._tracker.unlock()
    layer.built = False
    with layer._open_name_scope():
        _keras_build(layer)
    layer._tracker.lock()


def _save_own_variables(self: keras.layers.Embedding, store: Any) -> None:  # noqa: ANN401
    table = table_of(self)
    if table is None:
        _keras_save(self, store)
        return
    values = _matrices.get() or {}
    if table in values:
        store["0"] = np.asarray(values[table])


def _load_own_variables(self: keras.layers.Embedding, store: Any) -> None:  # noqa: ANN401
    """Keep a layer dense if user code loads its weights, as in `set_weights`."""
    if table_of(self) is not None:
        _unserve(self)
    _keras_load(self, store)


keras.layers.Embedding.build = _build
keras.layers.Embedding.call = _call
keras.layers.Embedding.embeddings = property(_embeddings)
keras.layers.Embedding.set_weights = _set_weights
keras.layers.Embedding.save_own_variables = _save_own_variables
keras.layers.Embedding.load_own_variables = _load_own_variables
