"""Where the gradients of synchronous steps may come from, as the core sees it."""

from __future__ import annotations

from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.ps.steps import Outlook, TrainingLease


def outlook_of(context: JobContext, leasing: Leasing) -> Outlook:
    """Leases, workers and shards that may still bring a gradient."""
    work = context.work
    if work is None:
        return Outlook()
    leases = []
    returning = list[int]()
    for held in work.held.values():
        if held.stage is not Stage.LEASED:
            returning.append(held.piece.epoch)
            continue
        process = context.worker(held.worker)
        # A worker that is stopping brings no further gradient: it gives its leases back.
        if process is not None and process.life is Life.READY:
            piece = held.piece
            leases.append(TrainingLease(held.worker, piece.shard.id, piece.attempt, piece.epoch))
    held_up = context.roll_back is not None
    if context.phase is not Phase.WORKING or held_up:
        return Outlook(leases, held=held_up)
    ready = frozenset(
        worker.name
        for worker in context.processes.live_workers()
        # All its leases may wait for this very step: those of bad records only bring no gradient.
        if worker.up and not leasing.has_most(worker.name)
        # It gets no shard before the export is over, which takes as long as many steps.
        if not leasing.exporting.holds(worker.name)
    )
    return Outlook(leases, ready, min(returning, default=None), _available(work))


def _available(work: Ledger) -> int | None:
    """The lowest epoch of the shards that can be leased now."""
    epochs = [piece.epoch for piece in work.returned]
    if work.fresh:
        epochs.append(work.epoch)
    elif work.epochs_left and work.plan.shards:
        epochs.append(len(work.counts))
    return min(epochs, default=None)
