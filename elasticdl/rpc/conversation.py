"""What a process and its master say to each other, as frozen values.

`messages.py` puts them on the wire.

Nothing here decides and nothing here knows gRPC: workers, servers and tests build and read these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elasticdl.job import JobSpec
from elasticdl.shard import Applied, Lease, ShardId, SnapshotId, Source, Task, WorkItem

MetricState: TypeAlias = tuple[tuple[float, ...], ...]
"""The state of one metric: its variables, each flattened."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The master's answer to a process that presented itself.

    `servers` are the bulk addresses in index order, '' where one is away. `restore_from` is a
    checkpoint's directory, '' for none. A report is due every `heartbeat_s`, until the answer to
    one says otherwise. `sources` are the job's data as it was counted; for workers only.

    `first_server` is the index of the first of `servers`. A server has the part `place` of `places`
    of the parameters; one that `stands_by` restores nothing before the order to. One that
    `rolls_back` restores the checkpoint even if it has the memory of the process before.

    `run` names this run of the job. `bulk_tokens`: for a worker, what it shows to each server; for
    a server, the one key by which it recognises workers.
    """

    term: int
    heartbeat_s: float
    spec: JobSpec
    servers: tuple[str, ...]
    restore_from: str
    sources: tuple[Source, ...] = ()
    run: str = ""
    bulk_tokens: tuple[str, ...] = field(default=(), repr=False)
    certificate: str = ""
    first_server: int = 0
    place: int = 0
    places: int = 0
    stands_by: bool = False
    rolls_back: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """No lease at the moment; `reason` in words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """There will be no more leases: the worker ends by itself with exit code 0."""


LeaseAnswer: TypeAlias = Lease | WorkItem | Wait | Finished


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `applied.offset` records of a leased shard are done.

    `returned` gives the rest of the lease back (drain). The other fields are those of the event
    `ProgressReported`.
    For leases without a shard (SUMMARY, EXPORT) there is no progress, only a `Summary` or
    `Report.exported`.
    """

    task: Task
    applied: Applied
    version: int = 0
    loss: float | None = None
    bad_records: int = 0
    bad_examples: tuple[str, ...] = ()
    ahead: bool = False
    done: bool = False
    returned: bool = False
    metrics: Mapping[str, MetricState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Merged metric states of an evaluation round, turned into values.

    `stop_training`: a callback asked for the end.
    """

    round: int
    values: Mapping[str, float]
    stop_training: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """User code raised in a lease (`shard` None: outside of any).

    `error` is the traceback cut to the user's frames.
    """

    task: Task | None
    shard: ShardId | None
    attempt: int
    error: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class RingReport:
    """A worker's state on the ring, part of each of its reports once it is warm.

    `entered` is the newest generation that it is in, with the elected weights, `broken` the newest
    that it failed in or could not enter (0: none); `problem` says why. `leaving`: it drains and
    wants a generation without itself. `version`, `number`, `offset`: steps in its weights, its
    current item, and its position in that item (-1: at the beginning).
    """

    ready: bool = False
    entered: int = 0
    broken: int = 0
    leaving: bool = False
    problem: str = ""
    version: int = 0
    number: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing (a read, `feed`, a step) that a thread of this process has been at for `age_s`."""

    what: str
    age_s: float


@dataclass(frozen=True, slots=True)
class State:
    """The answer to `TellState`: leases in hand with how far each is, where the threads are, and
    what it is at, in words.

    `frames` are those of the user's code, outermost first (`stacks.user_frames`).
    """

    held: tuple[Applied, ...] = ()
    stacks: str = ""
    doing: str = ""
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RingCut:
    """Rank 0 keeps a copy of the weights, at a checkpoint mark.

    The master gets it no later than progress with any later item.
    """

    snapshot: SnapshotId
    version: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a checkpoint: name within its directory, size, checksum (`crc32c:` and 8 hex
    digits).
    """

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class RingSaved:
    """A copy was written below `directory`, or `problem` says why not.

    `parameters` is a ParametersSpec as JSON. `paused_s` of the time it took were an upload's.
    """

    snapshot: SnapshotId
    directory: str
    version: int = 0
    files: tuple[WrittenFile, ...] = ()
    parameters: str = ""
    rows: int = 0
    problem: str = ""
    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Progress and heartbeat in one. An empty one is a plain heartbeat.

    `version` is set by parameter servers only. `gauges` are numbers for people: records_per_s,
    step_ms, rss_bytes … `pushes` of a worker: its first so many are on every server; 0 if that did
    not change. `met`: addresses of servers that it has met for the first time, with the last of its
    pushes that each lacks for good. `crowded`: its pushes that no checkpoint has fill half of
    their room.
    """

    progress: tuple[Progress, ...] = ()
    summaries: tuple[Summary, ...] = ()
    failures: tuple[Failure, ...] = ()
    exported: str = ""
    export_problem: str = ""
    """Why there is no export at `exported`; '' if there is."""
    stop_asked: str = ""
    version: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)
    ring: RingReport | None = None
    ring_cuts: tuple[RingCut, ...] = ()
    ring_saves: tuple[RingSaved, ...] = ()
    activity: Activity | None = None
    """What it has been at for longest; None where nothing takes long."""
    state: State | None = None
    starting: tuple[str, ...] = ()
    """Parts of its start that a worker began, in their order, as `formatting.START_PARTS` has them;
    '': it is ready for work.
    """
    pushes: int = 0
    met: Mapping[str, int] = field(default_factory=dict)
    crowded: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish the step, return the leases, leave with exit code DRAINED.

    The process is killed after `grace_s`. Another order may leave it less time.
    """

    reason: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Drop the leases of revocations before `revocation` and ask for new ones."""

    reason: str
    revocation: int


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers' bulk addresses in index order, '' where one is away.

    `first` is the index of the first. `tokens` are what the worker shows to each.
    """

    addresses: tuple[str, ...]
    first: int = 0
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Load:
    """Load the rows of the checkpoint in this directory, and attach again to say so: for a server
    that stands by. A later one is restored faster then.
    """

    directory: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore the checkpoint in this directory, and serve: for a server that stands by."""

    directory: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The pushes up to `through` are in the model, which has `version` with them.

    Those in `dropped` are not, and will not be: their leases are void.
    """

    through: int
    version: int
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: leave with exit code 0."""


@dataclass(frozen=True, slots=True)
class RingGeneration:
    """A generation of the ring: `members` by rank.

    Who was in the one before and is not named is out of the ring.

    All take the weights of the member with the most steps among the ranks `holders`. Without
    holders, rank 0 restores `restore_from`, or begins afresh if that is ''. Items below
    `first_item` are void. The rendezvous is on `port` of the master's host, below the secret path
    `scope` of the member that receives this ('' for a ring of one).
    """

    number: int
    members: tuple[str, ...]
    holders: tuple[int, ...]
    first_item: int
    restore_from: str = ""
    port: int = 0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class RingSave:
    """Write the copy kept for `snapshot` below `directory`, off the step path; answered by
    RingSaved.
    """

    snapshot: SnapshotId
    directory: str


@dataclass(frozen=True, slots=True)
class RingDrop:
    """Forget the copy kept for `snapshot`."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class TellState:
    """Report the whole state again: every lease in hand, and where all threads are."""


Order: TypeAlias = (
    Drain
    | Revoke
    | Servers
    | Load
    | Restore
    | Settled
    | Finish
    | RingGeneration
    | RingSave
    | RingDrop
    | TellState
)
