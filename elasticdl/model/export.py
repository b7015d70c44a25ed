"""Export a trained model as a plain SavedModel and a weights file, with all embedding rows."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from elasticdl.model import embedding_hooks, exported_table
from elasticdl.model.building import fitting
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.exported_table import BoundedTable, ExportedTable, UnboundedTable
from elasticdl.model.ps_model import PsModel
from elasticdl.model.row_runs import Pages
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import user_code
from elasticdl.model.variables_file import ArrayInParts, replace_values, stand_in
from elasticdl.private_file import temporary_name
from elasticdl.rpc.parameters import Floats

WEIGHTS = "model.weights.h5"

_TABLES = "tables"


def export(
    ps_model: PsModel,
    dense: Floats,
    tables: Sequence[Pages],
    directory: str | Path,
    *,
    zoo: str = "",
) -> None:
    """Write `directory/`: a SavedModel with signature `serving_default`, and `model.weights.h5`.

    `tables[t]` are all rows of table t that exist, ids int64[n] and weights [n, dim] at a time. The
    missing rows of a bounded vocabulary get their initial values; the weights file then fits the
    model that the user's unchanged `custom_model` makes without this package. For an unbounded
    vocabulary, unknown ids read as zeros.

    Inputs and outputs of the signature have the model's names. The export is written to a temporary
    directory and renamed, so it is never incomplete. Rows go through files of that directory: the
    disk needs room for the export and one more copy of the rows. The model's Keras variables equal
    `dense` afterwards.

    Raises:
        UserError: the model raises; the message has the frames below `zoo`.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(target)
    (temporary / _TABLES).mkdir(parents=True)
    ps_model.set_dense(dense)
    try:
        exported = _stored(ps_model, tables, temporary / _TABLES)
        _save(ps_model, exported, temporary, zoo)
        _save_weights(ps_model, exported, temporary / WEIGHTS)
        shutil.rmtree(temporary / _TABLES)
        _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _stored(ps_model: PsModel, tables: Sequence[Pages], folder: Path) -> list[ExportedTable]:
    """All tables, as files of `folder`."""
    parameters, stored = ps_model.parameters, []
    for table, (layer, pages) in enumerate(zip(ps_model.tables, tables, strict=True)):
        spec, file = parameters.tables[table], folder / str(table)
        size = embedding_hooks.vocabulary(layer)
        stored.append(
            exported_table.unbounded(spec, pages, parameters.dtype, file)
            if size is None
            else exported_table.bounded(spec, size, pages, parameters.dtype, file)
        )
    return stored


def _save_weights(ps_model: PsModel, tables: Sequence[ExportedTable], file: Path) -> None:
    """Write the weights file: Keras writes a mark for each matrix, which then gets its values."""
    secret = secrets.randbits(62)
    marks = {
        table: np.array([secret, table])
        for table, stored in enumerate(tables)
        if isinstance(stored, BoundedTable)
    }
    with embedding_hooks.matrices(marks):
        ps_model.model.save_weights(file)
    with h5py.File(file, "r+") as weights:
        places: dict[str, int] = {}

        def find(name: str, value: object) -> None:
            if isinstance(value, h5py.Dataset) and value.shape == (2,) and value[0] == secret:
                places[name] = int(value[1])

        weights.visititems(find)
        for name, table in places.items():
            stored = tables[table]
            del weights[name]
            values, begin = weights.create_dataset(name, stored.shape, stored.dtype), 0
            for part in stored.parts():
                values[begin : begin + len(part)] = part
                begin += len(part)


def _replace(temporary: Path, target: Path) -> None:
    """Replace the old export by the new one."""
    old = temporary_name(target)
    if target.exists():
        # A rename cannot replace a directory that has files, so the old export moves away first.
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _save(ps_model: PsModel, tables: Sequence[ExportedTable], directory: Path, zoo: str) -> None:
    """Write the SavedModel.

    One module tracks everything it needs: variables, lookup tables of preprocessing, rows.
    """
    module = tf.Module()
    module.model = ps_model.model
    lookups = [
        _gather(stored, spec.name)
        if isinstance(stored, BoundedTable)
        else _search(stored, spec.name)
        for stored, spec in zip(tables, ps_model.parameters.tables, strict=True)
    ]
    module.rows = [lookup.variables for lookup in lookups]

    def look_up(table: int, ids: Tensor) -> Tensor:
        return lookups[table].call(ids)

    module.serve = _serving(ps_model, look_up, zoo)
    with _no_signature_of_keras():
        tf.saved_model.save(module, str(directory), signatures={"serving_default": module.serve})
    values = {
        f"rows/{table}/{number}/.ATTRIBUTES/VARIABLE_VALUE": value
        for table, lookup in enumerate(lookups)
        for number, value in enumerate(lookup.values)
    }
    if values:
        replace_values(directory, values)


