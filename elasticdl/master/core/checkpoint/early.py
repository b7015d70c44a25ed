"""Why a checkpoint by time comes before its interval is over. See docs/adr/0037-kept-pushes.md."""

from __future__ import annotations

import math
from typing import final

from elasticdl.master.core.job_context import JobContext

_CROWDED_S = 30.0
"""A worker says again that its room is half full with each report that has new pushes."""
_FENCED_S = 1.0
"""Servers admit the last pushes of a worker for so long after its end was seen."""


@final
class EarlyCheckpoints:
    """Knows when a server that is lost would take updates along that no worker can push again."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._crowded_s = -math.inf
        """When a worker last said that its room for pushes is half full."""
        self._covered_s = -1.0
        """When the newest complete checkpoint was ordered: it has all that was pushed by then."""

    def crowded(self) -> None:
        """A worker soon has no room for pushes that no checkpoint has."""
        self._crowded_s = self._context.now_s

    def saved(self, ordered_s: float) -> None:
        """A checkpoint that was ordered at that time is complete."""
        self._covered_s = max(self._covered_s, ordered_s)
        self._crowded_s = -math.inf

    @property
    def in_pods(self) -> bool:
        """Whether servers lose their memory with their pods, and workers push again what it had."""
        return self._context.spec.on_kubernetes and self._context.spec.keeps_pushes

    @property
    def due(self) -> bool:
        """Whether the next checkpoint should not wait for the end of its interval."""
        return self._context.now_s - self._crowded_s <= _CROWDED_S or self._exposed

    @property
    def _exposed(self) -> bool:
        """Whether a server's pod has updates that would be lost with it.

        Those of workers that have ended since the newest checkpoint, or all if there is none. A
        synchronous job goes back to a checkpoint as a whole, but there must be one.
        """
        spec = self._context.spec
        if spec.on_kubernetes and spec.trains_in_steps and spec.takes_checkpoints:
            return self._covered_s < 0
        if not self.in_pods:
            return False
        ended_s = self._context.processes.worker_ended_s
        fenced = ended_s <= self._context.now_s - _FENCED_S
        return self._covered_s < 0 or (self._covered_s < ended_s and fenced)
