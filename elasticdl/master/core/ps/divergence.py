"""Notice that the training loss rises again, as it does where gradients are too stale."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import final

WINDOW = 16
"""Losses per median: that of one batch says little."""
RISE = 2.0
"""How many times its lowest value a loss must be to count as risen.

A small loss varies a lot, so it must also have lost half of what was gained since the start.
"""


@final
class LossWatch:
    """Compares medians of successive losses. It notices one rise."""

    def __init__(self) -> None:
        self._losses = deque[float](maxlen=WINDOW)
        self._first: float | None = None
        self._lowest = float("inf")
        self._noticed = False

    def add(self, loss: float) -> tuple[float, float] | None:
        """Add the loss of a batch. Returns the lowest and the present loss once it has risen."""
        self._losses.append(loss)
        if self._noticed or len(self._losses) < WINDOW:
            return None
        now = median(self._losses)
        if self._first is None:
            self._first = now
        self._lowest = min(self._lowest, now)
        if now < max(RISE * self._lowest, (self._first + self._lowest) / 2) or now <= self._lowest:
            return None
        self._noticed = True
        return self._lowest, now
