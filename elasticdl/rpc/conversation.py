"""What a process and its master say to each other, as frozen values. `messages.py` puts them on the wire.

Nothing here decides and nothing here knows gRPC: workers, servers and tests build and read these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from elasticdl.job import JobSpec
from elasticdl.shard import Applied, Lease, ShardId, Source, Task

MetricState: TypeAlias = tuple[tuple[float, ...], ...]
"""The state of one metric: its variables, each flattened."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The master's answer to a process that presented itself.

    `servers` are the bulk addresses in index order, '' where one is away. `restore_from` is a checkpoint's directory,
    '' for none. A report is due every `heartbeat_s`. `sources` are the job's data as it was counted; for workers only.
    """

    epoch: int
    heartbeat_s: float
    spec: JobSpec
    servers: tuple[str, ...]
    restore_from: str
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """No lease at the moment; `reason` in words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """There will be no more leases: the worker ends by itself with exit code 0."""


LeaseAnswer: TypeAlias = Lease | Wait | Finished


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `applied.offset` records of a leased shard are done.

    `returned` gives the rest of the lease back (drain). The other fields are those of the event `ProgressReported`.
    For leases without a shard (SUMMARY, EXPORT) there is no progress, only a `Summary` or `Report.exported`.
    """

    task: Task
    applied: Applied
    version: int = 0
    loss: float | None = None
    bad_records: int = 0
    bad_examples: tuple[str, ...] = ()
    done: bool = False
    returned: bool = False
    metrics: Mapping[str, MetricState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Merged metric states of an evaluation round, turned into values. `stop_training`: a callback asked for the end."""

    round: int
    values: Mapping[str, float]
    stop_training: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """User code raised in a lease (`shard` None: outside of any). `error` is the traceback cut to the user's frames."""

    task: Task | None
    shard: ShardId | None
    attempt: int
    error: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Progress and heartbeat in one. An empty one is a plain heartbeat.

    `version` is set by parameter servers only. `gauges` are numbers for people: records_per_s, step_ms, rss_bytes …
    """

    progress: tuple[Progress, ...] = ()
    summaries: tuple[Summary, ...] = ()
    failures: tuple[Failure, ...] = ()
    exported: str = ""
    stop_asked: str = ""
    version: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish the step, return the leases, leave with exit code DRAINED."""

    reason: str


@dataclass(frozen=True, slots=True)
class Revoke:
    """Drop the leases of eras before `era` and ask for new ones."""

    reason: str
    era: int


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers' bulk addresses in index order, '' where one is away."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: leave with exit code 0."""


Order: TypeAlias = Drain | Revoke | Servers | Finish
