"""Backup leases: idle workers get the last shards of a slow one.

While all shards are leased and some workers are idle, the job ends with the slowest holder. Its
leases are revoked as any others: it gives the unread rest back, which is then leased again with
`attempt + 1`. Who trains a record is decided by the attempt, so none counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.formatting import amount
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard, Stage
from elasticdl.master.core.evaluation.round import Stage as RoundStage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import Life, Process

_GAIN_S, _GAIN_SHARE = 5.0, 0.25
"""What a backup lease must save: of time, and of the holder's time that is left."""
_HANDOVER_S = 3.0
"""From the order to the first record of the next worker, beside the batch in progress."""
_MOST = 3
"""Times that one worker loses its leases."""


@dataclass(frozen=True, slots=True)
class _Late:
    """A holder: how long it needs for its shards, and how long they take if others help."""

    process: Process
    shards: list[HeldShard]
    left_s: float
    after_s: float

    @property
    def gain_s(self) -> float:
        return self.left_s - self.after_s


@final
class BackupLeases:
    """Looks for a holder at each tick, one at a time."""

    def __init__(self, context: JobContext, leasing: Leasing, evaluation: Evaluation) -> None:
        self._context = context
        self._leasing = leasing
        self._evaluation = evaluation

    def tick(self) -> None:
        """Revoke the leases of the slowest holder if idle workers are much faster."""
        ledger = self._ledger()
        if ledger is None or self._context.spec.trains_on_ring:
            return
        idle = self._idle()
        if not idle or any(held.stage is not Stage.LEASED for held in ledger.held.values()):
            return
        late = [holder for holder in self._holders(ledger, idle) if self._is_worth(holder)]
        if late:
            self._lease_again(ledger, max(late, key=lambda holder: holder.gain_s))

    def _ledger(self) -> Ledger | None:
        """The ledger whose last shards are leased, if any."""
        work, current = self._context.work, self._evaluation.round
        if current is not None and current.stage is RoundStage.LEASING:
            # Workers without evaluation shards train on meanwhile, unless it is the last round.
            ledger = current.ledger if self._context.phase is not Phase.WORKING else None
        else:
            ledger = work if self._context.phase is Phase.WORKING else None
        return ledger if ledger and not ledger.available and not ledger.epochs_left else None

    def _idle(self) -> int:
        """How many workers that are not slow have nothing to do."""
        workers = self._context.processes.live_workers()
        return sum(
            worker.up and not worker.slow_times and not self._leasing.leases_of(worker.name)
            for worker in workers
        )

    def _holders(self, ledger: Ledger, idle: int) -> list[_Late]:
        by_worker: dict[ProcessName, list[HeldShard]] = {}
        for held in ledger.held.values():
            by_worker.setdefault(held.worker, []).append(held)
        usual_s = self._leasing.paces.usual(ledger.task, self._leasing.healthy_workers())
        late_holders = []
        for name, shards in by_worker.items():
            process = self._context.worker(name)
            if process is None or process.life is not Life.READY or usual_s is None:
                continue
            if process.backups < _MOST and (
                late := self._late(ledger, process, shards, usual_s, idle)
            ):
                late_holders.append(late)
        return late_holders

    def _late(
        self, ledger: Ledger, process: Process, shards: list[HeldShard], usual_s: float, idle: int
    ) -> _Late | None:
        known_s = self._leasing.paces.of(process.name, ledger.task)
        pace_s = known_s or process.slow_times * usual_s
        if not pace_s:
            return None  # It has just begun.
        rests = [held.piece.shard.records - held.offset for held in shards]
        left_s = pace_s * sum(rests)
        if not ledger.keeps_progress:
            # It reports nothing before the end of a shard, and the next worker starts over.
            left_s -= self._context.now_s - max(shards[0].since_s, process.busy_since_s)
        if process.slow_times:
            # It gets none of them again: see `Leasing`.
            after_s = usual_s * max(max(rests), sum(rests) / idle)
        else:
            after_s = pace_s * max(rests) if len(rests) > 1 else left_s
        batch_s = pace_s * self._context.spec.data.minibatch_size if ledger.keeps_progress else 0.0
        return _Late(process, shards, left_s, after_s + batch_s + _HANDOVER_S)

    def _is_worth(self, late: _Late) -> bool:
        return late.gain_s > max(_GAIN_S, _GAIN_SHARE * late.left_s)

    def _lease_again(self, ledger: Ledger, late: _Late) -> None:
        process, shards = late.process, late.shards
        process.backups += 1
        rest = sum(held.piece.shard.records - held.offset for held in shards)
        text = (
            f"idle workers get {amount(len(shards), f'{ledger.task} shard')} of"
            f" {process.name}: it needs about {late.left_s:.0f} s for the last"
            f" {amount(rest, 'record')}, with their help {late.after_s:.0f} s"
        )
        details = {"saved_s": round(late.gain_s, 3), "shards": len(shards), "records": rest}
        self._context.orders.announce(
            "straggler", text, process=process.name, level="warning", details=details
        )
        self._leasing.revocation.revoke(process.name, "idle workers get its shards")
