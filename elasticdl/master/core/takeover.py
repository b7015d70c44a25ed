"""Continues a job under another master.

All that its predecessor decided is in the state. What it did not carry out is ordered again: every
command may be repeated. A lease that never reached its worker is taken back when the worker says
which leases it has received.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import Role
from elasticdl.dropped import DropCause
from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.master.core.commands import AskState, KeepScale, RevokeLeases
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import MasterTookOver, ProcessReturned
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Process
from elasticdl.shard import ReceivedLease, Task


@final
class Takeover:
    """Gives commands again, and compares leases with those that workers received."""

    def __init__(
        self, context: JobContext, leasing: Leasing, evaluation: Evaluation, scaling: Scaling
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._evaluation = evaluation
        self._scaling = scaling

    def begin(self, event: MasterTookOver) -> None:
        """Give all commands about processes and workers again."""
        context = self._context
        running = sum(process.attached for process in context.processes.going.values())
        context.orders.announce(
            "job",
            f"another master continues the job after {event.away_s:.1f} s;"
            f" {amount(running, 'process', 'processes')} kept running",
            details=meaning(EventStep.BEGUN, term=event.term, away_s=event.away_s, kept=running),
        )
        self._scaling.order_again()
        self._leasing.order_again()
        if context.workers != context.spec.cluster.num_workers:
            context.orders.give(KeepScale(context.workers.low, context.workers.high))
        if context.phase is Phase.ENDED and context.outcome is not None:
            context.orders.give(context.outcome)

    def returned(self, event: ProcessReturned) -> None:
        """Take back the leases that did not reach a worker; void those that it must drop."""
        process = self._context.processes.going.get(event.name)
        if process is None or not process.heard:
            self._context.drop(DropCause.ENDED_PROCESS, event.name, event)
            return
        process.busy_since_s = self._context.now_s
        if event.name.role is Role.WORKER:
            self._take_back(process, frozenset(event.received))

    def _take_back(self, process: Process, received: frozenset[ReceivedLease]) -> None:
        current, work, export = self._evaluation.round, self._context.work, self._context.export
        name = process.name
        ledgers = [(work, None), (current.ledger, current.number)] if current else [(work, None)]
        for ledger, of_round in ledgers:
            if ledger is None:
                continue
            for held in ledger.held_by(name):
                lease = ReceivedLease(
                    ledger.task, held.piece.shard.id, held.piece.attempt, of_round
                )
                if held.stage is not Stage.SETTLING and lease not in received:
                    ledger.give_back(held)
        if current is not None and current.summary.holder == name:
            lease = ReceivedLease(Task.SUMMARY, None, current.summary.attempt, current.number)
            if lease not in received:
                current.summary.release(name)
        if (
            export is not None
            and export.task.holder == name
            and ReceivedLease(Task.EXPORT, None, export.task.attempt, export.number) not in received
        ):
            export.task.release(name)
        if process.revoked:
            # The order may not have reached it, also if this master gave it before.
            self._context.orders.give(RevokeLeases(name, "they were revoked meanwhile"))
        if self._leasing.revocation.is_open(name):
            self._context.orders.give(AskState(name))
