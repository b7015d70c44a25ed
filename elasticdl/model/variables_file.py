"""Values that are written into a SavedModel in parts, after it was saved with a stand-in.

TensorFlow stores variables as a bundle (`tensor_bundle.h`): an index, and files of values. A value
may lie in it as slices, which TensorFlow itself writes for partitioned variables; who restores it
sees one tensor.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_FINGERPRINT = "fingerprint.pb"

Array: TypeAlias = NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class ArrayInParts:
    """A value of `shape` and type `dtype`; the parts are its rows, in order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: Iterable[Array]


def stand_in(value: ArrayInParts, name: str) -> tf.Variable:
    """A variable for a value that `replace_values` writes."""
    row = value.shape[1:]
    empty = np.zeros((0, *row), value.dtype)
    return tf.Variable(empty, trainable=False, name=name, shape=(None, *row))


def replace_values(saved_model: Path, values: Mapping[str, ArrayInParts]) -> None:
    """Give the variables of a SavedModel their values; `values` is by the name in its bundle.

    Raises OSError if the disk is full or not writable.
    """
    prefix = saved_model / "variables" / "variables"
    parts = saved_model / "variables" / "parts"
    parts.mkdir()
    try:
        bundles = [_without(prefix, set(values), parts / "others")]
        for name, value in values.items():
            bundles += _written(name, value, parts, len(bundles))
        for old in (saved_model / "variables").glob("variables.*"):
            old.unlink()
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(bundle) for bundle in bundles],
            destination_prefix=str(prefix),
            delete_old_dirs=False,
        )
    except tf.errors.OpError as error:
        raise OSError(f"cannot write {prefix}: {error.message}") from error
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    # It has the hash of an index that is gone. TensorFlow loads models without it.
    (saved_model / _FINGERPRINT).unlink(missing_ok=True)


def _without(prefix: Path, names: set[str], bundle: Path) -> Path:
    """A bundle of all other values."""
    reader = tf.train.load_checkpoint(str(prefix))
    others = sorted(set(reader.get_variable_to_shape_map()) - names)
    return _saved(bundle, {name: ("", reader.get_tensor(name)) for name in others})


def _written(name: str, value: ArrayInParts, folder: Path, number: int) -> list[Path]:
    """Bundles of the parts of a value."""
    if not value.shape[0]:
        return [_saved(folder / f"{number}", {name: ("", np.empty(value.shape, value.dtype))})]
    shape = " ".join(str(length) for length in value.shape)
    rest = ":-" * (len(value.shape) - 1)
    bundles: list[Path] = []
    begin = 0
    for part in value.parts:
        bundle, place = folder / f"{number + len(bundles)}", f"{shape} {begin},{len(part)}{rest}"
        bundles.append(_saved(bundle, {name: (place, part)}))
        begin += len(part)
    assert begin == value.shape[0], f"{name}: {begin} rows of {value.shape[0]}"
    return bundles


def _saved(bundle: Path, values: Mapping[str, tuple[str, Any]]) -> Path:
    """Write a bundle of values, each with its place in the whole one; '' if it is the whole one."""
    places, tensors = zip(*values.values(), strict=True)
    tf.raw_ops.SaveV2(
        prefix=str(bundle),
        tensor_names=list(values),
        shape_and_slices=list(places),
        tensors=[tf.constant(tensor) for tensor in tensors],
    )
    return bundle
