"""What a worker's time goes to: a closed set of uses, each of one class and with one cause.

At any instant a worker's time goes to exactly one use, so the seconds of all uses add up to the
time that the worker runs. `docs/explanation/goodput.md` defines the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

GAUGE_PREFIX = "spent_"
"""Prefix of the gauges that count a worker's seconds so far, by use."""


class TimeUse(StrEnum):
    """`class.cause`. What a worker that waits for its pipeline waits for is a use, too."""

    LAUNCH = "start.launch"
    """From its container's start until it attaches. Only the master sees it."""
    IMPORT = "start.import"
    BUILD = "start.build"
    WEIGHTS = "start.weights"
    INITIAL = "start.initial"
    COMPILE = "start.compile"
    """On parameter servers: the first step, which traces and compiles."""
    READ = "input.read"
    FEED = "input.feed"
    LOOKUP = "input.lookup"
    """Finding the distinct ids of a batch."""
    PULL = "pull.servers"
    SERVERS_AWAY = "pull.servers_away"
    """Servers do not answer: the call is repeated."""
    STEP = "compute.step"
    PREDICT = "compute.predict"
    CALLBACKS = "compute.callbacks"
    ACKNOWLEDGEMENT = "push.acknowledgement"
    """Too many of its own pushes are under way for another pull; see `--max-staleness`.

    With `--sync` and one worker: its last push is not applied yet.
    """
    LEASE = "wait.lease"
    """It has no work, and waits for the master's next lease."""
    TURN = "barrier.turn"
    """In synchronous steps of several workers: it waits for its turn."""
    MEMBERS = "barrier.members"
    """On a ring: its part of the step is computed, and it waits for those of the others."""
    RING = "barrier.ring"
    """It waits for a ring, or takes the others' weights."""
    PAUSE = "barrier.pause"
    """The ring stands still for an evaluation or an export by another member."""
    STALE = "repeated.stale"
    """A step again, since its parameters had become too old."""
    NONFINITE = "repeated.nonfinite"
    """A step again, since it gave NaN or infinity."""
    LOST_RECORDS = "repeated.records"
    """Steps on records that were lost with the weights. Only the master knows them."""
    METRICS = "evaluation.metrics"
    SUMMARY = "evaluation.summary"
    COPY = "checkpoint.copy"
    EXPORT = "checkpoint.export"
    BETWEEN = "idle.between"
    """Between steps, with nothing of the above."""
    ENDING = "idle.ending"
    """From its last work to its end."""

    @property
    def kind(self) -> str:
        return self.value.partition(".")[0]


LOST = "lost"
"""The class of what a process that died had not reported; the cause is that of its end."""
COMPUTE = TimeUse.STEP.kind
_COUNTERS = tuple((f"{GAUGE_PREFIX}{use}", use) for use in TimeUse)
_NAMES = frozenset(name for name, _ in _COUNTERS)
_MOST_S = 1e9


def spent_in(gauges: Mapping[str, float]) -> dict[str, float]:
    """Seconds that a process has spent on each use since it began, from its gauges.

    Other gauges are ignored, and what cannot be a number of seconds.
    """
    if gauges.keys().isdisjoint(_NAMES):
        return {}
    return {
        use.value: seconds
        for name, use in _COUNTERS
        if 0.0 < (seconds := gauges.get(name, 0.0)) <= _MOST_S
    }
