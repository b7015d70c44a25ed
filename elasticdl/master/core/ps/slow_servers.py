"""Names a parameter server that the workers wait for, and replaces it after a checkpoint.

Its successor restores the checkpoint, so only the updates since its cut are lost, and counted.
"""

from __future__ import annotations

from typing import final

from elasticdl.master.core import events
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.causes import Cause
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.slowness import announce_slowness, lack_of_cpu
from elasticdl.master.core.processes.table import Process

_SLOW_FOR_S = 20.0
"""A server is replaced if it has been slow for so long since that was announced."""
_SAVE_LIMIT_S = 120.0
"""Time for the checkpoint before a replacement; without it there is none."""
_MOST = 2
"""Replacements of one index: if the successors are slow, too, the cause is not the process."""


@final
class SlowServers:
    """At most one replacement at a time. Only a tick with a command changes it."""

    def __init__(self, context: JobContext, checkpointing: Checkpointing, scaling: Scaling) -> None:
        self._context = context
        self._checkpointing = checkpointing
        self._scaling = scaling
        self._slow: int | None = None
        self._slow_since_s = 0.0
        self._saving_since_s: float | None = None
        """When the checkpoint before a replacement was requested."""
        self._replaced: dict[int, int] = {}
        """Replacements by index."""
        self._gave_up = False
        """The slow server stays: this was announced."""

    def saw(self, event: events.Event) -> None:
        """Take in which server the workers wait for."""
        if not isinstance(event, events.ServerDelayed):
            return
        before, self._slow = self._slow, event.server
        self._saving_since_s, self._gave_up, self._slow_since_s = None, False, event.at_s
        named = before if event.server is None else event.server
        process = self._context.processes.server(named) if named is not None else None
        if process is None:
            return
        if event.server is None:
            process.slow_times = 0.0
            announce_slowness(self._context, process, "is no longer slow", "info")
            return
        process.slow_times = event.took_ms / max(event.others_ms, 1e-3)
        text = (
            f"is slow: workers wait {event.took_ms:.3g} ms for its part of a pull and push,"
            f" {event.others_ms:.3g} ms for the others"
            f"{lack_of_cpu(process, self._context.processes)}"
        )
        announce_slowness(self._context, process, text, "warning")

    def tick(self) -> None:
        """Take a checkpoint, and then replace the slow server."""
        process = self._context.processes.server(self._slow) if self._slow is not None else None
        if process is None or not process.up or self._gave_up:
            return
        if self._saving_since_s is not None:
            self._await_checkpoint(process, self._saving_since_s)
        elif self._context.now_s - self._slow_since_s >= _SLOW_FOR_S:
            self._begin(process)

    def _begin(self, process: Process) -> None:
        if self._context.phase is not Phase.WORKING:
            return
        why_not = self._checkpointing.why_not()
        if self._replaced.get(process.name.index, 0) >= _MOST:
            why_not = f"{_MOST} replacements did not help"
        if why_not:
            self._stays(process, why_not)
            return
        if self._checkpointing.under_way:
            self._checkpointing.hurry()
            return
        self._saving_since_s = self._context.now_s
        announce_slowness(
            self._context, process, "will be replaced after a checkpoint: it is slow", "info"
        )
        self._checkpointing.asked(process.name)

    def _await_checkpoint(self, process: Process, since_s: float) -> None:
        newest = self._checkpointing.complete.newest
        if self._context.phase is not Phase.WORKING:
            # What it was given since the cut would not be trained again.
            self._stays(process, "training is over")
        elif newest is not None and newest.at_s > since_s:
            self._saving_since_s = None
            self._slow = None
            index = process.name.index
            self._replaced[index] = self._replaced.get(index, 0) + 1
            process.cause = Cause.STRAGGLER
            self._scaling.stop(process, 0.0, "replaced: it was slow")
        elif self._context.now_s - since_s > _SAVE_LIMIT_S:
            self._stays(process, f"no checkpoint within {_SAVE_LIMIT_S:.0f} s")

    def _stays(self, process: Process, why: str) -> None:
        self._gave_up, self._saving_since_s = True, None
        announce_slowness(self._context, process, f"is not replaced: {why}", "warning")
