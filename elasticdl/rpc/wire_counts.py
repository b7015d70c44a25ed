"""Check numbers from the wire that the receiver counts with."""

from __future__ import annotations

from typing import Final

_MOST: Final = 2**62
"""The master adds to a count, and the sum must fit on the wire."""


def count_of(value: int, what: str) -> int:
    """Return a number from the wire. Raises ValueError if no job can have it."""
    if not 0 <= value <= _MOST:
        raise ValueError(f"{what} is {value}, expected 0 to {_MOST}")
    return value
