"""Decides on exports: by --export-seconds while the job trains, and at the end of the job.

One worker makes an export. While the job trains it reads a frozen view, and the others train on. An
export that fails then is announced, and the next one is tried when it is due. Only the last one
ends the job if it fails.
"""

from __future__ import annotations

from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.master.core.checkpoint.snapshots import Snapshots, retry_s
from elasticdl.master.core.commands import DropSnapshot, Purpose
from elasticdl.master.core.data.singleton_tasks import Export
from elasticdl.master.core.events import ExportFinished, TaskFailed
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.shard import Lease, SnapshotId, Task

_MOST_DOUBLINGS = 10


@final
class Exporting:
    """Decides on exports, one at a time: the open one is `JobContext.export`."""

    def __init__(self, context: JobContext, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots
        self._exported_version = 0
        """The version of the newest export; at first, that which the job began with."""
        self._over_s = 0.0
        """When the newest export was over; at first, when the job began."""
        self._lost_views = 0
        """Views that were lost or not cut since an export was over."""
        self._retry_at_s = 0.0
        self._given_up = 0
        """Exports in a row that failed with each of their workers."""
        self._problem = ""
        """Why the newest export could not be written."""

    def start(self, version: int, exported: int) -> None:
        """Count versions, seconds and folders from here."""
        self._exported_version, self._over_s = version, self._context.now_s
        self._context.next_export = exported + 1

    # when

    def decide(self) -> None:
        """Order a frozen view for an export if one is due and possible."""
        context = self._context
        if not self._due() or context.servers_away() or self._snapshots.open_cut is not None:
            return
        snapshot = self._snapshots.take(Purpose.EXPORT)
        self._open(final=False, snapshot=snapshot)

    def _due(self) -> bool:
        # Computed each time: a Tick must not leave a wish behind, since it is not journaled.
        context, seconds = self._context, self._context.spec.checkpoint.export_seconds
        return (
            seconds > 0
            and context.export is None
            and context.phase is Phase.WORKING
            and context.outcome is None
            and context.work is not None
            and not context.work.finished
            # A restored server lowers the version: these weights are other ones, too.
            and context.version != self._exported_version
            and context.now_s >= max(self._over_s + self._pause_s, self._retry_at_s)
        )

    @property
    def _pause_s(self) -> float:
        """Each failure of the user's code ends workers: after one the next export is later."""
        seconds = self._context.spec.checkpoint.export_seconds
        return seconds * float(1 << min(self._given_up, _MOST_DOUBLINGS))

    def begin_final(self) -> None:
        """Open the export of the weights at the end of the work, which no longer change."""
        self._open(final=True, snapshot=None)

    def _open(self, *, final: bool, snapshot: SnapshotId | None) -> None:
        context, number = self._context, None
        if context.spec.checkpoint.export_seconds:
            # Each view has a number of its own, so that a folder has one content only, whoever
            # writes it and however late.
            number = context.next_export
            context.next_export += 1
        context.export = Export(
            final=final,
            number=number,
            since_s=context.now_s,
            version=context.version,
            snapshot=snapshot,
            cutting=snapshot is not None,
        )

    # the view

    @property
    def view(self) -> SnapshotId | None:
        """The frozen view that the open export reads."""
        export = self._context.export
        return None if export is None or export.cutting else export.snapshot

    def recut(self, old: SnapshotId, new: SnapshotId) -> None:
        """Expect another snapshot in the place of one that was ordered by an earlier master."""
        export = self._context.export
        if export is not None and export.snapshot == old:
            export.snapshot = new

    def cut(self, snapshot: SnapshotId, version: int) -> None:
        """Offer the export to workers: its frozen view exists."""
        export = self._context.export
        if export is None or export.snapshot != snapshot:
            self._snapshots.drop_late(snapshot)
            return
        export.cutting, export.version = False, version

    def failed_cut(self, snapshot: SnapshotId, reason: str) -> None:
        """Close the open export, which got no frozen view, and try again later."""
        export = self._context.export
        if export is not None and export.snapshot == snapshot:
            self._lost_view(reason)

    def server_lost(self, name: ProcessName) -> list[ProcessName]:
        """Close the open export if its view was lost with a server; return who makes it."""
        export = self._context.export
        # The server may have made its part of a cut that is not answered yet.
        if export is None or export.snapshot is None:
            return []
        self._lost_view(f"the frozen view was lost with {name}")
        return [export.task.holder] if export.task.holder is not None else []

    def _lost_view(self, reason: str) -> None:
        self._close()
        self._lost_views += 1
        pause_s = retry_s(self._lost_views)
        self._retry_at_s = self._context.now_s + pause_s
        self._context.orders.announce(
            "export", f"export failed: {reason}; retrying in {pause_s:.0f} s", level="warning"
        )

    # work

    def lease(self, worker: ProcessName) -> Lease | None:
        """A lease of the open export, if nobody has it."""
        export = self._context.export
        if export is None or export.cutting or export.task.holder is not None:
            return None
        export.task.holder = worker
        return Lease(
            Task.EXPORT,
            None,
            export.task.attempt,
            round=export.number,
            snapshot=export.snapshot,
            version=export.version if export.snapshot is not None else self._context.version,
        )

    def holds(self, worker: ProcessName) -> bool:
        """Whether this worker makes the open export."""
        export = self._context.export
        return export is not None and export.task.holder == worker

    def finished(self, event: ExportFinished) -> None:
        """Close the open export if its holder reports it."""
        export = self._context.export
        if export is None or export.task.holder != event.worker or not export.is_at(event.path):
            self._context.drop(DropCause.LATE_EXPORT, event.worker, event)
            return
        if event.problem:
            self._not_written(event)
            return
        seconds = self._context.now_s - export.since_s
        details = meaning(EventStep.ENDED, version=export.version, seconds=seconds)
        self._context.orders.announce(
            "export", f"exported: {event.path}", process=event.worker, details=details
        )
        self._exported_version, self._problem, self._given_up = export.version, "", 0
        export.task.done = True
        if not export.final:
            self._close()
            self._over()

    def _not_written(self, event: ExportFinished) -> None:
        # A full disk fails every export with the same words; announce them once.
        if event.problem != self._problem:
            self._context.orders.announce(
                "export",
                f"cannot export to {event.path}: {event.problem}; the next export is tried when it"
                " is due",
                process=event.worker,
                level="warning",
            )
        self._problem = event.problem
        self._close()
        self._over()

    # what goes wrong

    def failed(self, event: TaskFailed) -> None:
        """Take the export back from a worker whose user code raised in it."""
        if event.task is Task.EXPORT:
            self._release(event.worker, event.error)

    def lost(self, worker: ProcessName, blame: str) -> bool:
        """Take the export back from a lost worker. True if `blame` was counted against it."""
        blamed = bool(blame) and self.holds(worker)
        self._release(worker, blame)
        return blamed

    def _release(self, worker: ProcessName, reason: str) -> None:
        export = self._context.export
        if export is None or not export.task.release(worker, reason):
            return
        text = f"the export failed {len(export.task.failures)} times:\n{export.task.story()}"
        if export.final:
            self._context.fail(text)
            return
        self._given_up += 1
        self._context.orders.announce(
            "export", f"{text}\nthe next export is tried in {self._pause_s:.0f} s", level="error"
        )
        self._close()
        self._over()

    def abandon(self) -> None:
        """Give up the open export, because the job is stopped or its weights are lost."""
        if self._context.export is not None:
            self._close()

    def awaited(self) -> bool:
        """At the end of training: whether a worker makes an export; one that nobody has is given
        up.
        """
        export = self._context.export
        if export is not None and export.task.holder is None:
            self._close()
        return self._context.export is not None

    def _close(self) -> None:
        # Of a cut that is not answered yet, the view is dropped when it is.
        if self.view is not None:
            self._context.orders.give(DropSnapshot(self.view))
        self._context.export = None

    def _over(self) -> None:
        self._over_s, self._lost_views = self._context.now_s, 0
