"""Leases, records, updates and snapshots: what workers and servers did."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events.base import Event, Numbers
from elasticdl.shard import Applied, ShardId, SnapshotId, Task


@dataclass(frozen=True, slots=True)
class LeaseRequested(Event):
    """A worker has room for one more lease.

    The answer is GrantLease, GrantItem, NoLeaseNow or WorkFinished. `ring_number` is the ring item
    that it wants; 0: any lease for itself. `at_mark`: the ring stands before that item, so a lease
    for the worker itself is also welcome.
    """

    worker: ProcessName
    ring_number: int = 0
    at_mark: bool = False


@dataclass(frozen=True, slots=True)
class ProgressReported(Event):
    """A worker finished the first `applied.offset` records of a leased shard.

    With parameter servers, every server has acknowledged them. `bad_records` counts the records of
    this attempt so far that could not be read. A worker reports those of a batch before any server
    has that batch: with `ahead` nothing is done, and `offset` is where the batch begins. `loss` is
    the mean of the
    last steps; `done` ends the lease. `metrics` maps each metric name of an evaluation lease to its
    tuple of flat state arrays, which the master adds up. It comes only with `done`. `pushes`: as in
    `PushesReported`; 0 if it did not change.
    """

    worker: ProcessName
    task: Task
    applied: Applied
    version: int = 0
    loss: float | None = None
    bad_records: int = 0
    bad_examples: tuple[str, ...] = ()
    ahead: bool = False
    done: bool = False
    metrics: dict[str, tuple[Numbers, ...]] = field(default_factory=dict)
    pushes: int = 0


@dataclass(frozen=True, slots=True)
class PushesReported(Event):
    """Every server has acknowledged the first `pushes` pushes of a worker.

    `met`: addresses of servers that it has met for the first time: the last push that each lacks
    for good. `crowded`: pushes that no checkpoint has fill half of their room.
    """

    worker: ProcessName
    pushes: int
    met: dict[str, int] = field(default_factory=dict)
    crowded: bool = False


@dataclass(frozen=True, slots=True)
class StepApplied(Event):
    """The `servers` were to apply a synchronous step. `complete`: all did, else it is dropped."""

    number: int
    complete: bool
    servers: tuple[ProcessName, ...] = ()


@dataclass(frozen=True, slots=True)
class RingReported(Event):
    """A worker reported its position on the ring; every report of a warm worker includes one.

    `ready`: warm, in no generation. `entered`: the newest generation that it is in; `broken`: the
    newest that it fell out of. `leaving`: it drains. `problem`: why a generation broke. `version`:
    steps in its weights. `number`: its current item; `offset`: its position in that item, -1 at the
    beginning.
    """

    worker: ProcessName
    ready: bool
    entered: int = 0
    broken: int = 0
    leaving: bool = False
    problem: str = ""
    version: int = 0
    number: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SummaryReported(Event):
    """A worker computed values from merged metric states.

    `stop_training`: a callback asked to end training.
    """

    worker: ProcessName
    round: int
    values: dict[str, float]
    stop_training: bool = False


@dataclass(frozen=True, slots=True)
class ExportFinished(Event):
    """A worker wrote the export to `path`, or could not for the reason `problem`."""

    worker: ProcessName
    path: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LeaseReturned(Event):
    """A worker gave back the rest of a lease after `applied.offset` records.

    A draining worker does so. `taken` False: the lease never reached the worker, which continues.
    """

    worker: ProcessName
    applied: Applied
    taken: bool = True


@dataclass(frozen=True, slots=True)
class TaskFailed(Event):
    """User code raised in a lease (`shard` None: outside of any lease).

    `error` is the traceback, cut to the user's frames. The worker then ends by itself. `fatal`
    errors (K non-finite losses, a broken model) end the job at once.
    """

    worker: ProcessName
    task: Task | None
    shard: ShardId | None
    attempt: int
    error: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class WorkerStopRequested(Event):
    """A worker's callback (MaxStepsStopping, `model.stop_training`) asked to end training now."""

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFenced(Event):
    """Every server refuses the worker's pushes from now on.

    `applied` has one entry per server, in index order. An entry is None if that server knows no
    push of this worker, or is away. A server that comes back knows no later push either.
    `sequences`: the numbers of those pushes.
    """

    worker: ProcessName
    applied: tuple[Applied | None, ...]
    sequences: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionAdvanced(Event):
    """The newest heartbeat reported the servers' version."""

    version: int


@dataclass(frozen=True, slots=True)
class GradientDropped(Event):
    """A gradient of a worker is not in the step that it was computed for.

    `partly_applied`: some servers applied it before another one ended.
    """

    worker: ProcessName
    reason: str
    partly_applied: bool = False


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
