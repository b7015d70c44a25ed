"""A checkpoint that is being written, and one that is complete."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.master.core.updates import UpdateMark
from elasticdl.shard import SnapshotId


@dataclass(frozen=True, slots=True)
class Saving:
    """A view that is being written."""

    id: SnapshotId
    version: int
    since_s: float
    delayed_since_s: float
    """Since when it has delayed the job."""
    final: bool
    ledger: str
    mark: UpdateMark
    paced: bool = False
    """Whether servers pause while they write it."""
    undone: bool = False
    """Whether the job has returned to an earlier checkpoint since the cut."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint."""

    version: int
    path: str
    bytes: int
    at_s: float
    ledger: str = ""
    """A job that lost its weights returns to this ledger.

    Only the newest checkpoint has it, with synchronous steps also some before it.
    """
    mark: UpdateMark | None = None
    """The updates in it; None if an earlier master ordered it and gave it up."""
