"""Takes leases back from workers that live on.

Revoked training shards come back when their worker no longer holds them.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import amount
from elasticdl.master.core.commands import AskState, RevokeLeases
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import StateReported
from elasticdl.master.core.exporting import Exporting
from elasticdl.master.core.job_context import JobContext

_ASK_AGAIN_S = 3.0


@final
class Revocation:
    """Revoked leases until they are back."""

    def __init__(self, context: JobContext, evaluation: Evaluation, exporting: Exporting) -> None:
        self._context = context
        self._evaluation = evaluation
        self._exporting = exporting
        self._asked_s: dict[ProcessName, float] = {}
        """When workers that hold revoked shards were last asked."""

    def is_open(self, worker: ProcessName) -> bool:
        """Whether revoked shards of a worker are not back yet.

        It gets no new ones before: a push of a later lease says that all earlier ones are trained
        (`pieces.reached`).
        """
        held_by = self._context.work.held_by(worker) if self._context.work else ()
        return any(held.stage is Stage.CLOSING for held in held_by)

    def revoke(self, worker: ProcessName, reason: str) -> None:
        """Void the leases of a live worker.

        Evaluation shards and an export go back at once; training shards go back after their last
        reports.
        """
        process, work = self._context.worker(worker), self._context.work
        if process is None:
            return
        process.revoked = True
        self._evaluation.lost(worker, "")
        self._exporting.lost(worker, "")
        held_by = work.held_by(worker) if work else ()
        for held in held_by:
            if held.stage is Stage.LEASED:
                # The worker may have pushed steps that it has not reported. The shard comes back
                # when the worker says that it no longer holds it.
                held.stage, held.since_s = Stage.CLOSING, self._context.now_s
        self._context.orders.give(RevokeLeases(worker, reason))
        if held_by:
            self._ask(worker)

    def state_reported(self, event: StateReported) -> None:
        """Take back revoked shards that the worker no longer holds.

        It pushes nothing more for them, and it has already reported all that it pushed.
        """
        work = self._context.work
        reported = {(applied.shard, applied.attempt) for applied in event.held}
        closed = [
            held
            for held in (work.held_by(event.process) if work else ())
            if held.stage is Stage.CLOSING
            and (held.piece.shard.id, held.piece.attempt) not in reported
        ]
        for held in closed:
            assert work is not None
            work.give_back(held)
        if closed:
            text = f"{amount(len(closed), 'revoked shard')} returned"
            self._context.orders.announce("shard", text, process=event.process)

    def tick(self) -> None:
        """Ask holders of revoked shards again: a push may be in progress, or the order was lost."""
        work, now_s = self._context.work, self._context.now_s
        holders = {
            held.worker
            for held in (work.held.values() if work else ())
            if held.stage is Stage.CLOSING
        }
        for worker in sorted(holders):
            if now_s - self._asked_s.get(worker, 0.0) >= _ASK_AGAIN_S:
                self._ask(worker)

    def _ask(self, worker: ProcessName) -> None:
        """Ask a worker what it still holds; it receives this order after the revocation."""
        self._asked_s[worker] = self._context.now_s
        self._context.orders.give(AskState(worker))
