"""What happened, in the past tense: the only input of `JobState.handle`, and what the journal
holds.

Every event carries `at_s`: monotonic seconds since the job began (it goes on growing after a
restart of the master).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from elasticdl.cluster.base import ExitFacts, ProcessName
from elasticdl.dropped import DropCause
from elasticdl.errors import ExitCode
from elasticdl.shard import Applied, ShardId, SnapshotId, Source, Task

Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    at_s: float


@dataclass(frozen=True, slots=True)
class MasterStarted(Event):
    """A master takes the job on and can be asked about it: answered by RunPreflight."""


@dataclass(frozen=True, slots=True)
class PreflightProgressed(Event):
    """The preflight takes long; `text` says what it is at."""

    text: str


@dataclass(frozen=True, slots=True)
class PreflightFailed(Event):
    """The model, the data or what the job is to begin with is unusable."""

    message: str
    hint: str
    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class JobStarted(Event):
    """The preflight passed: the data was counted and the job may begin.

    `ledger` resumes an earlier one (JSON), '' starts afresh.

    `passed_over` says why newer checkpoints than the one that the job begins with were not used.
    `again`: records that an earlier run is known to have trained beyond that checkpoint.
    """

    training: tuple[Source, ...] = ()
    validation: tuple[Source, ...] = ()
    prediction: tuple[Source, ...] = ()
    ledger: str = ""
    version: int = 0
    passed_over: tuple[str, ...] = ()
    again: int = 0


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; sent about once a second. Journaled only if it led to a command.

    `stalled_s`: how much of that time the master itself did not run (0 but after it was stopped or
    starved).
    """

    stalled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessSeen(Event):
    """The cluster shows a process."""

    name: ProcessName
    running: bool
    where: str = ""
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """The cluster says that a process has ended."""

    name: ProcessName
    facts: ExitFacts


@dataclass(frozen=True, slots=True)
class CreateFailed(Event):
    """The cluster refused to create a process."""

    name: ProcessName
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class ProcessAttached(Event):
    """A process came up and presented itself.

    A parameter server gives the addresses of its two planes and the version it restored (None: it
    has no state yet). `starting`: a worker
    that tells with `StartWentOn` when it is ready for work.
    """

    name: ProcessName
    control_address: str = ""
    bulk_address: str = ""
    restored_version: int | None = None
    starting: bool = False


@dataclass(frozen=True, slots=True)
class StartWentOn(Event):
    """A worker has come to another part of its start (`formatting.START_PARTS`); '': it is ready
    for work.
    """

    worker: ProcessName
    part: str


@dataclass(frozen=True, slots=True)
class ProcessSilent(Event):
    """Nothing was heard of an attached process for the stated time."""

    name: ProcessName
    silent_s: float


@dataclass(frozen=True, slots=True)
class LeaseRequested(Event):
    """A worker has room for one more lease.

    Answered by GrantLease, GrantItem, NoLeaseNow or WorkFinished.

    `ring_number`: it wants that item of the ring (0: any lease for itself). `at_mark`: it stands
    still with the ring before
    that item, so a lease for itself will do, too.
    """

    worker: ProcessName
    ring_number: int = 0
    at_mark: bool = False


