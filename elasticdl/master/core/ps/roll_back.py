"""The checkpoint that all servers of a synchronous job return to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName


@final
@dataclass(frozen=True, slots=True)
class RollBack:
    """A return that is under way: no turn of a step is given, and no view is cut.

    `path` is the checkpoint's directory. `restored` are the servers that have it by now.
    """

    version: int
    path: str
    restored: frozenset[ProcessName] = frozenset()
