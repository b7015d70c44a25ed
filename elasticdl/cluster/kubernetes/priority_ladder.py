"""The rung of a worker on the priority ladder: the lowest free one.

If the first worker of every job has the highest priority, the second a lower one, and so on, the
stock scheduler shares a cluster fairly among jobs: a new job's first worker preempts the last
worker of the largest job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from elasticdl.cluster.base import ProcessName, Role

PLACEHOLDER = "{rung}"
HIGHEST = 32
"""The number of classes in docker/priorities.yaml."""


@final
class PriorityLadder:
    """Use it from one thread."""

    def __init__(self, has_ended: Callable[[ProcessName], bool]) -> None:
        """`has_ended` tells whether a process has freed its rung."""
        self._has_ended = has_ended
        self._standing: dict[Role, dict[int, ProcessName]] = {role: {} for role in Role}
        """The process on each rung of a role's ladder, or the last that was."""
        self._of: dict[ProcessName, int] = {}

    def of(self, name: ProcessName) -> int:
        """The rung, from 1. A process keeps its rung; beyond the highest, all share that one."""
        if name not in self._of:
            standing = self._standing[name.role]
            rungs = range(1, HIGHEST)
            self._of[name] = next(
                (rung for rung in rungs if rung not in standing or self._has_ended(standing[rung])),
                HIGHEST,
            )
            standing[self._of[name]] = name
        return self._of[name]
