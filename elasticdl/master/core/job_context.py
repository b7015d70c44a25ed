"""The current facts of one job, shared by the parts of the state machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import WRONG, DropCause
from elasticdl.errors import ExitCode
from elasticdl.flag_values import ServerRange, WorkerRange
from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import UpdateCounts
from elasticdl.master.core.command_buffer import CommandBuffer
from elasticdl.master.core.commands import FinishJob, RecordMetrics
from elasticdl.master.core.data.counts import EpochCount, ShardIds
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import Piece
from elasticdl.master.core.data.singleton_tasks import Export, attempts
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.causes import MEMORY_WORDS
from elasticdl.master.core.processes.memory_limits import MemoryLimits
from elasticdl.master.core.processes.table import Process, Processes
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.master.core.ps.server_map import ServerMap
from elasticdl.master.core.updates import UpdateAccount, UpdateMark
from elasticdl.shard import Source, Task

_LOSS_EVERY_S = 1.0
_FALLING_S = 10.0
"""For this long after a server came back, reports of old and new versions may be mixed."""
_PUSHED_AGAIN_S = 30.0
"""How long cuts wait for workers to push again what a server lacks.

They take as long as they took to push it, at most, and few are as far behind as an interval between
checkpoints.
"""
MORE_MEMORY = (
    "raise --worker-resource-limit, --ps-resource-limit or --oom-memory-limit, or reduce"
    " --minibatch-size"
)


class Phase(StrEnum):
    """The phase of the job.

    A job passes these in order and may skip some. Only a job that lost its weights goes back to
    WORKING.
    """

    STARTING = "starting"
    """The preflight runs; no process exists yet."""
    WORKING = "working"
    """Workers train or predict on the records of the ledger."""
    EVALUATING = "evaluating"
    """The final round, or the only round of `evaluate`."""
    DRAINING = "draining"
    """A person stopped the job; workers give their leases back."""
    CHECKPOINTING = "checkpointing"
    EXPORTING = "exporting"
    ENDING = "ending"
    """The outcome is decided; processes are ending."""
    ENDED = "ended"


_LATE = {
    Phase.DRAINING: "is being stopped",
    Phase.CHECKPOINTING: "is taking its last checkpoint",
    Phase.EXPORTING: "is exporting its model",
    Phase.ENDING: "is ending",
    Phase.ENDED: "has ended",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the machine or cluster that runs the job.

    `starting` limits how many workers start at the same time; None: no limit. On one machine a
    starting worker uses a core for seconds: too many at once starve the other workers and the
    master.
    """

    starting: int | None = None