def _serving(
    ps_model: PsModel, look_up: Callable[[int, Tensor], Tensor], zoo: str
) -> tf.types.experimental.GenericFunction:
    """The traced function, with open lengths where `feed` and the model allow them."""
    if ps_model.open_inputs is not None:
        try:
            # The signature has the model's names, so a feature of another name loses its own here.
            return _traced(ps_model, fitting(ps_model.model, ps_model.open_inputs), look_up)
        except (
            ValueError,
            TypeError,
        ):  # a layer needs a fixed length; use that of the first batch
            pass
    with user_code("exporting the model", zoo):
        return _traced(ps_model, ps_model.inputs, look_up)


def _traced(
    ps_model: PsModel, inputs: Structure, look_up: Callable[[int, Tensor], Tensor]
) -> tf.types.experimental.GenericFunction:
    names, structure = _named_inputs(ps_model.model, inputs)

    def serve(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        features = tf.nest.pack_sequence_as(
            structure, [given[name] for name in names], expand_composites=True
        )
        with embedding_hooks.lookups(look_up):
            return _named_outputs(ps_model.model, ps_model.model(features, training=False))

    function = tf.function(serve, input_signature=[dict(names)], autograph=False)
    function.get_concrete_function()
    return function


@contextmanager
def _no_signature_of_keras() -> Iterator[None]:
    """Prevent Keras from tracing each model once more for its own signature.

    Keras traces subclassed models with float32 inputs, whatever they accept.
    """
    name = "_default_save_signature"
    owner = next((base for base in keras.Model.__mro__ if name in vars(base)), None)
    if owner is None:
        yield
        return
    own = vars(owner)[name]
    setattr(owner, name, None)
    try:
        yield
    finally:
        setattr(owner, name, own)


class _Rows:
    """The lookup of a table in the exported graph, its variables, and their values."""

    def __init__(
        self,
        call: Callable[[Tensor], Tensor],
        variables: list[tf.Variable],
        values: list[ArrayInParts],
    ) -> None:
        self.call = call
        self.variables = variables
        self.values = values


def _gather(stored: BoundedTable, name: str) -> _Rows:
    value = ArrayInParts(stored.shape, stored.dtype, stored.parts())
    matrix = stand_in(value, name)

    def call(ids: Tensor) -> Tensor:
        size = tf.cast(value.shape[0], ids.dtype)
        rows = tf.ensure_shape(matrix, value.shape)
        return tf.gather(rows, tf.where(ids < 0, ids + size, ids))  # as Keras does

    return _Rows(call, [matrix], [value])


def _search(stored: UnboundedTable, name: str) -> _Rows:
    """Look rows up by binary search in the sorted ids.

    The row after the last is zeros, for ids that are absent.
    """
    (count, dim), dtype = stored.shape, stored.dtype
    none = np.zeros((1, dim), dtype)
    values = [
        ArrayInParts((count,), np.dtype(np.int64), stored.ids()),
        ArrayInParts((count + 1, dim), dtype, chain(stored.parts(), [none])),
    ]
    keys, rows = stand_in(values[0], f"{name}_ids"), stand_in(values[1], name)

    def call(wanted: Tensor) -> Tensor:
        wanted = tf.cast(wanted, tf.int64)
        flat = tf.reshape(wanted, [-1])
        places = tf.searchsorted(keys, flat) if count else tf.zeros_like(flat, tf.int32)
        present = (
            tf.gather(keys, tf.minimum(places, count - 1)) == flat
            if count
            else tf.zeros_like(flat, tf.bool)
        )
        selected = tf.gather(rows, tf.where(present, places, count))
        shaped = tf.reshape(selected, tf.concat([tf.shape(wanted), [dim]], 0))
        shaped.set_shape([*wanted.shape, dim])
        return shaped

    return _Rows(call, [keys, rows], values)


def _named_inputs(
    model: keras.Model, inputs: Structure
) -> tuple[dict[str, tf.TensorSpec], Structure]:
    """Names for the leaves of the model's inputs, in order.

    These are the keys of a dict, the names of Keras inputs, or `inputs`.
    """
    specs = tf.nest.flatten(inputs, expand_composites=True)
    if isinstance(inputs, Mapping) and len(inputs) == len(specs):
        names = [str(name) for name in sorted(inputs)]
    elif getattr(model, "inputs", None) and len(model.inputs) == len(specs):
        names = [str(tensor.name) for tensor in model.inputs]
    else:
        names = (
            ["inputs"] if len(specs) == 1 else [f"inputs_{number}" for number in range(len(specs))]
        )
    return {
        name: tf.TensorSpec(spec.shape, spec.dtype, name)
        for name, spec in zip(names, specs, strict=True)
    }, inputs


def _named_outputs(model: keras.Model, outputs: Structure) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    leaves = tf.nest.flatten(outputs)
    names = list(getattr(model, "output_names", ()))
    if len(leaves) == 1:
        return {"predictions" if len(names) != 1 else names[0]: leaves[0]}
    return dict(
        zip(
            names if len(names) == len(leaves) else [f"output_{i}" for i in range(len(leaves))],
            leaves,
            strict=True,
        )
    )
