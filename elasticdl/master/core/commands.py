"""What is to be done, in the imperative: the only output of `JobState.handle`, carried out by the
driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import ExitCode
from elasticdl.shard import Lease, SnapshotId, WorkItem


class Purpose(StrEnum):
    """What a snapshot is for."""

    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True, slots=True)
class RunPreflight(Command):
    """Check the model and the data, and find what the job begins with.

    Answered by JobStarted or PreflightFailed. It ends with the job if a person stops that.
    """


@dataclass(frozen=True, slots=True)
class StartProcess(Command):
    """Start a worker or parameter server, after `delay_s` of back-off.

    `memory_bytes`: one before it ran out of memory, this one is to have so much; None: what its
    role has by the job's spec.
    """

    name: ProcessName
    delay_s: float = 0.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StopProcess(Command):
    """End a process: SIGTERM, and SIGKILL after the grace. `reason` is shown."""

    name: ProcessName
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class GrantLease(Command):
    """Answer a LeaseRequested."""

    worker: ProcessName
    lease: Lease


@dataclass(frozen=True, slots=True)
class GrantItem(Command):
    """Answer a LeaseRequested of a ring's member; every member gets the same for the same
    number.
    """

    worker: ProcessName
    item: WorkItem


@dataclass(frozen=True, slots=True)
class NoLeaseNow(Command):
    """Answer a LeaseRequested: nothing at the moment (`reason` in words); the driver asks again
    when work appears.
    """

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class WorkFinished(Command):
    """Answer a LeaseRequested: there will be no more; the worker ends by itself with exit code
    0.
    """

    worker: ProcessName


@dataclass(frozen=True, slots=True)
class RevokeLeases(Command):
    """Tell a live worker that its leases are void (the job was stopped, or a lease ran out)."""

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class FenceWorker(Command):
    """Make every server refuse the worker's pushes, and learn what it had pushed: answered by
    WorkerFenced.
    """

    worker: ProcessName


@dataclass(frozen=True, slots=True)
class AskState(Command):
    """Have a process tell its whole state anew, with the stacks of its threads: answered by
    StateTold.
    """

    process: ProcessName


@dataclass(frozen=True, slots=True)
class PublishServers(Command):
    """Tell every worker the bulk addresses of the servers, in index order ('' where one is
    away).
    """

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishRing(Command):
    """Tell the members of a new generation, by rank, and those of the one before: all enter it, or
    know that they are out.

    They take the weights of the member with the most steps among the ranks `holders`. With none,
    rank 0 restores
    `restore_from`, '' being what the job began with. Items of the ring below `first_item` are
    void.
    """

    generation: int
    members: tuple[ProcessName, ...]
    holders: tuple[int, ...]
    first_item: int
    restore_from: str = ""


@dataclass(frozen=True, slots=True)
class WithdrawRing(Command):
    """End the rendezvous of a generation: those who wait in it learn at once that it will not be
    complete.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class LookAgain(Command):
    """Send a Tick after this time, sooner than the next regular one may come."""

    after_s: float


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Command):
    """Cut one consistent frozen view over all servers: answered by SnapshotCut or
    SnapshotFailed.
    """

    snapshot: SnapshotId
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class SaveSnapshot(Command):
    """Write a cut view as a checkpoint: answered by SnapshotSaved or SnapshotFailed.

    `ledger` is JSON.
    """

    snapshot: SnapshotId
    version: int
    ledger: str


@dataclass(frozen=True, slots=True)
class DropSnapshot(Command):
    """Release a frozen view."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Announce(Command):
    """One line for people, into events.jsonl, the live view and the log.

    `cause` is one of failures.Cause or ''.
    """

    kind: str
    text: str
    process: str = ""
    cause: str = ""
    level: str = "info"
    details: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordMetrics(Command):
    """One row for metrics.jsonl: the values of an evaluation round, or a training loss."""

    kind: str
    version: int
    records: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class KeepScale(Command):
    """The range of workers that was asked for, to be begun with when the job is resumed."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class FinishJob(Command):
    """The job is over and every process has ended: write the receipt and leave.

    Always the last command.
    """

    exit_code: ExitCode
    message: str
    hint: str = ""
