"""Returns a synchronous job to a checkpoint as a whole after a server has lost its memory.

A step is applied by all servers or by none. A server that restores a checkpoint lacks its part of
the steps since, and nobody can make these again for one server. So the others restore the same
checkpoint, the ledger goes back to it, and the records since are trained again: no update is lost.

A server restores when it starts. So each of the others ends, and its next process is told to
restore whatever memory it finds. Until all have done so the job gives no lease and no turn.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.formatting import amount
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.saves import Saved
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.rollback import restore_ledger
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import ProcessAttached, StepApplied
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.process_ends import ProcessEnds
from elasticdl.master.core.processes.table import Process
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.shard import SnapshotId


@final
class RollingBack:
    """Decides when all servers return, and to which checkpoint."""

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        ends: ProcessEnds,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._ends = ends
        self._first: tuple[SnapshotId, str] | None = None
        """The first checkpoint, which is being written, and why all return to it then."""

    # events

    def attached(self, event: ProcessAttached) -> bool:
        """A server's process is there.

        False if it has no part in a return: it lacks nothing, the job does not train in steps, or
        no checkpoint is known that the ledger could return to.
        """
        if not self._possible():
            return False
        if (back := self._context.roll_back) is not None:
            self._attached_meanwhile(event, back)
            return True
        if event.kept or not event.name.incarnation:
            return False
        why = f"{event.name} came back without the memory of the process before"
        if (to := self._checkpointing.complete.newest_known()) is None:
            self._await_first(why)
            return False
        # It may have read one of undone steps before another of the same version replaced that.
        unsure = to.version in self._checkpointing.complete.undone
        has_it = event.restored_version == to.version and not unsure
        if has_it and self._nothing_since(to):
            # The others have this version, too. So it is after a server has left in order.
            self._return(to, "a parameter server lost its memory")
            return False
        self._begin(to, why, event.name if has_it else None)
        return True

    def _attached_meanwhile(self, event: ProcessAttached, back: RollBack) -> None:
        """A server that started after the return began was told to restore the checkpoint."""
        if not event.kept and event.restored_version == back.version:
            return
        text = f"{event.name} could not read the checkpoint of version {back.version}"
        older = self._checkpointing.complete.newest_known(before=back.version)
        if older is not None:
            self._begin(older, f"{text}: see its log")
            return
        # The other servers have ended, and their values come from steps that are undone.
        self._context.fail(
            f"{text}, and there is no earlier one that the job can return to",
            hint=back.hint,
        )

    def stepped(self, event: StepApplied) -> None:
        """Return if not all servers have a step, whatever memory the others have."""
        context = self._context
        account = context.updates
        torn = bool(event.servers) and not event.complete
        if not (torn or account.lacks(event)) or context.roll_back is not None:
            return
        if account.is_undone(event) or not self._possible():
            return
        why = f"a server ended while it applied step {event.number}"
        if (to := self._checkpointing.complete.newest_known()) is not None:
            self._begin(to, why)
        else:
            self._await_first(why)

    def saved(self, snapshot: SnapshotId) -> None:
        """Return to a complete checkpoint if a loss awaited it as the first."""
        if self._first is None or self._first[0] != snapshot or not self._possible():
            return
        if (to := self._checkpointing.complete.newest_known()) is not None:
            self._begin(to, self._first[1])

    def decide(self) -> None:
        """End the return when all servers have restored the checkpoint."""
        context, back = self._context, self._context.roll_back
        # Those that did not have it have ended, so all that are there have it.
        if back is None or context.servers_away():
            return
        context.roll_back = None
        # Servers from before the return may have reported later versions meanwhile.
        self._at(back.version)
        text = f"all servers have version {back.version} again: training continues"
        context.orders.announce("server", text, details={"version": back.version})

    # decisions

    def _possible(self) -> bool:
        context = self._context
        over = context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED)
        return context.spec.trains_in_steps and context.work is not None and not over

    def _await_first(self, why: str) -> None:
        """Return as soon as the checkpoint that is being written is complete.

        It was cut before the loss. It may never be complete: then what was lost counts.
        """
        saving = self._checkpointing.saving
        if saving is not None and (self._first is None or self._first[0] != saving.id):
            self._first = saving.id, why

    def _nothing_since(self, to: Saved) -> bool:
        return to.mark is not None and self._context.updates.steps == to.mark.steps

    def _begin(self, to: Saved, why: str, restored: ProcessName | None = None) -> None:
        """Return to a checkpoint, which the server `restored` has already."""
        context, self._first = self._context, None
        assert to.mark is not None
        context.roll_back = RollBack(to.version, to.path)
        assert context.work is not None
        # Workers may have trained more of their shards than they have reported.
        unreported = bool(context.work.held)
        repeated = self._return(to, why)
        context.work.repeated_at_least |= unreported
        for index in context.server_map.indices:
            server = context.processes.server(index)
            if server is not None and server.name != restored:
                # Also one that is starting: it may have been told to restore another one.
                self._restart(server, context.roll_back)
        context.updates.go_back(to.mark, self._first_incarnations())
        text = (
            f"{why}: all servers go back to {to.path}, version"
            f" {to.version}; at least {amount(repeated, 'record')} will be trained again"
        )
        details = {"repeated": repeated, "version": to.version}
        context.orders.announce("server", text, process=restored, level="warning", details=details)

    def _return(self, to: Saved, why: str) -> int:
        """Take back all that is leased, and the ledger to a checkpoint; return records to repeat.

        What a fence finds at servers that lost their memory says nothing about what the checkpoint
        has.
        """
        context = self._context
        for process in tuple(context.processes.workers()):
            self._leasing.revocation.revoke(process.name, "training goes back to a checkpoint")
        # It would have steps that are undone.
        self._checkpointing.fail_cut(why)
        # Its metrics describe weights that no longer exist.
        self._evaluation.abandon()
        names = reversed(context.processes.all)
        # Any of them: the newest has trained, or the checkpoint has no more than is known.
        worker = next(
            (name for name in names if name.role is Role.WORKER), ProcessName(Role.WORKER, 0)
        )
        repeated = restore_ledger(context, self._evaluation, to.ledger, worker)
        self._at(to.version)
        self._checkpointing.rolled_back(to.version)
        self._checkpointing.undo(to.version)
        self._evaluation.rolled_back(to.version)
        saving = self._checkpointing.saving
        if context.phase is Phase.CHECKPOINTING and (saving is None or saving.undone):
            self._checkpointing.begin_final()
        return repeated

    def _at(self, version: int) -> None:
        """Servers have that version from now on, and no higher one."""
        context = self._context
        context.version = context.acknowledged_version = version
        context.server_back_s = context.now_s

    def _restart(self, server: Process, back: RollBack) -> None:
        """End a server; its next process restores the checkpoint."""
        text = f"it goes back to the checkpoint of version {back.version} with the other servers"
        self._ends.restart(server, text)

    def _first_incarnations(self) -> dict[int, int]:
        """For each server, the first process whose steps count after the return."""
        processes = self._context.processes
        return {
            index: server.name.incarnation
            if (server := processes.server(index)) is not None
            else processes.next_incarnation(index)
            for index in self._context.server_map.indices
        }
