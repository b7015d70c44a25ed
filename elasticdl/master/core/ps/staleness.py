"""What a job says about stale gradients: which staleness its workers chose, and when it hurts."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import final

from elasticdl.formatting import amount, exchange_words
from elasticdl.master.core.events import StalenessChosen
from elasticdl.master.core.job_context import JobContext

LOSS_WINDOW = 16
"""Losses per median: that of one batch says little."""
LOSS_RISE = 2.0
"""How many times its lowest value a loss must be to count as risen.

A small loss varies a lot, so it must also have lost half of what was gained since the start.
"""


@final
class Staleness:
    """Announces each limit of staleness once, and a loss that rises while gradients are stale."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._limits = set[int]()
        """Those that were announced."""
        self._loss_watch = LossWatch()

    def chosen(self, event: StalenessChosen) -> None:
        """Announce each limit once: workers may differ, and change it many times."""
        if event.limit in self._limits:
            return
        self._limits.add(event.limit)
        overlap = "overlaps its own pushes" if event.limit else "waits for its own pushes"
        text = f"{event.worker} {overlap}: {exchange_words(event.share)}"
        self._context.orders.announce("staleness", text, process=event.worker)

    def saw_loss(self, loss: float) -> None:
        """Warn once if the loss rises while gradients are stale."""
        context = self._context
        workers = len(context.processes.live_workers())
        if workers <= 1 or context.spec.trains_in_steps or context.spec.trains_on_ring:
            return
        if risen := self._loss_watch.add(loss):
            lowest, now = risen
            text = (
                f"the training loss rose from {lowest:.4g} to {now:.4g}. {workers} workers train"
                f" asynchronously, so a gradient misses about {amount(workers - 1, 'update')} of"
                " others: add --sync, or lower the learning rate"
            )
            context.orders.announce("staleness", text, level="warning")


@final
class LossWatch:
    """Compares medians of successive losses. It notices one rise."""

    def __init__(self) -> None:
        self._losses = deque[float](maxlen=LOSS_WINDOW)
        self._first: float | None = None
        self._lowest = float("inf")
        self._noticed = False

    def add(self, loss: float) -> tuple[float, float] | None:
        """Add the loss of a batch. Returns the lowest and the present loss once it has risen."""
        self._losses.append(loss)
        if self._noticed or len(self._losses) < LOSS_WINDOW:
            return None
        now = median(self._losses)
        if self._first is None:
            self._first = now
        self._lowest = min(self._lowest, now)
        risen = max(LOSS_RISE * self._lowest, (self._first + self._lowest) / 2)
        if now < risen or now <= self._lowest:
            return None
        self._noticed = True
        return self._lowest, now
