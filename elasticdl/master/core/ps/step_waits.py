"""Measures how long synchronous steps wait for one worker alone: what they would save without it.

Like `steps.py` it is fed by the gateway, and nothing of it is journaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events import StepsWaited

_EVERY_S = 10.0
_SHARE = 0.5
"""A worker that takes less of the steps' time is not reported."""


@final
class StepWaits:
    """Sums up the waits of the last seconds of steps.

    A worker is reported that steps waited for in two periods in a row.
    """

    def __init__(self) -> None:
        self._arrived: dict[ProcessName, float] = {}
        """When the newest gradient of each worker came."""
        self._new: set[ProcessName] = set()
        """Workers whose newest gradient is their first: they compiled before it."""
        self._waited: dict[ProcessName, float] = {}
        self._of_s = 0.0
        self._worst: ProcessName | None = None
        """The worker that the steps of the last period waited for."""

    def came(self, worker: ProcessName, at_s: float) -> None:
        """All servers have a gradient of this worker."""
        if worker in self._arrived:
            self._new.discard(worker)
        else:
            self._new.add(worker)
        self._arrived[worker] = at_s

    def forget(self, worker: ProcessName) -> None:
        self._arrived.pop(worker, None)
        self._waited.pop(worker, None)
        self._new.discard(worker)

    def completed(
        self, workers: Iterable[ProcessName], opened_s: float, at_s: float
    ) -> StepsWaited | None:
        """A step that was open since `opened_s` has the gradients of these workers.

        Returns what is to be reported, about every ten seconds.
        """
        came = sorted((self._arrived.get(name, opened_s), name) for name in set(workers))
        if any(name in self._new for _, name in came):
            return None
        if len(came) > 1:
            (before_s, _), (last_s, last) = came[-2:]
            wait_s = max(0.0, last_s - max(before_s, opened_s))
            self._waited[last] = self._waited.get(last, 0.0) + wait_s
        self._of_s += max(0.0, at_s - opened_s)
        return self._report(at_s) if self._of_s >= _EVERY_S else None

    def _report(self, at_s: float) -> StepsWaited | None:
        of_s, waited = self._of_s, self._waited
        self._of_s, self._waited = 0.0, {}
        worst = max(waited, key=lambda name: (waited[name], name), default=None)
        if worst is None or waited[worst] <= _SHARE * of_s:
            self._worst = None
            return None
        # Not for a single period: a new shape of a batch is compiled once.
        again, self._worst = worst == self._worst, worst
        return StepsWaited(at_s, worst, waited[worst], of_s) if again else None
