"""The status of a job: one value from the master to every reader, with its JSON.

Times are seconds since the job began. Unknown values are None; a count is 0 until it is counted.
JSON holds no NaN and no infinity: such a loss or metric becomes None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ShardCounts:
    """Shards of one task by state.

    Training and prediction count all epochs, evaluation the current round.
    """

    todo: int
    leased: int
    done: int
    parked: int


@final
@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process."""

    name: str
    role: str
    state: str
    """A value of `master.core.processes.table.Life`, or without a master `pending`, `running`."""
    since_s: float
    started_s: float
    where: str | None
    """The machine and the pid on it."""
    cause: str | None
    """A value of `causes.Cause`, once the process has ended."""
    message: str
    shard: str | None
    """The current work, such as `training shard 3: 20 of 64`."""
    records: int | None
    """Settled records in the receipt; on a ring, an even share of each step."""
    evaluated: int | None
    """Validation records of finished shards during a training. They are in no receipt."""


@final
@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round of evaluation.

    While it runs, `values` is empty and `state` describes its progress.
    """

    round: int
    version: int
    epoch: int
    state: str
    values: dict[str, float | None]


@final
@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A complete checkpoint."""

    version: int
    path: str
    bytes: int
    at_s: float


@final
@dataclass(frozen=True, slots=True)
class RingStatus:
    """The state of the ring.

    `formed` is the newest generation that all of its members entered. `reason` explains the current
    state.
    """

    generation: int
    formed: int
    members: tuple[str, ...]
    reason: str


@final
@dataclass(frozen=True, slots=True)
class StepsStatus:
    """How workers train through parameter servers."""

    sync: bool
    """Whether their steps are synchronous."""
    reason: str
    """Why, in a few words, such as `few steps` or `--sync`; '' if that is not known."""

    def __str__(self) -> str:
        """A text such as `synchronous: few steps`."""
        how = "synchronous" if self.sync else "asynchronous"
        return f"{how}: {self.reason}" if self.reason else how


@final
@dataclass(frozen=True, slots=True)
class StallStatus:
    """A stalled job: since when nothing moved, what it waits for, and what was done."""

    since_s: float
    bound_s: float
    waits_for: str
    debtors: tuple[str, ...]
    owed_since_s: float
    numbers: str
    step: str


@final
@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Records of all epochs: expected = trained + bad + lost + left.

    The workers' records add up to trained - resumed + undone.
    """

    expected: int
    trained: int
    repeated: int
    bad: int
    lost: int
    left: int
    resumed: int
    """Trained before this master resumed the job."""
    undone: int
    """Trained since, and lost with all members of a ring. They also count as repeated."""


NO_RECORDS = RecordCounts(0, 0, 0, 0, 0, 0, 0, 0)


@final
@dataclass(frozen=True, slots=True)
class UpdateCounts:
    """Updates of the model: pushes that every server acknowledged; with --sync or on a ring, steps.

    The job has made applied + lost + repeated updates.
    """

    applied: int
    """In the model."""
    lost: int
    """Some parameter server was replaced by one without its part of them."""
    repeated: int
    """Undone: their records are trained again because the weights were lost, or a run was."""
    at_least: bool
    """Whether `lost` and `repeated` are lower bounds."""


NO_UPDATES = UpdateCounts(0, 0, 0, at_least=False)


@final
@dataclass(frozen=True, slots=True)
class ReceiptTotal:
    """Records of all planned epochs."""

    expected: int
    trained: int
    repeated: int
    bad: int
    lost: int
    left: int


@final
@dataclass(frozen=True, slots=True)
class ReceiptEpoch:
    """Records of one epoch that has begun, counted from 0."""

    epoch: int
    expected: int
    trained: int
    repeated: int
    bad: int
    lost: int
    left: int


@final
@dataclass(frozen=True, slots=True)
class NotBegun:
    """Planned epochs that have not begun, and their records."""

    epochs: int
    records: int


@final
@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Worker-seconds of one class and cause: see `elasticdl.time_use`."""

    kind: str
    """The class, such as `compute` or `wait`."""
    cause: str
    seconds: float
    process: str | None
    """The worker with the most of it; None if it is not known."""
    process_s: float | None
    """What that worker has of it."""


