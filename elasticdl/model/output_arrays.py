"""The outputs of a predicting model as arrays of a file. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.errors import PermanentError
from elasticdl.formatting import amount

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.structure import Structure

ABOUT = ("source", "first_record", "begin", "end", "attempt")
"""Arrays of a file that describe its records."""
_MOST_NAME_CHARS = 1_000
"""A ZIP archive holds names of 64 KiB; longer ones than these are a mistake."""


class Predictions(np.ndarray[Any, Any]):
    """A NumPy array that also answers `numpy()`, as the tensors of the original ElasticDL do."""

    def numpy(self) -> NDArray[Any]:
        """The plain array, without a copy."""
        return self.view(np.ndarray)


def for_processor(outputs: Structure) -> Structure:
    """The outputs of a batch, with each array as `Predictions`; no copy of them."""
    if isinstance(outputs, Mapping):
        return {key: for_processor(part) for key, part in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        parts = [for_processor(part) for part in outputs]
        return tuple(parts) if isinstance(outputs, tuple) else parts
    return np.asarray(outputs).view(Predictions)


def file_arrays(outputs: Structure, features: Structure) -> dict[str, NDArray[Any]]:
    """The arrays of a batch by name, as a file without pickle holds them.

    Raises:
        PermanentError: a file cannot hold an output, or one has another number of examples than the
            features.
    """
    arrays = {name: _plain(name, array) for name, array in named_arrays(outputs).items()}
    examples = _examples(features)
    for name, array in arrays.items():
        if examples is not None and len(array) != examples:
            raise PermanentError(
                f"the output {name!r} has {amount(len(array), 'prediction')} for"
                f" {amount(examples, 'example')} of a batch",
                hint="return a prediction for each example; feed may leave examples out",
            )
    return arrays


def _examples(features: Structure) -> int | None:
    """The length of the first feature; None if it has none."""
    if isinstance(features, Mapping):
        features = tuple(features.values())
    if isinstance(features, (list, tuple)):
        return _examples(features[0]) if features else None
    shape = getattr(features, "shape", ())
    return int(shape[0]) if shape else None


def named_arrays(outputs: Structure) -> dict[str, NDArray[Any]]:
    """Name the arrays of a model's outputs.

    The names are `predictions`, a key, or `output_0`, …; those of nested outputs have slashes.
    Raises PermanentError for two outputs with one name.
    """
    named: dict[str, NDArray[Any]] = {}
    for path, array in _leaves(outputs):
        name = "/".join(path) or "predictions"
        if name in named:
            raise PermanentError(
                f"the model has two outputs named {name!r}, of which a file holds one",
                hint="rename one of them",
            )
        named[name] = array
    return named


def _leaves(
    outputs: Structure, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    """Each array with the keys that lead to it."""
    if isinstance(outputs, Mapping):
        for key, part in outputs.items():
            yield from _leaves(part, (*path, str(key)))
    elif isinstance(outputs, Sequence) and not isinstance(outputs, np.ndarray):
        for number, part in enumerate(outputs):
            yield from _leaves(part, (*path, f"output_{number}"))
    else:
        yield path, np.asarray(outputs)


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """An output as an array that a file can hold without pickle; strings become bytes ("S").

    Raises PermanentError for a name that no file can hold, for a value without examples, and for
    other objects.
    """
    if problem := _why_not_named(name):
        raise PermanentError(problem, hint="rename the output")
    if not array.ndim:
        raise PermanentError(
            f"the output {name!r} has no axis of examples: it is one value for the whole batch",
            hint="return a value for each example",
        )
    if array.dtype != np.object_:
        return array
    if not all(isinstance(value, bytes | str) for value in array.flat):
        raise PermanentError(
            f"the output {name!r} holds objects that are neither numbers nor strings",
            hint="return dense tensors",
        )
    texts = [value if isinstance(value, bytes) else value.encode() for value in array.flat]
    if any(text.endswith(b"\0") for text in texts):
        raise PermanentError(
            f"the output {name!r} has a string that ends with a zero byte, which NumPy drops",
            hint="return tensors of uint8 instead",
        )
    return np.array(texts, np.bytes_).reshape(array.shape)


def _why_not_named(name: str) -> str | None:
    """Why a file cannot hold an output of that name; None if it can."""
    if name in ABOUT:
        return (
            f"the model has an output named {name!r}, which describes the records in a file of"
            " predictions"
        )
    if len(name) > _MOST_NAME_CHARS:
        return f"the model has an output whose name has {len(name):,} characters: {name[:40]!r}…"
    return f"the output {name!r} has a zero byte in its name" if "\0" in name else None