@dataclass(frozen=True, slots=True)
class ProgressReported(Event):
    """The first `applied.offset` records of a leased shard are done; in PS mode every server has
    acknowledged them.

    `bad_records` counts those of this attempt so far that could not be read. A worker reports those
    of its next batch before any server has that batch: more of them, at an `offset` that was told
    before. `loss` is the mean of the last steps,
    `done` ends the lease. `metrics` are the merged-state contributions of an evaluation lease,
    given with `done` only:
    metric name -> tuple of flat state arrays.
    """

    worker: ProcessName
    task: Task
    applied: Applied
    version: int = 0
    loss: float | None = None
    bad_records: int = 0
    bad_examples: tuple[str, ...] = ()
    done: bool = False
    metrics: dict[str, tuple[Numbers, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RingTold(Event):
    """A worker said where it stands with the ring; told with every report of one that is warm.

    `ready`: warm, in no generation. `entered`, `broken`: the newest generation that it is in, and
    that it fell out of.
    `leaving`: it drains. `problem`: why a generation broke. `version`, `number`, `offset`: steps in
    its weights, the item that it
    is at, and how far it is in that; -1: at its beginning.
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
class ActivityTold(Event):
    """A worker has been at one thing (`feed`, a step, a read) for `age_s`; '' if it is at nothing
    that takes long any more.
    """

    worker: ProcessName
    what: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StateTold(Event):
    """The answer to AskState: the leases that a worker has and how far it is in each, and where the
    threads of a process are.

    `doing` says in words what it is at.
    """

    process: ProcessName
    held: tuple[Applied, ...] = ()
    stacks: str = ""
    doing: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """The open call of a process ended without our doing: the process may be dead, which the
    cluster tells later.
    """

    name: ProcessName


@dataclass(frozen=True, slots=True)
class SummaryReported(Event):
    """A worker turned merged metric states into values.

    `stop_training`: a callback asked for the end.
    """

    worker: ProcessName
    round: int
    values: dict[str, float]
    stop_training: bool = False


@dataclass(frozen=True, slots=True)
class ExportFinished(Event):
    """A worker wrote the export at `path`."""

    worker: ProcessName
    path: str


@dataclass(frozen=True, slots=True)
class LeaseReturned(Event):
    """A draining worker gives back the rest of a lease: `applied.offset` records of it are done.

    `taken` False: the lease never reached the worker, which goes on.
    """

    worker: ProcessName
    applied: Applied
    taken: bool = True


@dataclass(frozen=True, slots=True)
class TaskFailed(Event):
    """User code raised in a lease (`shard` None: outside of any).

    `error` is the traceback cut to the user's frames.
    The worker ends by itself after that.

    `fatal` errors (non-finite loss K times over, broken model) end the job at once.
    """

    worker: ProcessName
    task: Task | None
    shard: ShardId | None
    attempt: int
    error: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """A worker's callback (MaxStepsStopping, `model.stop_training`) asks that training end now."""

    worker: ProcessName
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFenced(Event):
    """Every server refuses the worker's pushes from now on; `applied` has one entry a server, in
    index order.

    An entry is None where that server knows of no push of this worker, or is away: one that comes
    back knows no later push either.
    """

    worker: ProcessName
    applied: tuple[Applied | None, ...]


@dataclass(frozen=True, slots=True)
class SnapshotCut(Event):
    """All servers hold one consistent frozen view.

    `applied`: each worker's last push within the cut.
    """

    snapshot: SnapshotId
    version: int
    applied: dict[str, Applied]


@dataclass(frozen=True, slots=True)
class SnapshotSaved(Event):
    """A checkpoint is complete on disk: its manifest was written."""

    snapshot: SnapshotId
    version: int
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed(Event):
    """A cut or a save did not work; training goes on."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class VersionAdvanced(Event):
    """The servers' version as the newest heartbeat told it."""

    version: int


@dataclass(frozen=True, slots=True)
class MessagesDropped(Event):
    """Messages were left aside before they came to the core: by the master's own side, or by a
    process, which tells of it.
    """

    name: ProcessName
    cause: DropCause
    count: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested(Event):
    """A person wants a checkpoint now."""


@dataclass(frozen=True, slots=True)
class ScaleRequested(Event):
    """A person wants another range of workers."""

    min_workers: int
    max_workers: int


@dataclass(frozen=True, slots=True)
class ReplaceRequested(Event):
    """A person wants a worker to be ended in order, and another in its place."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A person wants the job to end: workers drain, a checkpoint is taken, nothing is lost that a
    resume needs.
    """

    reason: str
