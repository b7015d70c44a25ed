"""How long a worker may take for what it holds."""

from __future__ import annotations

from typing import final

from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.paces import Paces
from elasticdl.master.core.data.pieces import HeldShard
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.processes.table import Process
from elasticdl.shard import Task


@final
class LeaseLimits:
    """Limits of leases, from the paces of workers at work of the same kind."""

    def __init__(self, context: JobContext, evaluation: Evaluation, paces: Paces) -> None:
        self._context = context
        self._evaluation = evaluation
        self._paces = paces

    def limit_s(self, process: Process, *, compiles: bool = True) -> float | None:
        """How long the worker may go without progress on its leases; None without leases.

        `compiles` False: without the time that a worker has for its first step.
        """
        name, limits = process.name, list[float]()
        current, work = self._evaluation.round, self._context.work
        for ledger in (work, current.ledger if current else None):
            held = ledger.held_by(name) if ledger else []
            if ledger is work and self._context.waits_for_others(name):
                continue
            limits += [self._lease_limit_s(ledger, lease, compiles) for lease in held if ledger]
        if singleton_s := self.singleton_limit_s(process):
            limits.append(singleton_s)
        return max(limits, default=None)

    def _lease_limit_s(self, ledger: Ledger, held: HeldShard, compiles: bool) -> float:
        """The time until the next report of progress with this lease."""
        records = held.piece.shard.records
        if ledger.keeps_progress:
            batch = self._context.spec.data.minibatch_size
            records = min(records, self._paces.stride(ledger.task, batch))
        if not compiles:
            return self._paces.usual_limit_s(ledger.task, records)
        warm = self._paces.knows(held.worker, ledger.task)
        return self._paces.limit_s(ledger.task, records, warm=warm)

    def singleton_limit_s(self, process: Process) -> float:
        """How long the summary or export that a worker holds may take; 0 if it holds neither."""
        current, export = self._evaluation.round, self._context.export
        if export is not None and export.task.holder == process.name:
            return self._paces.limit_s(Task.EXPORT, 0, warm=True)
        summary = current is not None and current.summary.holder == process.name
        return self._paces.limit_s(Task.SUMMARY, 0, warm=True) if summary else 0.0
