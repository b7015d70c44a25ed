"""The base of all events, and types of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    at_s: float
