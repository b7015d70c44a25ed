"""Which processes a job has, as a master that takes it over needs to know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.job_context import JobContext
from elasticdl.shard import SnapshotId


@final
@dataclass(frozen=True, slots=True)
class AttachedProcess:
    """A process that had attached, and may still run. `control_address` is a server's."""

    name: ProcessName
    instance: str
    control_address: str
    starting: bool = False
    """Whether it had yet to import and build what it needs."""


@final
@dataclass(frozen=True, slots=True)
class Presence:
    """The processes of a job.

    `gone` have ended or were given up, and their names never return; `fenced` are the workers among
    them whose pushes no server may take. `members` are those of the newest generation, by rank, and
    rank 0 has the copy of the weights for snapshot `saving`.
    """

    attached: tuple[AttachedProcess, ...]
    gone: tuple[ProcessName, ...]
    fenced: tuple[ProcessName, ...]
    version: int
    members: tuple[ProcessName, ...]
    saving: SnapshotId | None
    restore_from: str | None
    """The newest checkpoint, from which servers restore; None: what the job began with."""
    step: int = 0
    """The number of the newest synchronous step; 0: none."""


def presence_of(
    context: JobContext, coordination: Coordination, checkpointing: Checkpointing
) -> Presence:
    """Return the processes of a job."""
    everyone = context.processes.all.values()
    gone = tuple(process.name for process in everyone if not process.heard)
    ring = coordination.status()
    saving, saved = checkpointing.saving, checkpointing.complete.saved
    return Presence(
        attached=tuple(
            AttachedProcess(
                process.name, process.instance, process.control_address, bool(process.part)
            )
            for process in context.processes.going.values()
            if process.attached and process.heard
        ),
        gone=gone,
        fenced=tuple(name for name in gone if name.role is Role.WORKER),
        version=context.version,
        members=tuple(map(ProcessName.parse, ring.members)) if ring is not None else (),
        saving=saving.id if saving is not None else None,
        restore_from=saved[-1].path if saved else None,
        step=context.updates.step,
    )