@final
@dataclass(frozen=True, slots=True)
class Goodput:
    """What the time of this run's workers went to: the seconds of all of `spent` are `seconds`.

    A worker that runs counts up to its last report, an ended one with all its time.
    """

    seconds: float
    share: float
    """Goodput: the share of the class `compute`, from 0 to 1."""
    spent: tuple[TimeSpent, ...]
    """The longest first."""

    @staticmethod
    def from_json(value: object) -> Goodput:
        """Parse the field of receipt.json, as `JobStatus.from_json`."""
        return _read(Goodput, "goodput", value)

    def by_kind(self) -> dict[str, float]:
        """Seconds of each class, the longest first."""
        seconds: dict[str, float] = {}
        for spent in self.spent:
            seconds[spent.kind] = seconds.get(spent.kind, 0.0) + spent.seconds
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


@final
@dataclass(frozen=True, slots=True)
class Receipt:
    """The final account of all records and updates.

    Records: expected = trained + bad + lost + left, in each epoch and in total.
    """

    epochs: tuple[ReceiptEpoch, ...]
    epochs_left_out: int
    """Number of earlier epochs that `epochs` omits."""
    not_begun: NotBegun
    total: ReceiptTotal
    repeated_at_least: bool
    """Whether `repeated` is a lower bound: an earlier run may have trained more than is known."""
    why_left: str | None
    """Why records are left after the end of the job or of its training."""
    counted: str | None
    """When this was counted, if before the end of the job."""
    updates: UpdateCounts | None = None
    """None if the job does not train, or in a receipt of an earlier version."""
    goodput: Goodput | None = None
    """None before a worker has reported, or in a receipt of an earlier version."""

    def to_json(self) -> dict[str, object]:
        """Return the content of receipt.json."""
        plain: dict[str, object] = _adapter(Receipt).dump_python(self, mode="json")
        return plain

    @staticmethod
    def from_json(value: object) -> Receipt:
        """Parse the content of receipt.json, as `JobStatus.from_json`."""
        return _read(Receipt, "receipt", value)


@final
@dataclass(frozen=True, slots=True)
class ScaleStatus:
    """low and high: the user's range; requested: launched workers; observed: ready workers."""

    low: int
    high: int
    requested: int
    observed: int
    autoscaled: int | None = None
    """The number of workers that `--autoscale` chose; None without it."""
    reason: str | None = None
    """Its newest decision, with what it measured; None before the first."""
    holds_back: str | None = None
    """Why it tries no other number now; None in a trial, and before it has looked."""


@final
@dataclass(frozen=True, slots=True)
class ClusterShare:
    """What a job has of a shared cluster, as far as its own pods tell.

    They do not tell how large the cluster is: `elasticdl top` asks the nodes.
    """

    weight: int
    placed: int
    """Workers that have a node."""
    low: int
    high: int
    """The range of workers that the job began with."""
    guaranteed: int | None
    """Workers that no other job preempts; None without rungs."""
    rung: int | None
    """The rung of the last of the placed workers; None if all are guaranteed, or without rungs."""


