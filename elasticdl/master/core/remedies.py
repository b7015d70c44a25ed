"""Actions against a stall, and against a process that holds the others up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_choices import Action
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.pieces import HeldShard
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.obligation import LeaseKey
from elasticdl.master.core.phases import Phases
from elasticdl.master.core.processes.causes import Cause, Verdict
from elasticdl.master.core.processes.process_ends import ProcessEnds
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Process


@final
class Remedies:
    """`Stalls` takes each of these actions once per stall, `Stragglers` once per process."""

    def __init__(
        self,
        context: JobContext,
        coordination: Coordination,
        leasing: Leasing,
        scaling: Scaling,
        ends: ProcessEnds,
        phases: Phases,
    ) -> None:
        self._context = context
        self._coordination = coordination
        self._leasing = leasing
        self._scaling = scaling
        self._ends = ends
        self._phases = phases

    @property
    def can_form_again(self) -> bool:
        """Whether workers train together in generations."""
        return self._coordination.can_form_again

    def form_again(self) -> None:
        """Have the same workers form a new generation."""
        self._coordination.form_again("the job is stalled")

    def spare(self, processes: Sequence[Process]) -> Process:
        """The first process that can be replaced without loss, or else the first."""
        can = (process for process in processes if not self._scaling.why_not_replace(process.name))
        return next(can, processes[0])

    def replace(self, process: Process, verdict: Verdict) -> None:
        """Give a process up, for the cause in `verdict`, and start another in its place."""
        self._ends.give_up(process, verdict)

    def end(self, why: str) -> None:
        """End the job, after a last checkpoint if that would be exact."""
        self._phases.stalled(why, self._coordination.booked_all())

    def paced(self, debtors: Iterable[ProcessName]) -> bool:
        """Whether all debtors hold leases that are within their time limits.

        A worker beyond the limit is replaced anyway.
        """
        workers = [process for name in debtors if (process := self._context.worker(name))]
        limits = [(process, self._leasing.limits.limit_s(process)) for process in workers]
        return bool(workers) and all(
            limit_s is not None and self._context.now_s - process.busy_since_s <= limit_s
            for process, limit_s in limits
        )

    def reconcile(self, process: Process, reported: set[LeaseKey], asked_s: float) -> None:
        """Void leases on which worker and master disagree, so that they are leased again."""
        name, known = process.name, self._leasing.leased_to(process.name)
        missing = [
            (ledger, held)
            for ledger, held in known
            # The answer cannot know a lease that was granted after the question.
            if _key(held) not in reported and held.since_s < asked_s
        ]
        extra = self._coordination.unknown_leases(reported, {_key(held) for _, held in known})
        if missing:
            shards = ", ".join(str(held.piece.shard.id) for _, held in missing)
            self._say(f"{name} does not have its leased shard {shards}: leasing it again")
        if extra:
            shards = ", ".join(str(shard) for shard, _ in sorted(extra))
            self._say(
                f"{name} works on shard {shards}, which it does not hold: revoking its leases"
            )
        for ledger, held in missing:
            if ledger is self._context.work and self._context.spec.action is Action.TRAIN:
                # The worker may have trained part of it. Only the servers know, and they report it
                # when the worker is replaced.
                why = "it does not know a shard that it was leased"
                self.replace(process, Verdict(Cause.STALLED, why))
                return
            ledger.give_back(held)
        if extra:
            # Revoke the others, too: which part of the worker's work is valid is unknown. This
            # comes last, because it takes back shards as well.
            self._leasing.revocation.revoke(name, "the master does not know all of these leases")

    def _say(self, text: str) -> None:
        details = meaning(EventStep.FAILED)
        self._context.orders.announce("stall", text, level="warning", details=details)


def _key(held: HeldShard) -> LeaseKey:
    return held.piece.shard.id, held.piece.attempt
