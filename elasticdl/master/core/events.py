"""What happened, in the past tense: the only input of `JobState.handle`.

The journal stores events. Every event carries `at_s`: monotonic seconds since the job began, which
keep growing after a restart of the master.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.dropped import DropCause
from elasticdl.errors import ExitCode
from elasticdl.shard import Applied, ReceivedLease, ShardId, SnapshotId, Source, Task

Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    at_s: float


@dataclass(frozen=True, slots=True)
class MasterStarted(Event):
    """A master has taken over the job and answers calls; the core orders RunPreflight."""


@dataclass(frozen=True, slots=True)
class MasterTookOver(Event):
    """A master of `term` continues a job that has begun, after `away_s` without a master.

    Commands that its predecessor did not carry out are given again.
    """

    term: int
    away_s: float


@dataclass(frozen=True, slots=True)
class PreflightProgressed(Event):
    """A long preflight reported its current step."""

    text: str


@dataclass(frozen=True, slots=True)
class PreflightFailed(Event):
    """The model, the data or the initial checkpoint is unusable."""

    message: str
    hint: str
    exit_code: ExitCode


@dataclass(frozen=True, slots=True)
class JobStarted(Event):
    """The preflight passed: the data is counted and the job may begin.

    `ledger` (JSON) is the ledger to resume; '' starts a new one. `passed_over` says why newer
    checkpoints than the chosen one were not used. `again`: records that an earlier run is known to
    have trained beyond that checkpoint. `sync`: whether workers of parameter servers
    train in synchronous steps; None: as the job says. `anew`: the job was to be resumed, but there
    was no checkpoint; `ledger` has made no progress and says what is repeated. `restore_from`:
    the checkpoint's directory, or ''. `exported`: the highest number of an export's folder that
    `--output` has.
    """

    training: tuple[Source, ...] = ()
    validation: tuple[Source, ...] = ()
    prediction: tuple[Source, ...] = ()
    ledger: str = ""
    version: int = 0
    passed_over: tuple[str, ...] = ()
    again: int = 0
    sync: bool | None = None
    anew: bool = False
    restore_from: str = ""
    exported: int = 0


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; sent about once a second.

    Journaled only if it leads to a command. `stalled_s` is how much of that time the master itself
    did not run: 0 unless it was stopped or starved.
    """

    stalled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessSeen(Event):
    """The cluster reported a process."""

    name: ProcessName
    running: bool
    where: str = ""
    waiting_for: str = ""
    place: ProcessName | None = None
    """See `ProcessObserved`."""


@dataclass(frozen=True, slots=True)
class ProcessEnded(Event):
    """The cluster reported that a process ended."""

    name: ProcessName
    exit_status: ExitStatus


@dataclass(frozen=True, slots=True)
class CreateFailed(Event):
    """The cluster refused to create a process."""

    name: ProcessName
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class ProcessAttached(Event):
    """A process started and attached to the master.

    A parameter server gives the addresses of its two planes and the version it restored (None: it
    has no state yet). `kept`: it has taken on the memory of the process before, with every update.
    With `starting`, a worker reports with `StartWentOn` when it is ready for work. `instance`
    distinguishes it from another process of that name.
    """

    name: ProcessName
    control_address: str = ""
    bulk_address: str = ""
    restored_version: int | None = None
    starting: bool = False
    instance: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True)
class ProcessReturned(Event):
    """A process that had attached to an earlier master attached to this one.

    `received` are the newest leases that reached it: of those that it holds, no other did.
    """

    name: ProcessName
    received: tuple[ReceivedLease, ...] = ()


@dataclass(frozen=True, slots=True)
class StartWentOn(Event):
    """A worker reached another part of its start (`formatting.START_PARTS`); '': ready for work."""

    worker: ProcessName
    part: str


@dataclass(frozen=True, slots=True)
class ProcessSilent(Event):
    """An attached process sent nothing for `silent_s` seconds."""

    name: ProcessName
    silent_s: float


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

    `met`: addresses of servers that it has pushed to for the first time: the pushes before.
    """

    worker: ProcessName
    pushes: int
    met: dict[str, int] = field(default_factory=dict)


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
class ActivityReported(Event):
    """A worker has spent `age_s` in one activity (`feed`, a step, a read).

    '' if it no longer does anything that takes long.
    """

    worker: ProcessName
    what: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StateReported(Event):
    """A process answered AskState with its leases, its position in each, and its thread stacks.

    `doing` describes its current activity in words. `frames` are the frames of the user's code
    there, outermost first, as `FILE:LINE, in FUNCTION`.
    """

    process: ProcessName
    held: tuple[Applied, ...] = ()
    stacks: str = ""
    doing: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """The open call of a process ended, and the master did not end it.

    The process may be dead; the cluster reports that later.
    """

    name: ProcessName


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


@dataclass(frozen=True, slots=True)
class SnapshotFailed(Event):
    """A cut or a save failed; training continues."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class VersionAdvanced(Event):
    """The newest heartbeat reported the servers' version."""

    version: int


@dataclass(frozen=True, slots=True)
class MessagesDropped(Event):
    """The master's transport or a process dropped messages before they reached the core."""

    name: ProcessName
    cause: DropCause
    count: int


@dataclass(frozen=True, slots=True)
class StalenessChosen(Event):
    """A worker decided how many of its own updates its steps may miss.

    `share` is what pull and push take, as a share of a step.
    """

    worker: ProcessName
    limit: int
    share: float


@dataclass(frozen=True, slots=True)
class GradientDropped(Event):
    """A gradient of a worker is not in the step that it was computed for.

    `partly_applied`: some servers applied it before another one ended.
    """

    worker: ProcessName
    reason: str
    partly_applied: bool = False


@dataclass(frozen=True, slots=True)
class StepDelayed(Event):
    """A synchronous step waits for gradients of the `missing` workers; '' if it does no longer."""

    reason: str = ""
    missing: tuple[ProcessName, ...] = ()


@dataclass(frozen=True, slots=True)
class StepsWaited(Event):
    """Of the last `of_s` seconds of synchronous steps, `waited_s` had all gradients but its own."""

    worker: ProcessName
    waited_s: float
    of_s: float


@dataclass(frozen=True, slots=True)
class ServerDelayed(Event):
    """Most workers wait `took_ms` for this server in a pull and push, `others_ms` for the others.

    `server` is its index; None: they no longer wait for any in particular.
    """

    server: int | None = None
    took_ms: float = 0.0
    others_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CpuShareReported(Event):
    """A process gets this share of the CPU time that its threads ask for, from 0 to 1.

    Reported when it changed by much.
    """

    name: ProcessName
    share: float


@dataclass(frozen=True, slots=True)
class TimeReported(Event):
    """What workers have spent their time on since they attached: seconds by worker and `TimeUse`.

    One event has the accounts of many, and a worker's is in it again only with later ones.
    """

    spent_s: dict[str, dict[str, float]]


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
class ServerStandsBy(Event):
    """A server of the next map has started, or has loaded a checkpoint, and waits for orders."""

    name: ProcessName
    loaded: str = ""
    """The directory of the newest checkpoint whose rows it has."""


@dataclass(frozen=True, slots=True)
class ReplaceRequested(Event):
    """A person asked to drain a worker and start another in its place."""

    name: ProcessName


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A person stopped the job: workers drain, and a checkpoint makes the job resumable."""

    reason: str
