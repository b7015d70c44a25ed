"""The status of a job: one value from the master to every reader, with its JSON.

Times are seconds since the job began. What is not known is None; a count is 0 until it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar, final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class ShardCounts:
    """Shards of one task by state: of all epochs of training or prediction, of the current round of
    evaluation.
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
    """A word of `master.core.processes.table.Life`; from outside also `pending` and `running`."""
    since_s: float
    started_s: float
    where: str | None
    """The machine, and on it the pid."""
    cause: str | None
    """A word of `failures.Cause`, once the process has ended."""
    message: str
    shard: str | None
    """The work in hand, such as `training shard 3: 20 of 64`."""
    records: int | None
    """Settled records of the receipt. On a ring: an even share of each step."""
    evaluated: int | None
    """Validation records beside a training, of finished shards. They are in no receipt."""


@final
@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round of evaluation. `values` is empty and `state` says how far it is while it lasts."""

    round: int
    version: int
    epoch: int
    state: str
    values: dict[str, float]


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
    """The ring.

    `formed` is the newest generation that all of its members entered; `reason` says why it is as it
    is.
    """

    generation: int
    formed: int
    members: tuple[str, ...]
    reason: str


@final
@dataclass(frozen=True, slots=True)
class StallStatus:
    """A job that stands still: since when nothing moved, what it waits for, from whom and since
    when, and what was done about it.
    """

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

    What workers did comes to trained - resumed + undone.
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
    """Trained since, and lost with all members of a ring. They count as repeated, too."""


NO_RECORDS = RecordCounts(0, 0, 0, 0, 0, 0, 0, 0)


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
    """Records of one epoch that was begun, from 0."""

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
    """Planned epochs that were not begun, and their records."""

    epochs: int
    records: int


@final
@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of every record: expected = trained + bad + lost + left, in each epoch and in
    total.
    """

    epochs: tuple[ReceiptEpoch, ...]
    epochs_left_out: int
    """Earlier epochs that `epochs` does not list."""
    not_begun: NotBegun
    total: ReceiptTotal
    repeated_at_least: bool
    """A run before may have trained more of the repeated records than is known."""
    why_left: str | None
    """Of a job that ended, or whose training ended early, with records left."""
    counted: str | None
    """When this was counted, if that was before the end of the job."""

    def to_json(self) -> dict[str, object]:
        """As receipt.json has it."""
        plain: dict[str, object] = _receipts().dump_python(self, mode="json")
        return plain

    @staticmethod
    def from_json(value: object) -> Receipt:
        """The inverse, as `JobStatus.from_json`."""
        return _read(_receipts(), "receipt", value)


@final
@dataclass(frozen=True, slots=True)
class ScaleStatus:
    """low and high: the range that the user wants; requested: workers ordered and not ended;
    observed: workers that are ready.
    """

    low: int
    high: int
    requested: int
    observed: int


@final
@dataclass(frozen=True, slots=True)
class JobStatus:
    """Everything that the command line and the page show of a job."""

    action: str | None
    phase: str | None
    """A word of `master.core.job_context.Phase`."""
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
    metrics: dict[str, float]
    rounds: tuple[RoundStatus, ...]
    checkpoints: tuple[CheckpointStatus, ...]
    updates_lost: int
    waiting: tuple[str, ...]
    """Everything that is waited for now, with its reason."""
    parked: tuple[str, ...]
    bad_examples: tuple[str, ...]
    receipt: Receipt | None
    outcome: str | None
    exit_code: int | None
    ring: RingStatus | None
    """None where workers train through parameter servers."""
    stall: StallStatus | None
    """None while the job does not stand still."""
    moved_s: float
    """When anything in the job last moved."""
    ends: dict[str, dict[str, int]]
    """Ended processes by role and cause; `processes` has the newest 200 of them."""
    dropped: dict[str, int]
    """Messages that changed nothing, by cause: see `elasticdl.dropped`."""

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last record at the present rate.

        None while nothing moves, and when no more records are to come.
        """
        ends_early = self.exit_code is not None or bool(self.receipt and self.receipt.why_left)
        if ends_early or self.records_per_s <= 0 or self.records.left <= 0:
            return None
        return self.records.left / self.records_per_s

    def to_json(self) -> dict[str, object]:
        """Values that `json.dumps` takes: NaN and infinity stay numbers.

        2 ms for 1,000 processes.
        """
        plain: dict[str, object] = _statuses().dump_python(self, mode="json")
        return plain

    @staticmethod
    def from_json(value: object) -> JobStatus:
        """The inverse of `to_json`, of a master of this or a newer version.

        Fields that this version does not know are ignored. Raises ValueError that names each field
        that is missing or of a wrong type.
        """
        return _read(_statuses(), "status", value)


def unknown_status(message: str) -> JobStatus:
    """The status of a job of which only `message` is known."""
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
        updates_lost=0,
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


def _read(adapter: TypeAdapter[T], what: str, value: object) -> T:
    from pydantic import ValidationError

    try:
        return adapter.validate_python(dict(value) if isinstance(value, Mapping) else value)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc'])) or what}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)
        ]
        raise ValueError(f"not a job {what} of this version: {'; '.join(problems)}") from error


# Not for every `--help`: pydantic takes its time to import, and to compile a schema.
@cache
def _statuses() -> TypeAdapter[JobStatus]:
    from pydantic import TypeAdapter

    return TypeAdapter(JobStatus)


@cache
def _receipts() -> TypeAdapter[Receipt]:
    from pydantic import TypeAdapter

    return TypeAdapter(Receipt)
