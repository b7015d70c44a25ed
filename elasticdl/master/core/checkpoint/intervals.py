"""When the next checkpoint is due: by steps, by time, or early (docs/adr/0037-kept-pushes.md)."""

from __future__ import annotations

import math
from typing import final

from elasticdl.job_choices import Action
from elasticdl.master.core.job_context import JobContext, Phase

_PAUSE_FACTOR = 50.0
"""The pause after a checkpoint, in its duration: those by time take at most 2 % of a job's time.

Servers that leave the processors to training while they write take no time from it.
"""
_CROWDED_S = 30.0
"""A worker says again that its room is half full with each report that has new pushes."""
_FENCED_S = 1.0
"""Servers admit the last pushes of a worker for so long after its end was seen."""


@final
class Intervals:
    """Counts `--checkpoint-steps` and `--checkpoint-seconds`."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.early = EarlyCheckpoints(context)
        self.anchor = 0
        """The newest version that intervals are counted from."""
        self._resumed = False
        self._begun_s = 0.0
        self._counts_from_s = 0.0
        """Where intervals by time begin."""
        self._took_s = 0.0
        """How long the newest checkpoint took from training."""

    @property
    def seconds(self) -> float:
        """The interval of checkpoints by time; 0: there are none."""
        spec = self._context.spec
        if spec.action is not Action.TRAIN or not spec.keeps_checkpoints:
            return 0.0
        return spec.checkpoint.checkpoint_seconds

    def start(self, version: int) -> None:
        """Count versions from here."""
        self.anchor = version
        self._resumed = bool(version)
        if self._resumed:
            self.early.saved(self._context.now_s)
        self._begun_s = self._counts_from_s = self._context.now_s

    def due_by_time(self, *, given_up: bool) -> bool:
        """Whether the interval is over and the weights have changed since the last checkpoint.

        `given_up`: whether the last due checkpoint was.
        """
        # Computed each time: a Tick must not leave a wish behind, since it is not journaled.
        context, seconds = self._context, self.seconds
        # What asks for it stays until one is saved. Failures must not make that an endless loop.
        early = self.early.due and not given_up
        return (
            (seconds > 0 or early)
            and context.phase is Phase.WORKING
            and context.version > self.anchor
            and context.now_s - self._counts_from_s
            >= max(0.0 if early else seconds, _PAUSE_FACTOR * self._took_s)
        )

    def take_step_interval(self) -> bool:
        """Whether the version has passed an interval of steps; the next one counts from here."""
        steps, version = self._context.spec.checkpoint.checkpoint_steps, self._context.version
        # A server came back with an older part: count intervals from there, or none would be due
        # until the version has caught up.
        if version < self.anchor and self._context.version_may_fall():
            self.anchor = version
        if (
            steps
            and self._context.phase is Phase.WORKING
            and version // steps > self.anchor // steps
        ):
            self.anchor = version
            return True
        return False

    def ends_with_one(self, *, any_saved: bool) -> bool:
        """Whether a job that is done takes a last checkpoint.

        A short job that has taken none does not without --checkpoint-steps: to train it again
        costs less than an interval.
        """
        if self._context.spec.checkpoint.checkpoint_steps:
            return True
        lasted_s = self._context.now_s - self._begun_s
        return self.seconds > 0 and (self._resumed or any_saved or lasted_s >= self.seconds)

    def count_from(self, version: int) -> None:
        """Count from this version, of which there is or will be a checkpoint, if it is later."""
        self.anchor = max(self.anchor, version)

    def begin_again(self) -> None:
        """Count time from now: the last checkpoint was given up."""
        self._counts_from_s = self._context.now_s

    def saved(self, delayed_since_s: float, paused_s: float) -> None:
        """Count time from now: a checkpoint is complete.

        It has delayed the job since `delayed_since_s`. Servers paused for `paused_s` of that time,
        which they left to training.
        """
        now_s = self._context.now_s
        self._took_s = now_s - paused_s - delayed_since_s
        if self._context.spec.checkpoints_at:
            # An upload may take longer than the interval, and must not follow another at once.
            paused_s = min(paused_s, self.seconds / 2)
        # As if servers had not paused: else the next one would come later.
        self._counts_from_s = now_s - paused_s


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
