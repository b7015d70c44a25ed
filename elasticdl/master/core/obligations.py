"""What the job waits for, who must deliver it, since when, and what is missing.

This module only reads. Every working phase owes at least one thing, so a job that stands still can
always say what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import Snapshots
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.lease_obligations import lease_obligations
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.evaluation.round import Round
from elasticdl.master.core.evaluation.round import Stage as RoundStage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import Obligation, booked, since


@final
class Obligations:
    """Lists what the job waits for.

    A list may read all workers, so it is made only when the job is quiet or somebody looks at it.
    """

    def __init__(
        self,
        context: JobContext,
        coordination: Coordination,
        leasing: Leasing,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        snapshots: Snapshots,
    ) -> None:
        self._context = context
        self._coordination = coordination
        self._leasing = leasing
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._snapshots = snapshots

    def now(self) -> list[Obligation]:
        """All obligations, the most important first.

        Empty before the work begins and when the job ends.
        """
        match self._context.phase:
            case Phase.STARTING:
                return [Obligation("the preflight", (), self._context.phase_since_s, limited=True)]
            case Phase.ENDING | Phase.ENDED:
                return []
            case _:
                # Never empty: a stall without an obligation would never be announced.
                return list(self._owed()) or [self._unexplained()]

    def _owed(self) -> Iterator[Obligation]:
        context = self._context
        if away := context.servers_away():
            names = [
                server.name
                for index in context.processes.away(context.server_map.indices)
                if (server := context.processes.server(index))
            ]
            # Nothing else can move without the servers, so they are the only obligation.
            # A move of the parameters has a limit of its own.
            yield Obligation(
                f"parameter servers: {away}",
                tuple(names),
                since(context, names),
                limited=bool(context.moving) and not names,
            )
            return
        yield from self._coordination.owed()
        if self._evaluation.round is not None:
            yield from self._round(self._evaluation.round)
        yield from self._checkpoint()
        yield from self._export()
        yield from self._nobody()

    def _nobody(self) -> Iterator[Obligation]:
        """Say that no worker is ready to do the work."""
        if self._context.phase in (Phase.DRAINING, Phase.CHECKPOINTING):
            return
        workers = self._context.processes.live_workers()
        if not any(process.up for process in workers):
            names = [process.name for process in workers]
            yield Obligation("a ready worker", tuple(names), since(self._context, names))

    # evaluation, checkpoints, export

    def _round(self, current: Round) -> Iterator[Obligation]:
        match current.stage:
            case RoundStage.CUTTING:
                what = f"the frozen view of evaluation round {current.number}"
                yield Obligation(what, self._context.server_names(), current.since_s)
            case RoundStage.LEASING:
                yield from lease_obligations(self._context, self._leasing, current.ledger)
            case RoundStage.SUMMARISING:
                holder = current.summary.holder or self._evaluation.summary_waits_for()
                owe = (holder,) if holder else self._takers()
                what = f"the summary of evaluation round {current.number}"
                held = "" if current.summary.holder else "no worker has taken it"
                yield Obligation(what, owe, current.added_up_s, held)

    def _checkpoint(self) -> Iterator[Obligation]:
        saving, open_cut = self._checkpointing.saving, self._snapshots.open_cut
        if saving is not None:
            what = f"the checkpoint of version {saving.version} to be written"
            who = self._coordination.weight_holders()
            yield Obligation(what, who, saving.since_s, limited=True)
        elif self._checkpointing.under_way and open_cut is not None:
            yield self._coordination.owed_cut(open_cut)
        elif self._context.phase is Phase.CHECKPOINTING:
            yield self._coordination.owed_cut(None)

    def _export(self) -> Iterator[Obligation]:
        export = self._context.export
        if export is None or (export.task.holder is None and not export.final):
            # While the job trains, nothing waits for an export that nobody has.
            return
        held = (export.task.holder,) if export.task.holder else self._takers()
        numbers = "" if export.task.holder else "no worker has taken it"
        yield Obligation("the export of the model", held, export.since_s, numbers)

    def _takers(self) -> tuple[ProcessName, ...]:
        """Workers that may take a task that nobody has; busy ones only if none is idle."""
        up = (process.name for process in self._context.processes.live_workers() if process.up)
        return tuple(self._leasing.idle_workers()) or tuple(up)

    def _unexplained(self) -> Obligation:
        """Report a wait that the books do not explain; workers that are up may know more."""
        context = self._context
        up = [process.name for process in context.processes.live_workers() if process.up]
        what = f"an unknown cause while the job is {context.phase}"
        return Obligation(
            what, tuple(up), context.phase_since_s, booked(context.work) if context.work else ""
        )