@final
@dataclass(frozen=True, slots=True)
class JobStatus:
    """Everything that the command line and the page show of a job."""

    action: str | None
    phase: str | None
    """A value of `master.core.job_context.Phase`."""
    message: str
    at_s: float
    epoch: int
    epochs: int
    version: int
    records: RecordCounts
    records_per_s: float
    shards: dict[str, ShardCounts]
    scale: ScaleStatus
    processes: tuple[ProcessStatus, ...]
    gauges: dict[str, dict[str, float]]
    """Measurements of processes, by process and name of the gauge."""
    loss: float | None
    metrics: dict[str, float | None]
    rounds: tuple[RoundStatus, ...]
    checkpoints: tuple[CheckpointStatus, ...]
    waiting: tuple[str, ...]
    """All current waits, with their reasons."""
    parked: tuple[str, ...]
    bad_examples: tuple[str, ...]
    receipt: Receipt | None
    outcome: str | None
    exit_code: int | None
    ring: RingStatus | None
    """None if workers train through parameter servers."""
    stall: StallStatus | None
    """None unless the job is stalled."""
    moved_s: float
    """When anything in the job last moved."""
    ends: dict[str, dict[str, int]]
    """Ended processes by role and cause; `processes` lists the newest 200 of them."""
    dropped: dict[str, int]
    """Messages that changed nothing, by cause: see `elasticdl.dropped`."""
    states: dict[str, dict[str, int]] = field(default_factory=dict)
    """Processes that have not ended, by role and state: `processes` lists 1,000 of them at most."""
    cluster_share: ClusterShare | None = None
    """None for a job on one machine, and for one that has ended."""
    updates: UpdateCounts | None = None
    """Those of the receipt; None if the job does not train, or if they are unknown."""
    steps: StepsStatus | None = None
    """None before the job has begun, on a ring, and if the job does not train."""

    @property
    def processes_left_out(self) -> int:
        """Processes that have not ended and that `processes` does not list."""
        listed = sum(process.state != "ended" for process in self.processes)
        return max(0, sum(sum(counts.values()) for counts in self.states.values()) - listed)

    @property
    def eta_s(self) -> float | None:
        """Return the seconds to the last record at the current rate.

        None if nothing moves or no more records are to come.
        """
        ends_early = self.exit_code is not None or bool(self.receipt and self.receipt.why_left)
        if ends_early or self.records_per_s <= 0 or self.records.left <= 0:
            return None
        return self.records.left / self.records_per_s

    def to_json(self) -> dict[str, object]:
        """Return values for `json.dumps`; `from_json` gives the same status again.

        Takes 2 ms for 1,000 processes.
        """
        rounds = tuple(replace(result, values=_finite(result.values)) for result in self.rounds)
        loss = _finite({"loss": self.loss})["loss"]
        status = replace(self, loss=loss, metrics=_finite(self.metrics), rounds=rounds)
        plain: dict[str, object] = _adapter(JobStatus).dump_python(status, mode="json")
        return plain

    @staticmethod
    def from_json(value: object) -> JobStatus:
        """Parse `to_json` of a master of this or a newer version.

        Ignores unknown fields. Raises ValueError that names each missing or mistyped field.
        """
        return _read(JobStatus, "status", value)


def unknown_status(message: str) -> JobStatus:
    """Return a status in which only `message` is known."""
    return JobStatus(
        action=None,
        phase=None,
        message=message,
        at_s=0.0,
        epoch=0,
        epochs=0,
        version=0,
        records=NO_RECORDS,
        records_per_s=0.0,
        shards={},
        scale=ScaleStatus(0, 0, 0, 0),
        processes=(),
        gauges={},
        loss=None,
        metrics={},
        rounds=(),
        checkpoints=(),
        waiting=(),
        parked=(),
        bad_examples=(),
        receipt=None,
        outcome=None,
        exit_code=None,
        ring=None,
        stall=None,
        moved_s=0.0,
        ends={},
        dropped={},
    )


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }


def _read(kind: Callable[..., T], what: str, value: object) -> T:
    from pydantic import ValidationError

    plain = dict(value) if isinstance(value, Mapping) else value
    try:
        parsed: T = _adapter(kind).validate_python(plain)
        return parsed
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or what}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ValueError(f"not a job {what} of this version: {'; '.join(problems)}") from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a class
    # Not for every `--help`: pydantic is slow to import and to compile a schema.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
