"""Reconciles the leases of a worker that is gone.

Servers fence the worker and report what they have of it; the rest is leased again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.formatting import amount
from elasticdl.job_choices import Action
from elasticdl.master.core.commands import FenceWorker
from elasticdl.master.core.data.pieces import Blame, HeldShard, Stage
from elasticdl.master.core.events import WorkerFenced
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import Process
from elasticdl.shard import Applied

_ASK_AGAIN_S = 30.0


@dataclass(slots=True)
class PendingFence:
    """A fencing order without an answer yet."""

    asked_s: float
    blame: Blame | None


@final
class LeaseReconciliation:
    """Workers whose leases are being settled."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self.open: dict[ProcessName, PendingFence] = {}

    def lost(self, process: Process, blame: Blame | None) -> bool:
        """Settle the leases of a worker that is gone or given up.

        True if `blame` will be counted against a shard that it held.
        """
        work = self._context.work
        held = work.held_by(process.name) if work else []
        if work is None or not process.attached:
            return False
        if self._context.spec.action is not Action.TRAIN or not self._context.servers:
            # No server knows more than the worker reported.
            self._settle(process.name, blame, answers=())
            return bool(held) and blame is not None
        for lease in held:
            # From now on `Ledger.find` does not return it: what the worker still reports is in
            # doubt.
            lease.stage = Stage.SETTLING
        if held or not process.finished:
            # Fence a worker without leases too, unless it finished: an unreported push may be on
            # its way.
            self._ask(process.name, blame)
        return bool(held) and blame is not None

    def returned(self, process: Process, held: HeldShard, offset: int) -> None:
        """Take the rest of a lease from a draining worker.

        After its last lease, the servers confirm what it reported.
        """
        work = self._context.work
        assert work is not None
        work.advance(held, offset, 0)
        if held.stage is Stage.CLOSING or self._context.spec.action is not Action.TRAIN:
            work.give_back(held)
            return
        held.stage = Stage.SETTLING
        if all(other.stage is Stage.SETTLING for other in work.held_by(process.name)):
            self._ask(process.name, None)

    def blame(self, worker: ProcessName, blame: Blame) -> None:
        """Count a failure of a shard of a lost worker, whether or not it is settled by now."""
        waiting, work = self.open.get(worker), self._context.work
        if waiting is not None:
            waiting.blame = waiting.blame or blame
        elif work is not None and (parked := work.blame(blame)) is not None:
            self._context.give_up(work.task, parked)

    def _ask(self, worker: ProcessName, blame: Blame | None) -> None:
        if self._context.phase in (Phase.ENDING, Phase.ENDED):
            return
        waiting = self.open.get(worker)
        if waiting is not None:
            # Already asked. If a worker failed and then ended, the failure counts.
            waiting.blame = waiting.blame or blame
            return
        self.open[worker] = PendingFence(self._context.now_s, blame)
        self._context.orders.give(FenceWorker(worker))

    def fenced(self, event: WorkerFenced) -> None:
        """Settle a worker with what the servers reported.

        An unexpected answer is dropped.
        """
        settling = self.open.pop(event.worker, None)
        self._context.processes.worker_ended_s = self._context.now_s
        if settling is None:
            self._context.drop(DropCause.LATE_SETTLEMENT, event.worker, event)
        elif self._context.work is not None:
            self._settle(event.worker, settling.blame, answers=event.applied)

    def _settle(
        self, worker: ProcessName, blame: Blame | None, answers: tuple[Applied | None, ...]
    ) -> None:
        work = self._context.work
        assert work is not None
        shards, before = len(work.held_by(worker)), work.totals()
        spec = self._context.spec
        # In synchronous steps servers acknowledge gradients that they have not applied yet.
        batch = 0 if spec.trains_in_steps else spec.data.minibatch_size
        parked = work.settle(worker, answers, blame, batch)
        after = work.totals()
        if shards:
            trained, repeated = after.trained - before.trained, after.repeated - before.repeated
            text = (
                f"reconciled {amount(shards, 'shard')} of {worker}:"
                f" {amount(trained, 'more record')} confirmed, {repeated or 'none'} to redo"
            )
            details = {"shards": shards, "trained": trained, "repeated": repeated}
            self._context.orders.announce("shard", text, process=worker, details=details)
        if parked is not None:
            self._context.give_up(work.task, parked)

    def order_again(self) -> None:
        """Fence every worker again whose answer is due: an earlier master may have asked."""
        for worker, settling in self.open.items():
            settling.asked_s = self._context.now_s
            self._context.orders.give(FenceWorker(worker))

    def tick(self) -> None:
        """Repeat orders that got no answer."""
        for worker, settling in self.open.items():
            if self._context.now_s - settling.asked_s > _ASK_AGAIN_S:
                # Fencing is idempotent, so asking twice is harmless; a restarted server may have
                # lost the order.
                settling.asked_s = self._context.now_s
                self._context.orders.give(FenceWorker(worker))
