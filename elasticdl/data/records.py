"""Operations on blocks of records: select, join, and show the cells of one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Records


def count_of(records: Records) -> int:
    """Number of records."""
    return len(next(iter(records.values()))) if isinstance(records, Mapping) else len(records)


def taken(records: Records, indices: NDArray[np.int64]) -> Records:
    """The records at these indices, in this order."""
    if isinstance(records, Mapping):
        return {name: np.take(column, indices, axis=0) for name, column in records.items()}
    return np.take(records, indices, axis=0)


def joined(parts: Sequence[Records]) -> Records:
    """Concatenate at least one part."""
    if len(parts) == 1:
        return parts[0]
    by_column = [part for part in parts if isinstance(part, Mapping)]
    if by_column:
        return {name: np.concatenate([part[name] for part in by_column]) for name in by_column[0]}
    return np.concatenate([part for part in parts if not isinstance(part, Mapping)])


def cells_of(records: Records, index: int, names: Sequence[str]) -> dict[str, str]:
    """The values of one record, as text by column.

    Columns without names have their numbers as keys; a record without columns has the key ''.
    """
    if isinstance(records, Mapping):
        return {name: _text(column[index]) for name, column in records.items()}
    record: Any = records[index]
    if records.ndim == 1:
        return {"": _text(record)}
    known = names if len(names) == len(record) else [str(number) for number in range(len(record))]
    return {name: _text(value) for name, value in zip(known, record, strict=True)}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)
