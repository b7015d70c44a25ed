"""Which rung of the priority ladder a worker stands on: the lowest that is free.

Where the first worker of every job has the highest priority, the second a lower one, and so on, the
stock scheduler shares a cluster
fairly among jobs: a newcomer's first worker takes the place of the richest job's last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from elasticdl.cluster.base import ProcessName, Role

PLACEHOLDER = "{rung}"
HIGHEST = 32
"""docker/priorities.yaml has so many classes."""


@final
class PriorityLadder:
    """Use it from one thread."""

    def __init__(self, has_ended: Callable[[ProcessName], bool]) -> None:
        """`has_ended` tells whose rungs are free again."""
        self._has_ended = has_ended
        self._standing: dict[Role, dict[int, ProcessName]] = {role: {} for role in Role}
        """Who stands on each rung of a role's ladder, or stood there last."""
        self._of: dict[ProcessName, int] = {}

    def of(self, name: ProcessName) -> int:
        """From 1. A process keeps its rung; beyond the highest all stand on that."""
        if name not in self._of:
            standing = self._standing[name.role]
            rungs = range(1, HIGHEST)
            self._of[name] = next(
                (rung for rung in rungs if rung not in standing or self._has_ended(standing[rung])),
                HIGHEST,
            )
            standing[self._of[name]] = name
        return self._of[name]