@dataclass(slots=True)
class JobContext:
    """Facts of the job that several parts read.

    `now_s` is the time of the current event.
    """

    spec: JobSpec
    orders: CommandBuffer = field(default_factory=CommandBuffer)
    processes: Processes = field(default_factory=Processes)
    ids: ShardIds = field(default_factory=ShardIds)
    budgets: Budgets = field(default_factory=lambda: Budgets(0))
    memory: MemoryLimits = field(default_factory=lambda: MemoryLimits({}))
    limits: Limits = field(default_factory=Limits)
    server_map: ServerMap = field(init=False)
    loading: tuple[str, ...] = ()
    """Checkpoints that new servers load, now or next: they are not removed meanwhile."""
    moving: str = ""
    """Why the servers admit no push although they run, in words; '' while they do."""
    roll_back: RollBack | None = None
    """The return of all servers to a checkpoint, while it is under way; see `RollingBack`."""
    workers: WorkerRange = field(init=False)
    """The range of workers that was last requested."""
    server_range: ServerRange = field(init=False)
    """The range of parameter servers that was last requested."""
    autoscaled: int | None = field(init=False)
    """The number of workers that autoscaling wants; None without it."""
    autoscale_reason: str = ""
    """The newest decision of autoscaling, in words."""
    autoscale_holds_back: str = ""
    """Why autoscaling tries no other number now, in words; '' in a trial."""
    work: Ledger | None = None
    """The training or prediction ledger. None for evaluation, and before the data is counted."""
    validation: tuple[Source, ...] = ()
    preflight: str = ""
    """The current step of a long preflight, in words."""
    phase: Phase = Phase.STARTING
    phase_since_s: float = 0.0
    outcome: FinishJob | None = None
    """How the job ends, once that is decided: the command to give when all processes have ended."""
    version: int = 0
    acknowledged_version: int = 0
    """The newest version that every server acknowledged to a worker.

    `version` comes from heartbeats and is therefore older.
    """
    updates: UpdateAccount = field(default_factory=UpdateAccount)
    begun_version: int = 0
    """The version that the job began with."""
    server_back_s: float = float("-inf")
    """When a server last came back from a checkpoint."""
    now_s: float = 0.0
    loss: float | None = None
    untold: tuple[int, Mapping[str, float]] | None = None
    """Version and values of the newest loss if it is not recorded yet."""
    loss_told_s: float = float("-inf")
    metrics: Mapping[str, float] = field(default_factory=dict)
    bad_examples: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Parked shards of all tasks, in words."""
    export: Export | None = None
    """The export that is open, if any; `Exporting` decides on it."""
    next_export: int = 1
    """The number of the next export's folder below `--output`."""
    why_sync: str = ""
    """Why steps are synchronous, or why not, in a few words; '' if that is not known."""
    ended_early: str = ""
    """Why a callback ended training before the last epoch; '' if none did."""
    dropped: Counter[DropCause] = field(default_factory=Counter)
    """Messages that changed nothing, by cause."""
    step_delay: str = ""
    """What a synchronous step waits for, in words; '' while it does not wait for long."""
    step_misses: tuple[ProcessName, ...] = ()
    """The workers that it waits for."""

    def __post_init__(self) -> None:
        self.workers = self.spec.cluster.num_workers
        self.autoscaled = self.workers.low if self.spec.autoscales else None
        self.server_range = self.spec.cluster.num_ps_pods
        self.server_map = ServerMap(0, self.spec.servers)

    @property
    def most_workers(self) -> int:
        """The number of workers to have if there is work for all."""
        low, high = self.workers.low, self.workers.high
        return high if self.autoscaled is None else min(high, max(low, self.autoscaled))

    def drop(
        self, cause: DropCause, sender: ProcessName | None, what: object, count: int = 1
    ) -> None:
        """Count messages that change nothing.

        The first message that only a faulty process can send is announced.
        """
        # Announce the first only: a faulty process may send thousands.
        if cause in WRONG and not self.dropped[cause]:
            who = sender or "a process"
            text = (
                f"{who} sent an impossible message ({cause}), which is a bug in ElasticDL; the"
                f" message is ignored: {what}"
            )
            details = {"dropped": str(cause)}
            self.orders.announce("job", text, process=sender, level="error", details=details)
        self.dropped[cause] += count

    @property
    def servers(self) -> int:
        """How many servers share the parameters."""
        return self.server_map.number

    def server_names(self) -> tuple[ProcessName, ...]:
        """Parameter servers that run or are expected to run."""
        servers = (self.processes.server(index) for index in self.server_map.indices)
        return tuple(server.name for server in servers if server is not None)

    def is_spare(self, name: ProcessName) -> bool:
        """Whether it is a server that has no part of the parameters, not yet or no longer."""
        return name.role is Role.PS and name.index not in self.server_map.indices

    def worker(self, name: ProcessName) -> Process | None:
        """The worker of this name; None if it is unknown, has ended or was given up."""
        process = self.processes.going.get(name)
        return process if process and process.heard and name.role is Role.WORKER else None

    def waits_for_others(self, worker: ProcessName) -> bool:
        """Whether a worker has no progress only because a step waits for other workers."""
        return bool(self.step_delay) and worker not in self.step_misses

    def step_delayed(self, reason: str, missing: tuple[ProcessName, ...]) -> None:
        """Note what a synchronous step waits for, and for whom; '' if it does no longer."""
        waited = [
            worker for worker in self.processes.live_workers() if self.waits_for_others(worker.name)
        ]
        self.step_delay, self.step_misses = reason, missing
        for process in waited:
            if not self.waits_for_others(process.name):
                # The time that it waited for others is not its own.
                process.busy_since_s = self.now_s

    def servers_away(self) -> str:
        """Why no work can use the servers now, in words; '' if it can."""
        away = self.processes.away(self.server_map.indices)
        if not away:
            return self.moving
        parts = []
        for index in away:
            process = self.processes.server(index)
            why = f": {process.message}" if process and process.message else ""
            parts.append(
                f"{process.name} is {process.life}{why}" if process else f"ps-{index} is missing"
            )
        return "; ".join([*parts, *([self.moving] if self.moving else [])])

    def late(self) -> str:
        """How the job is ending, as words that follow "the job"; '' if it is not ending.

        An ending job begins nothing new.
        """
        if self.phase in _LATE:
            return _LATE[self.phase]
        return "is being stopped" if self.outcome is not None else ""

    def update_counts(self, version: int, mark: UpdateMark | None = None) -> UpdateCounts | None:
        """The updates in `version` of a ring's weights, or in `mark` of servers (None: so far).

        None if the job does not train.
        """
        if self.spec.action is not Action.TRAIN:
            return None
        living = self._who_has_kept()
        counts = (
            self.updates.counts(living) if mark is None else self.updates.counts_at(mark, living)
        )
        if not self.spec.trains_on_ring:
            return counts
        # The version of a ring counts its steps.
        return replace(counts, applied=counts.applied + max(0, version - self.begun_version))

    def lost_updates(self) -> int:
        """How many updates servers have lost that no worker may push again."""
        return self.updates.counts(self._who_has_kept()).lost

    def pushes_awaited(self) -> bool:
        """Whether workers are about to push again what a server lacks that came back."""
        return any(True for _ in self._may_push_again(self.now_s - _PUSHED_AGAIN_S))

    def who_pushes_again(self) -> tuple[ProcessName, ...]:
        """Workers that a server has not met which came back a short time ago."""
        return tuple(self._may_push_again(self.now_s - _PUSHED_AGAIN_S))

    def _may_push_again(self, after_s: float) -> Iterator[ProcessName]:
        """Workers that a server has not met which came back after that time."""
        waiting = map(ProcessName.parse, self.updates.awaited(after_s))
        return (name for name in waiting if name in self.processes.going)

    def _who_has_kept(self) -> frozenset[str]:
        """Workers that may push again what some server lacks, until the job is over."""
        over = self.phase in (Phase.ENDING, Phase.ENDED)
        return frozenset() if over else frozenset(map(str, self._may_push_again(-math.inf)))

    def version_may_fall(self) -> bool:
        """Whether a lower version is real rather than a late heartbeat."""
        return self.now_s - self.server_back_s < _FALLING_S

    def saw_loss(self, version: int, values: Mapping[str, float]) -> None:
        """Keep the loss of a training step, with its other values.

        One per second is recorded, and the last one of each phase.
        """
        self.loss, self.untold = values["loss"], (version, values)
        if self.now_s - self.loss_told_s >= _LOSS_EVERY_S:
            self._tell_loss()

    def _tell_loss(self) -> None:
        if self.untold is not None and self.work is not None:
            version, values = self.untold
            self.untold, self.loss_told_s = None, self.now_s
            self.orders.give(
                RecordMetrics("training", version, self.work.totals().trained, dict(values))
            )

    def enter(self, phase: Phase, text: str) -> None:
        """Enter another phase and announce it."""
        details = meaning(
            EventStep.PHASE,
            phase=str(phase),
            before=str(self.phase),
            before_s=self.now_s - self.phase_since_s,
        )
        # The curve of a phase ends with its last loss, although only one per second is recorded.
        self._tell_loss()
        self.phase, self.phase_since_s = phase, self.now_s
        self.orders.announce("job", text, details=details)

    def fail(
        self, message: str, *, hint: str = "", exit_code: ExitCode = ExitCode.JOB_FAILED
    ) -> None:
        """End the job because it cannot succeed.

        The first reason stands. A job that is being stopped continues to stop.
        """
        if self.phase in (Phase.ENDING, Phase.ENDED):
            return
        if self.outcome is not None:
            self.orders.announce("job", f"failed while stopping: {message}", level="error")
            return
        self.outcome = FinishJob(exit_code, message, hint)
        self._tell_loss()
        details = meaning(
            EventStep.PHASE,
            phase="ending",
            before=str(self.phase),
            before_s=self.now_s - self.phase_since_s,
        )
        self.orders.announce("job", f"job failed: {message}", level="error", details=details)
        self.phase, self.phase_since_s = Phase.ENDING, self.now_s

    def went_back(self, before: Ledger, again: Ledger) -> None:
        """Replace the parked shards of a ledger by those of an earlier one."""
        undone = {_parked(before.task, piece) for piece in before.parked}
        others = [shard for shard in self.given_up if shard not in undone]
        self.given_up = [*others, *(_parked(again.task, piece) for piece in again.parked)]

    def give_up(self, task: Task, piece: Piece) -> None:
        """Record a parked shard; fail the job if more are parked than the user allows."""
        shard, text = piece.shard, _failed(task, piece)
        reasons = attempts(piece.failures)
        self.given_up.append(_parked(task, piece))
        details = {"shard": int(shard.id), "failures": len(piece.failures)}
        self.orders.announce(
            "shard", f"{text} and is skipped:\n{reasons}", level="error", details=details
        )
        limit = self.spec.training.max_failed_shards
        if len(self.given_up) <= limit:
            return
        text, hint = (
            f"{text} (--max-failed-shards {limit}):\n{reasons}",
            "fix the cause, or skip such shards",
        )
        if all(MEMORY_WORDS in reason for reason in piece.failures):
            last = piece.failures[-1].replace(": ", " ", 1)
            self.fail(
                f"{last}, {amount(len(piece.failures), 'time')} on shard {shard.id}; {text}",
                hint=MORE_MEMORY,
            )
        else:
            self.fail(text, hint=f"{hint} with --max-failed-shards")

    def check_bad(self, count: EpochCount, examples: tuple[str, ...]) -> None:
        """Compare the bad records of one pass with the user's limit."""
        self.bad_examples.extend(examples[: max(0, 3 - len(self.bad_examples))])
        limit = self.spec.data.max_bad_records
        if count.bad > limit:
            first = self.bad_examples[0] if self.bad_examples else "no example was reported"
            self.fail(
                f"{amount(count.bad, 'record')} could not be read (--max-bad-records {limit}); the"
                f" first: {first}",
                hint="correct the data, or skip such records with --max-bad-records",
            )


def _failed(task: Task, piece: Piece) -> str:
    shard = piece.shard
    return (
        f"{task} shard {shard.id} ({shard.source} records {shard.begin} to {shard.end}) failed"
        f" {amount(len(piece.failures), 'time')}"
    )


def _parked(task: Task, piece: Piece) -> str:
    """A parked shard in words, as in `given_up`."""
    return f"{_failed(task, piece)}:\n{attempts(piece.failures)}"
