"""Which rung of the priority ladder a worker stands on: the lowest that is free.

Where the first worker of every job has the highest priority, the second a lower one, and so on, the stock scheduler shares a cluster
fairly among jobs: a newcomer's first worker takes the place of the richest job's last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from elasticdl.cluster.base import ProcessName

PLACEHOLDER = "{rung}"
HIGHEST = 32
"""docker/priorities.yaml has so many classes."""


@final
class Rungs:
    """Use it from one thread."""

    def __init__(self, has_ended: Callable[[ProcessName], bool]) -> None:
        """`has_ended` tells whose rungs are free again."""
        self._has_ended = has_ended
        self._taken: dict[ProcessName, int] = {}

    def of(self, name: ProcessName) -> int:
        """From 1. A process keeps its rung; beyond the highest all stand on that."""
        if name not in self._taken:
            self._taken = {other: rung for other, rung in self._taken.items() if not self._has_ended(other)}
            taken = {rung for other, rung in self._taken.items() if other.role is name.role}
            self._taken[name] = next(rung for rung in range(1, len(taken) + 2) if rung not in taken)
        return min(self._taken[name], HIGHEST)
