"""What to do, in the imperative: the only output of `JobState.handle`.

The driver executes the commands.
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
    EXPORT = "export"


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True, slots=True)
class RunPreflight(Command):
    """Check the model and the data, and find what the job begins with.

    The answer is JobStarted or PreflightFailed. Stopping the job also ends the preflight.
    """


@dataclass(frozen=True, slots=True)
class StartProcess(Command):
    """Start a worker or parameter server after a back-off of `delay_s`.

    `memory_bytes` replaces the memory of its role in the job's spec, after a process ran out of
    memory; None keeps it. `in_gang`: see `ProcessSpec`.
    """

    name: ProcessName
    delay_s: float = 0.0
    memory_bytes: int | None = None
    in_gang: bool = False


@dataclass(frozen=True, slots=True)
class StopProcess(Command):
    """End a process: SIGTERM, then SIGKILL after `grace_s`. People see `reason`.

    `for_good`: see `Cluster.delete`.
    """

    name: ProcessName
    grace_s: float
    reason: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class GrantLease(Command):
    """Answer a LeaseRequested."""

    worker: ProcessName
    lease: Lease


@dataclass(frozen=True, slots=True)
class GrantItem(Command):
    """Answer a ring member's LeaseRequested: all members get the same item for the same number."""

    worker: ProcessName
    item: WorkItem


@dataclass(frozen=True, slots=True)
class NoLeaseNow(Command):
    """Answer a LeaseRequested: no work at the moment, for `reason`.

    The driver asks again when work appears.
    """

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class WorkFinished(Command):
    """Answer a LeaseRequested: no more work will come, and the worker exits with code 0."""

    worker: ProcessName


@dataclass(frozen=True, slots=True)
class RevokeLeases(Command):
    """Tell a running worker that its leases are void (the job is stopped, or a lease timed out)."""

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class FenceWorker(Command):
    """Make every server refuse the worker's pushes and report what it had pushed.

    The answer is WorkerFenced.
    """

    worker: ProcessName


@dataclass(frozen=True, slots=True)
class AskState(Command):
    """Ask a process for its complete state and thread stacks; the answer is StateReported."""

    process: ProcessName


@dataclass(frozen=True, slots=True)
class PublishServers(Command):
    """Send every worker the bulk addresses of the servers in index order; '' for a missing one.

    `first` is the index of the first. The parameters are on these servers from now on.
    """

    addresses: tuple[str, ...]
    first: int = 0


@dataclass(frozen=True, slots=True)
class LoadServers(Command):
    """Tell servers that stand by to load the rows of a checkpoint; each answers ServerStandsBy."""

    servers: tuple[ProcessName, ...]
    directory: str


@dataclass(frozen=True, slots=True)
class RestoreServers(Command):
    """Tell servers that stand by to restore a checkpoint, and to serve."""

    servers: tuple[ProcessName, ...]
    directory: str


@dataclass(frozen=True, slots=True)
class UnsealServers(Command):
    """Let pushes in again that servers have kept out since the cut of that snapshot."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class FinishServers(Command):
    """Tell servers that others have their parameters: they exit with code 0, and keep no memory."""

    servers: tuple[ProcessName, ...]


@dataclass(frozen=True, slots=True)
class KeepServers(Command):
    """Save the number of parameter servers; a resumed job begins with it."""

    number: int


@dataclass(frozen=True, slots=True)
class PruneCheckpoints(Command):
    """Remove checkpoints before `version`, but for the newest ones that the job keeps.

    The directories `held` stay, too.
    """

    version: int
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishRing(Command):
    """Announce a new generation to its members, by rank, and to those of the previous one.

    A worker that is not listed leaves the ring. Members copy the weights of the member with the
    most steps among the ranks `holders`. Without holders, rank 0 restores `restore_from`; '' means
    what the job began with. Ring items below `first_item` are void.
    """

    generation: int
    members: tuple[ProcessName, ...]
    holders: tuple[int, ...]
    first_item: int
    restore_from: str = ""


@dataclass(frozen=True, slots=True)
class WithdrawRing(Command):
    """End the rendezvous of a generation: waiting members learn at once that it is off."""

    generation: int


@dataclass(frozen=True, slots=True)
class LookAgain(Command):
    """Send a Tick after `after_s`, possibly before the next regular one."""

    after_s: float


@dataclass(frozen=True, slots=True)
class TakeSnapshot(Command):
    """Cut one consistent frozen view over all servers.

    The answer is SnapshotCut or SnapshotFailed. With `seal` the servers admit no push after the
    cut, until UnsealServers.
    """

    snapshot: SnapshotId
    purpose: Purpose
    seal: bool = False


@dataclass(frozen=True, slots=True)
class SaveSnapshot(Command):
    """Write a cut view as a checkpoint, with `ledger` as JSON.

    The answer is SnapshotSaved or SnapshotFailed.
    """

    snapshot: SnapshotId
    version: int
    ledger: str
    hurried: bool = False
    """Whether servers or workers wait for it.

    Then it is not copied to --checkpoint-dir, it is a delta even if its chain is long, and older
    ones stay until PruneCheckpoints.
    """
    held: tuple[str, ...] = ()
    """Older checkpoints that are not removed yet: servers load them."""
    pause_s: float = 0.0
    """Of pauses that each server may make in all while it writes, so that training keeps the
    processors; 0: somebody waits for the checkpoint.
    """
    keeps: bool = False
    """Whether older ones stay until PruneCheckpoints: the job may go back to one meanwhile, or to
    remove them takes long.
    """


@dataclass(frozen=True, slots=True)
class HurrySnapshot(Command):
    """Have the servers write a view without further pauses: somebody waits for it now."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class DropSnapshot(Command):
    """Release a frozen view. `saved`: it is in a complete checkpoint."""

    snapshot: SnapshotId
    saved: bool = False


@dataclass(frozen=True, slots=True)
class KeepSnapshots(Command):
    """Release every frozen view but these at all servers, and open their gates.

    An earlier master may have left others.
    """

    snapshots: tuple[SnapshotId, ...]


@dataclass(frozen=True, slots=True)
class Announce(Command):
    """Show people one line: in events.jsonl, the live view and the log.

    `cause` is a causes.Cause or ''.
    """

    kind: str
    text: str
    process: str = ""
    cause: str = ""
    level: str = "info"
    details: dict[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordMetrics(Command):
    """Write one row to metrics.jsonl: the values of an evaluation round, or a training loss."""

    kind: str
    version: int
    records: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class KeepScale(Command):
    """Save the requested range of workers; a resumed job begins with it."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class FinishJob(Command):
    """Write the receipt and exit: the job is over and every process has ended.

    This is always the last command.
    """

    exit_code: ExitCode
    message: str
    hint: str = ""
