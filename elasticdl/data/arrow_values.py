"""Values of Arrow arrays as NumPy arrays: what Parquet, Arrow and SQL data become.

Numbers and booleans keep their type. Dates and times become int64, decimals float64, strings and
binary bytes (object[n]), lists of one length [n, length]. A null is b"" in strings and NaN in
floating point. In other columns it makes the record bad, unless `fill_null` gives a value for it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticdl.errors import UserError

_Lists: TypeAlias = "pa.ListArray[Any] | pa.LargeListArray[Any] | pa.FixedSizeListArray[Any, Any]"


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The Arrow type that values of `kind` are converted to first; None if there is none."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    ):
        return pa.large_binary()
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_temporal(kind):
        return pa.int64()
    return None


def is_list(kind: pa.DataType) -> bool:
    """Whether values of `kind` are lists."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def numpy_name(column: pa.Field[Any], path: str, length: int | None) -> str:
    """The dtype of a column, with the `length` of its lists. Raises UserError if it has none."""
    kind = column.type.value_type if is_list(column.type) else column.type
    plain = plain_type(kind)
    if plain is None:
        raise UserError(
            f"{path}: column {column.name!r} has type {column.type}, which has no NumPy form",
            hint='name the columns to read: --data-reader-params "columns=a,b"',
        )
    name = "object" if plain == pa.large_binary() else str(np.dtype(plain.to_pandas_dtype()))
    return name if length is None else f"{name}[{length}]"


def convert(
    array: pa.Array[Any], fill_null: float | None, length: int | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """Values [n, ...], which of them are usable [n], and what is wrong with the others."""
    if isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return _convert_lists(array, fill_null, length or 0)
    if isinstance(array, pa.DictionaryArray):
        # Arrow decodes no dictionary of views.
        dictionary = array.dictionary.cast(plain_type(array.type) or array.type.value_type)
        array = pa.DictionaryArray.from_arrays(array.indices, dictionary).dictionary_decode()
    plain = plain_type(array.type)
    if plain is None:
        raise UserError(f"values of type {array.type} have no NumPy form")
    if array.type != plain:
        # Arrow casts 32-bit times to int32 only.
        if pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
            array = array.cast(pa.int32())
        array = array.cast(plain)
    # Every row fits unless a null has no replacement.
    everything = np.ones(len(array), bool)
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False), everything, ""
    fill = b"" if plain == pa.large_binary() else fill_null
    if fill is None and pa.types.is_floating(plain):
        fill = float("nan")
    fits = everything if fill is not None else ~array.is_null().to_numpy(zero_copy_only=False)
    filled = array.fill_null(pa.scalar(fill if fill is not None else 0).cast(plain))
    return filled.to_numpy(zero_copy_only=False), fits, "is null"


def _convert_lists(
    array: _Lists, fill_null: float | None, length: int
) -> tuple[NDArray[Any], NDArray[np.bool_], str]:
    """Lists of this length as [n, length]; others do not fit."""
    lengths = pc.list_value_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
    fits = lengths == length
    # Filter first: `flatten` drops list boundaries, so every list must have the same length.
    values, value_fits, why = convert(array.filter(pa.array(fits)).flatten(), fill_null)
    result = np.zeros((len(array), length), values.dtype)
    count = int(np.count_nonzero(fits))
    result[fits] = values.reshape(count, length)
    fits[fits] = value_fits.reshape(count, length).all(axis=1)
    return (
        result,
        fits,
        f"is not a list of {length} values" + (f", or one of them {why}" if why else ""),
    )
