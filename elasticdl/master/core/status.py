"""The job as people see it: frozen, and JSON by `to_json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """Shards of one task by state: of all epochs of training or prediction, of the current round of
    evaluation.
    """

    todo: int = 0
    leased: int = 0
    done: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process.

    `state` is a word of `processes.Life`, `cause` one of `failures.Cause` once it has ended.
    """

    name: str
    role: str
    state: str
    since_s: float
    started_s: float
    where: str = ""
    cause: str = ""
    message: str = ""
    shard: str = ""
    """What it works on, in words."""
    records: int = 0
    """Of the receipt: those that this worker did and that are settled.

    On a ring its even share of each step.
    """
    evaluated: int = 0
    """Validation records, beside a training: of shards that it finished. They are in no receipt."""


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """A round of evaluation.

    `values` is empty while it is under way; `state` says how far it is.
    """

    round: int
    version: int
    epoch: int
    state: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """A complete checkpoint."""

    version: int
    path: str
    bytes: int
    at_s: float


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


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Records of all epochs of the job: expected = trained + bad + lost + left.

    What workers did comes to trained - resumed + undone.

    `resumed`: trained before this master took the job on. `undone`: trained since, and lost with
    all that had the weights of a ring; they
    count among those repeated. `records_per_s` is filled in by whoever watches over time.
    """

    expected: int = 0
    trained: int = 0
    repeated: int = 0
    bad: int = 0
    lost: int = 0
    left: int = 0
    resumed: int = 0
    undone: int = 0
    records_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ScaleStatus:
    """plan: range that the user wants; requested: workers ordered and not ended; observed: workers
    that are ready.
    """

    low: int
    high: int
    requested: int
    observed: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Everything that the CLI and the page show. Times are seconds since the job began."""

    action: str
    phase: str
    message: str
    at_s: float
    epoch: int
    epochs: int
    version: int
    records: RecordCounts
    shards: dict[str, ShardCounts]
    scale: ScaleStatus
    processes: tuple[ProcessStatus, ...]
    loss: float | None
    metrics: dict[str, float]
    rounds: tuple[RoundStatus, ...]
    checkpoints: tuple[CheckpointStatus, ...]
    updates_lost: int
    waiting: tuple[str, ...]
    """Everything that is waited for now, with its reason."""
    parked: tuple[str, ...]
    bad_examples: tuple[str, ...]
    receipt: dict[str, Any]
    outcome: str = ""
    exit_code: int | None = None
    ring: RingStatus | None = None
    """None where workers train through parameter servers."""
    stall: StallStatus | None = None
    """None while the job does not stand still."""
    moved_s: float = 0.0
    """When anything in the job last moved."""
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Processes that have ended, by role and cause; `processes` has the newest 200 of them."""

    dropped: dict[str, int] = field(default_factory=dict)
    """Messages that changed nothing, by cause: see `elasticdl.dropped`."""

    def to_json(self) -> str:
        """All of it.

        Not-a-number and infinite losses are written as Python does (`NaN`, `Infinity`).
        """
        return json.dumps(asdict(self))
