"""Export a trained model as a plain SavedModel and a weights file, with all embedding rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.embedding.spec import Dtype, OptimizerKind, OptimizerSpec, TableSpec
from elasticdl.embedding.table import native_table
from elasticdl.model import embedding_hooks
from elasticdl.model.embedding_hooks import Tensor
from elasticdl.model.ps_model import PsModel
from elasticdl.model.structure import Structure
from elasticdl.model.usercode import user_code
from elasticdl.private_file import temporary_name
from elasticdl.rpc.parameters import Floats, Int64s

WEIGHTS = "model.weights.h5"

_ROWS_AT_ONCE = 1 << 16


def export(
    ps_model: PsModel,
    dense: Floats,
    tables: Sequence[tuple[Int64s, Floats]],
    directory: str | Path,
    *,
    zoo: str = "",
) -> None:
    """Write `directory/`: a SavedModel with signature `serving_default`, and `model.weights.h5`.

    `tables[t]` are all rows of table t that exist: ids int64[n] and weights [n, dim]. The
    missing rows of a bounded vocabulary get their initial values; the weights file then fits the
    model that the user's unchanged `custom_model` makes without this package. For an unbounded
    vocabulary, unknown ids read as zeros.

    Inputs and outputs of the signature have the model's names. The export is written to a temporary
    directory and renamed, so it is never incomplete. The model's Keras variables equal `dense`
    afterwards.

    Raises:
        UserError: the model raises; the message has the frames below `zoo`.
    """
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(target)
    temporary.mkdir()
    ps_model.set_dense(dense)
    bounded = {
        table: whole_matrix(ps_model.parameters.tables[table], size, *rows)
        for table, (layer, rows) in enumerate(zip(ps_model.tables, tables, strict=True))
        if (size := embedding_hooks.vocabulary(layer)) is not None
    }
    try:
        _save(ps_model, bounded, tables, temporary, zoo)
        with embedding_hooks.matrices(bounded):
            ps_model.model.save_weights(temporary / WEIGHTS)
        _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def whole_matrix(table: TableSpec, size: int, ids: Int64s, rows: Floats) -> Floats:
    """[size, dim]: the given rows, and initial values for all others."""
    matrix = np.empty((size, table.dim), rows.dtype)
    untouched = native_table(table, OptimizerSpec(kind=OptimizerKind.SGD), Dtype(rows.dtype.name))
    # In parts, so that the initial values never need a second whole matrix.
    for begin in range(0, size, _ROWS_AT_ONCE):
        end = min(size, begin + _ROWS_AT_ONCE)
        matrix[begin:end] = untouched.peek(np.arange(begin, end))
    matrix[ids] = rows
    return matrix


def _replace(temporary: Path, target: Path) -> None:
    """Replace the old export by the new one."""
    old = temporary_name(target)
    if target.exists():
        # A rename cannot replace a directory that has files, so the old export moves away first.
        target.rename(old)
    temporary.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _save(
    ps_model: PsModel,
    bounded: Mapping[int, Floats],
    tables: Sequence[tuple[Int64s, Floats]],
    directory: Path,
    zoo: str,
) -> None:
    """Write the SavedModel.

    One module tracks everything it needs: variables, lookup tables of preprocessing, rows.
    """
    module = tf.Module()
    module.model = ps_model.model
    lookups = []
    for table, (ids, rows) in enumerate(tables):
        if table in bounded:
            lookups.append(
                _gather(
                    tf.Variable(
                        bounded[table], trainable=False, name=ps_model.parameters.tables[table].name
                    )
                )
            )
        else:
            lookups.append(_search(ids, rows, ps_model.parameters.tables[table].name))
    module.rows = [lookup.variables for lookup in lookups]

    def look_up(table: int, ids: Tensor) -> Tensor:
        return lookups[table].call(ids)

    module.serve = _serving(ps_model, look_up, zoo)
    with _no_signature_of_keras():
        tf.saved_model.save(module, str(directory), signatures={"serving_default": module.serve})


def _serving(
    ps_model: PsModel, look_up: Callable[[int, Tensor], Tensor], zoo: str
) -> tf.types.experimental.GenericFunction:
    """The traced function, with open lengths where `feed` and the model allow them."""
    if ps_model.open_inputs is not None:
        try:
            return _traced(ps_model, ps_model.open_inputs, look_up)
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
    """The lookup of a table in the exported graph, and its variables."""

    def __init__(self, call: Callable[[Tensor], Tensor], variables: list[tf.Variable]) -> None:
        self.call = call
        self.variables = variables


def _gather(matrix: tf.Variable) -> _Rows:
    def call(ids: Tensor) -> Tensor:
        size = tf.cast(matrix.shape[0], ids.dtype)
        return tf.gather(matrix, tf.where(ids < 0, ids + size, ids))  # as Keras does

    return _Rows(call, [matrix])


def _search(ids: Int64s, rows: Floats, name: str) -> _Rows:
    """Look rows up by binary search in the sorted ids.

    The row after the last is zeros, for ids that are absent.
    """
    order = np.argsort(ids, kind="stable")
    keys = tf.Variable(ids[order], trainable=False, name=f"{name}_ids")
    values = tf.Variable(
        np.concatenate([rows[order], np.zeros((1, rows.shape[1]), rows.dtype)]),
        trainable=False,
        name=name,
    )
    count = len(ids)

    def call(wanted: Tensor) -> Tensor:
        wanted = tf.cast(wanted, tf.int64)
        flat = tf.reshape(wanted, [-1])
        places = tf.searchsorted(keys, flat) if count else tf.zeros_like(flat, tf.int32)
        present = (
            tf.gather(keys, tf.minimum(places, count - 1)) == flat
            if count
            else tf.zeros_like(flat, tf.bool)
        )
        selected = tf.gather(values, tf.where(present, places, count))
        shaped = tf.reshape(selected, tf.concat([tf.shape(wanted), [rows.shape[1]]], 0))
        shaped.set_shape([*wanted.shape, rows.shape[1]])
        return shaped

    return _Rows(call, [keys, values])


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
