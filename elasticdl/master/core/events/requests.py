"""What a person requested of a running job."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events.base import Event


@dataclass(frozen=True, slots=True)
class CheckpointRequested(Event):
    """A person requested a checkpoint, or a server that was told to leave."""

    leaving: ProcessName | None = None
    """That server; None for a person."""


@dataclass(frozen=True, slots=True)
class ScaleRequested(Event):
    """A person requested another range of workers."""

    min_workers: int
    max_workers: int


@dataclass(frozen=True, slots=True)
class ScaleServersRequested(Event):
    """A person requested another number of parameter servers."""

    servers: int


@dataclass(frozen=True, slots=True)
class ReplaceRequested(Event):
    """A person asked to drain a worker and start another in its place."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A person stopped the job: workers drain, and a checkpoint makes the job resumable."""

    reason: str
