"""Decide whether a worker's own updates overlap its steps, by what pull and push cost.

A step that misses an update of its own worker trains worse; docs/explanation/staleness.md has the
figures. So overlap is allowed only where it saves enough time. Costs are measured without overlap:
with it, pull and push compete with the step for the processor and look more expensive than they
are.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import final

from elasticdl.formatting import exchange_words

WINDOW = 16
"""Steps per measurement; their median does not see the step that traces, or a wait for a server."""
OVERLAPPED = 1_000
"""Steps with overlap between two measurements: measuring takes less than 2 % of the steps."""
GROW = 0.25
SHRINK = 0.15
"""Overlap begins when pull and push take more than `GROW` of a step, and ends below `SHRINK`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The limit in force, and its reason: medians of one measurement, in seconds."""

    limit: int
    pull_s: float
    step_s: float
    push_s: float
    changed: bool
    """Whether the decision before was another one."""

    @property
    def share(self) -> float:
        """Pull and push as a share of the step."""
        return _share(self.pull_s, self.step_s, self.push_s)

    def __str__(self) -> str:
        return (
            f"own updates that a step may miss: {self.limit}; {exchange_words(self.share)} (pull"
            f" {self.pull_s * 1e3:.1f} ms, push {self.push_s * 1e3:.1f} ms, step"
            f" {self.step_s * 1e3:.1f} ms)"
        )


@final
class AutoStaleness:
    """How many of its own updates a worker's step may miss: 0 or `at_most`. Thread-safe."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._pulls, self._steps, self._pushes = (deque[float](maxlen=WINDOW) for _ in range(3))
        self._pays = False
        """The last decision, which the next measurement confirms or changes."""
        self._left = 0
        """Steps with overlap until the next measurement; 0 while measuring."""

    @property
    def limit(self) -> int:
        return self._at_most if self._left else 0

    def pulled(self, seconds: float) -> None:
        """A pull for a step took this long."""
        self._add(self._pulls, seconds)

    def computed(self, seconds: float) -> None:
        """A step took this long."""
        self._add(self._steps, seconds)

    def pushed(self, seconds: float) -> Decision | None:
        """A push took this long, which ends a step. A decision after each measurement."""
        self._add(self._pushes, seconds)
        with self._lock:
            if self._left:
                self._left -= 1
                return None
            if min(map(len, (self._pulls, self._steps, self._pushes))) < WINDOW:
                return None
            return self._decided()

    def _add(self, samples: deque[float], seconds: float) -> None:
        with self._lock:
            if not self._left:
                samples.append(seconds)

    def _decided(self) -> Decision:
        pull_s, step_s, push_s = map(median, (self._pulls, self._steps, self._pushes))
        for samples in (self._pulls, self._steps, self._pushes):
            samples.clear()
        before = self._pays
        worth = _share(pull_s, step_s, push_s) > (SHRINK if before else GROW)
        self._pays = worth and self._at_most > 0
        self._left = OVERLAPPED if self._pays else 0
        return Decision(self.limit, pull_s, step_s, push_s, self._pays != before)


def _share(pull_s: float, step_s: float, push_s: float) -> float:
    return (pull_s + push_s) / max(step_s, 1e-9)
