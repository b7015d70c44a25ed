"""Which processes of a job hold which places: the k of worker k on the priority ladder."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from typing import Any, final

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.kubernetes.labels import ladder_place


@final
class WorkerPlaces:
    """A process takes the lowest free place of its role, from 1, and frees it by its end.

    Use it from one event loop. The places of pods that another master created are on their labels.
    """

    def __init__(self) -> None:
        self._places: dict[ProcessName, int] = {}
        """Of processes that have not ended."""
        self._held: Counter[tuple[str, int]] = Counter()
        """How many hold a place: several only if somebody changed the labels of pods."""
        self._freed: dict[str, list[int]] = {}
        """Heaps, by role; they may contain places that are held again."""
        self._next: dict[str, int] = {}
        """The lowest place, by role, that was never held."""

    def of(self, name: ProcessName) -> int:
        """The place of a process, taken now if it has none yet."""
        if name not in self._places:
            self._hold(name, self._lowest(str(name.role)))
        return self._places[name]

    def observed(self, name: ProcessName, labels: Mapping[str, Any]) -> None:
        """A pod lives, and its labels say its place, if its job has places."""
        if name in self._places:
            return
        if (place := ladder_place(labels)) is not None:
            self._hold(name, place)

    def ended(self, name: ProcessName) -> None:
        place = self._places.pop(name, None)
        if place is None:
            return
        self._held[str(name.role), place] -= 1
        heapq.heappush(self._freed.setdefault(str(name.role), []), place)

    def _hold(self, name: ProcessName, place: int) -> None:
        role = str(name.role)
        self._places[name] = place
        self._held[role, place] += 1
        for skipped in range(self._next.get(role, 1), place):
            heapq.heappush(self._freed.setdefault(role, []), skipped)
        self._next[role] = max(self._next.get(role, 1), place + 1)

    def _lowest(self, role: str) -> int:
        freed = self._freed.get(role, [])
        while freed:
            place = heapq.heappop(freed)
            if not self._held[role, place]:
                return place
        return self._next.get(role, 1)
