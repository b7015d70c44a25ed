"""Orders frozen views of the parameters.

Only one cut is made at a time, because a cut delays every push for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.dropped import DropCause
from elasticdl.master.core.commands import DropSnapshot, Purpose, TakeSnapshot
from elasticdl.master.core.job_context import JobContext
from elasticdl.shard import SnapshotId

_RETRY_S = 5.0
_LONGEST_RETRY_S = 60.0


def retry_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(_LONGEST_RETRY_S, _RETRY_S * 2.0 ** max(0, failures - 1))


@dataclass(frozen=True, slots=True)
class OpenCut:
    """A cut that was ordered and not yet answered."""

    id: SnapshotId
    purpose: Purpose
    since_s: float


@final
class Snapshots:
    """Orders cuts and tracks the open one."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._next = 0
        self.open_cut: OpenCut | None = None

    def take(self, purpose: Purpose, *, seal: bool = False) -> SnapshotId:
        """Order a cut of the servers; see `TakeSnapshot`. Only while `open_cut` is None."""
        snapshot = self.expect(purpose)
        self._context.orders.give(TakeSnapshot(snapshot, purpose, seal))
        return snapshot

    def expect(self, purpose: Purpose) -> SnapshotId:
        """Expect a cut that a ring makes at a barrier. Only while `open_cut` is None."""
        # Ids are never reused, so a late answer cannot match a newer cut.
        snapshot = SnapshotId(self._next)
        self._next += 1
        self.open_cut = OpenCut(snapshot, purpose, self._context.now_s)
        return snapshot

    def take_again(self) -> tuple[SnapshotId, SnapshotId] | None:
        """Order the open cut again, as another snapshot. Returns the old and the new id.

        The answer to the old order would go to a master that is gone.
        """
        if self.open_cut is None:
            return None
        old = self.open_cut
        self.open_cut = None
        return old.id, self.take(old.purpose)

    def drop_late(self, snapshot: SnapshotId) -> None:
        """Have the servers drop a view that nobody waits for any longer."""
        self._context.drop(DropCause.LATE_SNAPSHOT, None, snapshot)
        self._context.orders.give(DropSnapshot(snapshot))

    def answered(self, snapshot: SnapshotId) -> Purpose | None:
        """Close the open cut and return its purpose; None if another or no cut is open."""
        if self.open_cut is None or self.open_cut.id != snapshot:
            return None
        purpose, self.open_cut = self.open_cut.purpose, None
        return purpose
