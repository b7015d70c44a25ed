"""Why a message between processes is dropped: it says nothing that still counts, and changes
nothing.

Every drop is counted by its cause: in the journal, in the job's status and in `/metrics`. What the
platform observes of processes
is not counted: it says what is, as often as it likes. Nor is what its sender is answered with an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

GAUGE_PREFIX = "dropped_"
"""Of gauges that tell how many messages a process itself has dropped since it began, by cause."""


class DropCause(StrEnum):
    """A closed set.

    Those in `WRONG` are never the cause of a drop in a job whose processes are correct.
    """

    VOIDED_LEASE = "voided_lease"
    """Of a lease that ended, was revoked or was given back before."""
    ENDED_PROCESS = "ended_process"
    """Of a process that has ended or was given up."""
    REPEATED_REPORT = "repeated_report"
    """It was said before: a report whose reply was lost, or progress that a new generation of the
    ring begins with.
    """
    REPEATED_PUSH = "repeated_push"
    """A server has it already: the reply to the first one was lost."""
    LATE_SUMMARY = "late_summary"
    """Of a round of evaluation that is over, or that another worker sums up."""
    LATE_EXPORT = "late_export"
    """Another worker is to export, or nobody any more."""
    LATE_SNAPSHOT = "late_snapshot"
    """A view, or a copy on disk, that nobody waits for any more."""
    LATE_SETTLEMENT = "late_settlement"
    """What servers have of a worker whose work is settled."""
    STALE_GENERATION = "stale_generation"
    """Of the ring: there is a newer one, or it was told before."""

    UNKNOWN_LEASE = "unknown_lease"
    """Of a lease that its sender never had."""
    OTHER_TASK = "other_task"
    """Of a lease that is for something else."""
    BEYOND_LEASE = "beyond_lease"
    """More records than were handed out."""
    BACKWARD = "backward"
    """Fewer records than its sender told before."""
    UNKNOWN_GENERATION = "unknown_generation"
    """Of the ring: the master never published it."""


WRONG = frozenset(
    {
        DropCause.UNKNOWN_LEASE,
        DropCause.OTHER_TASK,
        DropCause.BEYOND_LEASE,
        DropCause.BACKWARD,
        DropCause.UNKNOWN_GENERATION,
    }
)
"""Each tells of a defect: the master says so once, and goes on without what was told."""

_OF_SERVERS = {"repeated_pushes": DropCause.REPEATED_PUSH}
_MOST = 1 << 53
"""Beyond that floats do not count."""


def told_by(gauges: Mapping[str, float]) -> dict[DropCause, int]:
    """How many messages a process has dropped since it began, as its gauges tell; names that are
    none are passed over.
    """
    names = [(f"{GAUGE_PREFIX}{cause}", cause) for cause in DropCause] + list(_OF_SERVERS.items())
    found: dict[DropCause, int] = {}
    for name, cause in names:
        count = gauges.get(name, 0.0)
        if 1 <= count <= _MOST:
            found[cause] = found.get(cause, 0) + int(count)
    return found
