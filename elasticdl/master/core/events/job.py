"""The job as a whole: its master, its preflight, its beginning, time, and what people request."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import ExitCode
from elasticdl.master.core.events.base import Event
from elasticdl.shard import Source


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
    have trained beyond that checkpoint. `sync`: whether workers of parameter servers train in
    synchronous steps; None: as the job says. `why_sync`: why, in a few words. `max_staleness`: how
    many of its own updates a worker's step may miss; None: as the job says. `anew`: the job was to
    be resumed, but there was no checkpoint; `ledger` has made no progress and says what is
    repeated. `restore_from`: the checkpoint's directory, or ''; `restored_bytes` and
    `restored_age_s`: its size and its age, if it is this job's. `exported`: the highest number of
    an export's folder that `--output` has.
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
    why_sync: str = ""
    max_staleness: int | None = None
    restored_bytes: int = 0
    restored_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; sent about once a second.

    Journaled only if it leads to a command. `stalled_s` is how much of that time the master itself
    did not run: 0 unless it was stopped or starved. `turn` is the number of the tick, from 1 on in
    each master. It chooses which of thousands of processes the tick looks at.
    """

    stalled_s: float = 0.0
    turn: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointRequested(Event):
    """A person requested a checkpoint, or a server that has to leave."""

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
