"""Which of many things a tick looks at: thousands take turns, so that no tick takes long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")
_AT_ONCE: Final = 1_000


def ticks_for_all(number: int) -> int:
    """Return in how many ticks each of so many things has its turn."""
    return max(1, -(-number // _AT_ONCE))


def is_turn(number: int, now_s: float) -> bool:
    """Return whether this tick looks at all of so many things at once, as it must compare them."""
    return int(now_s) % ticks_for_all(number) == 0


def share_of_tick(everything: Sequence[T], now_s: float) -> Sequence[T]:
    """Return those of `everything` that have their turn: all, up to a thousand.

    It depends on the time only: a tick that yields no command leaves no trace in the journal. A
    tick comes once a second, and what one misses has another turn.
    """
    parts = ticks_for_all(len(everything))
    return everything if parts == 1 else everything[int(now_s) % parts :: parts]
