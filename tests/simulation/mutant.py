"""What a deliberate defect is."""

from __future__ import annotations

from dataclasses import dataclass

RING, SERVERS, STEPS = "ring", "ps", "sync"


@dataclass(frozen=True, slots=True)
class Mutant:
    """In the source of function `where` (module:Class.method, below `elasticdl.`) `old` becomes
    `new`.
    """

    name: str
    strategy: str
    where: str
    old: str
    new: str
    beside: Mutant | None = None
    """Another defect, without which this one does not show."""
    shows: str = ""
    """What the failure that it leads to has in its text."""
