"""Books the updates of the model from what workers, servers and the master's steps tell."""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import Role
from elasticdl.formatting import amount
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.events import (
    Event,
    ProcessAttached,
    ProcessEnded,
    ProgressReported,
    PushesReported,
    SnapshotCut,
    StepApplied,
    WorkerFenced,
)
from elasticdl.master.core.job_context import JobContext
from elasticdl.master.core.updates import UpdateMark


@final
class UpdateBooking:
    """Keeps the account of updates up to date with restarts of servers."""

    def __init__(self, context: JobContext, checkpointing: Checkpointing) -> None:
        self._context = context
        self._checkpointing = checkpointing

    def saw(self, event: Event) -> None:
        """Book what an event tells of updates. Call it before the event is handled."""
        account = self._context.updates
        match event:
            case ProgressReported():
                account.reported(event, {})
            case PushesReported():
                self._pushed(event)
            case StepApplied():
                account.stepped(event, undone=self._context.roll_back is not None)
            case ProcessEnded() if event.name.role is Role.WORKER:
                self._checkpointing.worker_ended()
            case WorkerFenced() if not self._context.spec.trains_in_steps:
                # In synchronous training only steps are updates.
                account.fenced(event, self._context.server_map.indices)
            case _:
                pass

    def _pushed(self, event: PushesReported) -> None:
        """Book a worker's pushes, and which servers it has met."""
        if event.crowded:
            self._checkpointing.crowded()
        account = self._context.updates
        if not event.met:
            return account.reported(event, {})
        names = {server.bulk_address: server.name for server in self._context.processes.servers}
        met = {names[at]: last for at, last in event.met.items() if at in names}
        before = account.lost_of(event.worker)
        account.reported(event, met)
        if (lost := account.lost_of(event.worker) - before) > 0:
            servers = " and ".join(str(server) for server, last in met.items() if last)
            text = (
                f"{servers} lost {amount(lost, 'update')} of {event.worker}, which has not kept"
                " them"
            )
            self._context.orders.announce("server", text, process=event.worker, level="warning")

    def mark(self, event: SnapshotCut) -> UpdateMark:
        """The updates in a cut."""
        if self._context.spec.trains_in_steps:
            return self._context.updates.mark_of_steps()
        moves = self._context.updates.moves
        return UpdateMark(event.sequences, 0, event.reached, event.behind, moves)

    def back(self, event: ProcessAttached) -> None:
        """A server's next process is there."""
        # What a server says of its own memory counts, whatever workers have reported by now.
        if event.kept:
            text = (
                f"{event.name} has the memory of the process before, of version"
                f" {event.restored_version}: no update of its part was lost"
            )
            self._context.orders.announce("server", text, process=event.name)
        else:
            self._restored(event)
        self._context.server_back_s = event.at_s

    def _restored(self, event: ProcessAttached) -> None:
        """Count what a server lacks that has restored a checkpoint, or nothing."""
        context, restored = self._context, event.restored_version or 0
        known = max(context.version, context.acknowledged_version)
        # Acknowledgements of lost updates no longer hold.
        context.acknowledged_version = min(context.acknowledged_version, restored)
        mark = self._checkpointing.mark_of(restored)
        again = restored > 0 and context.spec.keeps_pushes
        before = context.lost_updates()
        context.updates.restored(event.name, mark, event.at_s, again=again)
        lost = context.lost_updates() - before
        if not again:
            # Workers may not have reported their last pushes yet, and a heartbeat may be newer.
            lost = max(lost, known - restored)
        saved = self._checkpointing.complete.saved
        unread, newest = "", max((checkpoint.version for checkpoint in saved), default=0)
        if restored < newest:
            unread = f"; it could not read the checkpoint of version {newest}: see its log"
        text, details, level = f"{event.name} restored version {restored}", {}, "info"
        if lost > 0:
            text += f" and lost at least {amount(lost, 'update')} of its part{unread}"
            details, level = {"updates_lost": lost}, "warning"
        elif known > restored:
            text += f"; workers push again what came after it{unread}"
            level = "warning" if unread else "info"
        elif event.restored_version is None:
            return
        else:
            # What it acknowledged after the checkpoint may not be reported yet.
            text += ": no update of its part was lost, as far as is known"
        context.orders.announce("server", text, process=event.name, level=level, details=details)
