"""Causes of dropped messages: messages between processes that are obsolete and change nothing.

Every drop is counted by its cause, in the journal, in the job's status and in `/metrics`. Not
counted are the platform's observations of processes, which may repeat, and messages that the
receiver answers with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

GAUGE_PREFIX = "dropped_"
"""Prefix of the gauges that count the messages a process itself has dropped, by cause."""


class DropCause(StrEnum):
    """A closed set of causes.

    Those in `WRONG` never occur in a job whose processes are correct.
    """

    VOIDED_LEASE = "voided_lease"
    """About a lease that had ended, was revoked or was given back."""
    ENDED_PROCESS = "ended_process"
    """From a process that has ended or was given up."""
    REPEATED_REPORT = "repeated_report"
    """A repetition: its reply was lost, or a new ring generation starts with it."""
    REPEATED_PUSH = "repeated_push"
    """The server has it already: the reply to the first push was lost."""
    LATE_SUMMARY = "late_summary"
    """About an evaluation round that is over, or that another worker summarises."""
    LATE_EXPORT = "late_export"
    """Another worker exports now, or none does."""
    LATE_SNAPSHOT = "late_snapshot"
    """A view, or a copy on disk, that is no longer needed."""
    LATE_SETTLEMENT = "late_settlement"
    """The servers' account of a worker that is already reconciled."""
    STALE_GENERATION = "stale_generation"
    """About an old generation of the ring, or reported before."""

    UNKNOWN_LEASE = "unknown_lease"
    """About a lease that its sender never had."""
    OTHER_TASK = "other_task"
    """About a lease of another task."""
    BEYOND_LEASE = "beyond_lease"
    """More records than the lease has."""
    BACKWARD = "backward"
    """Fewer records than its sender reported before."""
    UNKNOWN_GENERATION = "unknown_generation"
    """About a ring generation that the master never published."""


WRONG = frozenset(
    {
        DropCause.UNKNOWN_LEASE,
        DropCause.OTHER_TASK,
        DropCause.BEYOND_LEASE,
        DropCause.BACKWARD,
        DropCause.UNKNOWN_GENERATION,
    }
)
"""Causes that reveal a defect; the master logs each once and ignores the message."""

_COUNTERS = (
    *((f"{GAUGE_PREFIX}{cause}", cause) for cause in DropCause),
    ("repeated_pushes", DropCause.REPEATED_PUSH),
)
"""Gauges with counts, and their causes; the last is a server's."""
_NAMES = frozenset(name for name, _ in _COUNTERS)
_MOST = 1 << 53
"""Floats are exact up to this value."""


def drops_in(gauges: Mapping[str, float]) -> dict[DropCause, int]:
    """Messages that a process has dropped since it began, from its gauges.

    Other gauges are ignored.
    """
    counts: dict[DropCause, int] = {}
    if gauges.keys().isdisjoint(_NAMES):
        return counts
    for name, cause in _COUNTERS:
        count = gauges.get(name, 0.0)
        if 1 <= count <= _MOST:
            counts[cause] = counts.get(cause, 0) + int(count)
    return counts
