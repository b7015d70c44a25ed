"""How counts are said: `1 worker`, `2 workers`. Whoever tells people a count says it by this."""

from __future__ import annotations


def amount(number: int, noun: str, plural: str = "") -> str:
    """`1 shard`, `1,437 records`, `0 bytes`; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
