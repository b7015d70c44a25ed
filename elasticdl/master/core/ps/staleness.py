"""What a job says about stale gradients: which staleness its workers chose, and when it hurts."""

from __future__ import annotations

from typing import final

from elasticdl.formatting import exchange_words
from elasticdl.master.core.events import StalenessChosen
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.ps.divergence import LossWatch


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
        if workers == 1 or context.spec.trains_in_steps or context.spec.trains_on_ring:
            return
        if risen := self._loss_watch.add(loss):
            lowest, now = risen
            text = (
                f"the training loss rose from {lowest:.4g} to {now:.4g}. {workers} workers train"
                f" asynchronously, so a gradient misses about {workers - 1} updates of others: add"
                " --sync, or lower the learning rate"
            )
            context.orders.announce("staleness", text, level="warning")
