"""Take a value that a test knows to be there."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value; None fails the test."""
    assert value is not None
    return value


def array(value: object) -> np.ndarray[Any, Any]:
    """The array; any other value fails the test."""
    assert isinstance(value, np.ndarray)
    return value
