"""Snapshots: views of the servers for checkpoints, evaluations and exports."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.master.core.events.base import Event
from elasticdl.shard import Applied, SnapshotId


@dataclass(frozen=True, slots=True)
class SnapshotCut(Event):
    """All servers hold one consistent frozen view.

    `applied` is each worker's last push within the cut, `sequences` its number. `reached`: the
    number of its last push on any server, also where a server that lost its memory never saw it.
    `behind` has, by index, the servers that lack some of these pushes, with what they have instead.
    """

    snapshot: SnapshotId
    version: int
    applied: dict[str, Applied]
    sequences: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    behind: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotSaved(Event):
    """A checkpoint is complete on disk, including its manifest."""

    snapshot: SnapshotId
    version: int
    path: str
    bytes: int
    not_copied: str = ""
    """Why there is no copy in --checkpoint-dir; '' if there is, or if none is wanted."""
    paused_s: float = 0.0
    """Of the time it took, each server paused for as long as this or longer."""


@dataclass(frozen=True, slots=True)
class SnapshotFailed(Event):
    """A cut or a save failed; training continues."""

    snapshot: SnapshotId
    reason: str
