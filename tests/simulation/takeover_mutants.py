"""Defects of what a master does when it takes a job over.

Some lines of a takeover only save time: without them a deadline or a retry does the same later.
They are not here.
"""

from __future__ import annotations

from tests.simulation.mutant import RING, SERVERS, STEPS, Mutant

TAKEOVER_MUTANTS = (
    Mutant(
        "leases that never arrived stay with their worker",
        SERVERS,
        "master.core.takeover:Takeover._take_back",
        "ledger.give_back(held)",
        "pass",
    ),
    Mutant(
        "leases in hand are leased to others after a takeover",
        SERVERS,
        "master.core.takeover:Takeover._take_back",
        " and lease not in received",
        "",
    ),
    Mutant(
        "a summary that never arrived stays with its worker",
        "both",
        "master.core.takeover:Takeover._take_back",
        "current.summary.release(name)",
        "pass",
    ),
    Mutant(
        "an export that never arrived stays with its worker",
        "both",
        "master.core.takeover:Takeover._take_back",
        "export.task.release(name)",
        "pass",
    ),
    Mutant(
        "revocations are counted from 0 by another master",
        SERVERS,
        "master.gateway.lease_polls:LeasePolls.restore",
        "max(revocation, self._eras.get(worker, 0))",
        "0",
    ),
    Mutant(
        "starts are not ordered again",
        "both",
        "master.core.processes.scaling:Scaling.order_again",
        "self.order(process, max(0.0, process.ordered_s - now_s))",
        "pass",
    ),
    Mutant(
        "fences are not asked for again",
        SERVERS,
        "master.core.data.lease_reconciliation:LeaseReconciliation.order_again",
        "self._context.orders.give(FenceWorker(worker))",
        "settling.asked_s = 1e9",
    ),
    Mutant(
        "another master does not know who was fenced",
        SERVERS,
        "master.executor.fencing:Fences.restore",
        "self._fenced.update(dict.fromkeys(workers))",
        "pass",
    ),
    Mutant(
        "servers are not published again",
        SERVERS,
        "master.core.processes.process_lifecycle:ProcessLifecycle.taken_over",
        "self._published = None",
        "pass",
    ),
    Mutant(
        "a cut of an earlier master is waited for",
        SERVERS,
        "master.core.ps.coordination:PsCoordination.taken_over",
        "if renamed := self._snapshots.take_again():",
        "if renamed := None:",
    ),
    Mutant(
        "a cut that is made again is not expected",
        SERVERS,
        "master.core.ps.coordination:PsCoordination.taken_over",
        "self._checkpointing.recut(*renamed)",
        "pass",
    ),
    Mutant(
        "a round does not know that its view is cut again",
        SERVERS,
        "master.core.ps.coordination:PsCoordination.taken_over",
        "self._evaluation.recut(*renamed)",
        "pass",
    ),
    Mutant(
        "saves are not ordered again",
        "both",
        "master.core.checkpoint.checkpointing:Checkpointing.save_again",
        "if self.saving is not None:",
        "if False:",
    ),
    Mutant(
        "all views are released at a takeover",
        SERVERS,
        "master.core.ps.coordination:PsCoordination.taken_over",
        "tuple(snapshot for snapshot in wanted if snapshot is not None)",
        "()",
    ),
    Mutant(
        "a copy is taken for that of another order",
        RING,
        "master.executor.ring_coordinator:RingCoordinator.saved",
        "(waiting.holder, waiting.directory) != (worker, saved.directory)",
        "waiting.holder != worker",
    ),
    Mutant(
        "an ended job is not finished by another master",
        "both",
        "master.core.takeover:Takeover.begin",
        "if context.phase is Phase.ENDED and context.outcome is not None:",
        "if False:",
    ),
    Mutant(
        "processes of an earlier master are strangers",
        "both",
        "master.gateway.process_gateway:ProcessGateway.restore",
        "self.sessions.restore(process, presence.version)",
        "pass",
    ),
    Mutant(
        "servers of an earlier master cannot be reached",
        SERVERS,
        "master.gateway.process_gateway:ProcessGateway.restore",
        "self._registry.attach(process.name, process.control_address)",
        "pass",
    ),
    Mutant(
        "leases are not in the journal",
        SERVERS,
        "master.journal.rules:worth_keeping",
        "return not all(isinstance(command, NoLeaseNow) for command in commands)",
        "return False",
    ),
    Mutant(
        "a last step is not completed on all servers",
        STEPS,
        "master.gateway.step_turns:StepTurns._recover",
        "self._apply_by(self._registry.holder(index), newest, named) for index in behind",
        "asyncio.sleep(0) for one in behind",
    ),
    Mutant(
        "steps begin again with number 1",
        STEPS,
        "master.core.ps.steps:Steps.continue_after",
        "self.step = step + 1",
        "self.step = 1",
    ),
    Mutant(
        "pushes of an open step count as applied",
        STEPS,
        "master.gateway.step_turns:StepTurns._settle_earlier",
        "dropped = [sequence for sequence, all_or_some in on.items() if not all(all_or_some)]",
        "dropped = []",
    ),
    Mutant(
        "pushes of an applied step count as dropped",
        STEPS,
        "master.gateway.step_turns:StepTurns._settle_earlier",
        "dropped = [sequence for sequence, all_or_some in on.items() if not all(all_or_some)]",
        "dropped = list(unsettled)",
    ),
    Mutant(
        "leases of dropped pushes are kept after a takeover",
        STEPS,
        "master.gateway.step_turns:StepTurns._settle_earlier",
        "if dropped:",
        "if False:",
    ),
    Mutant(
        "turns are given while the last step is looked for",
        STEPS,
        "master.gateway.step_turns:StepTurns.recover",
        "self._recovered.clear()",
        "pass",
    ),
    Mutant(
        "an image lacks the order of shards",
        SERVERS,
        "master.core.data.ledger:Ledger.derive",
        "self._order = self.plan.order(self.epoch) if self.counts else ()",
        "pass",
    ),
)
