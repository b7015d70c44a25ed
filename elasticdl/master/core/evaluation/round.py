"""One round of evaluation: its stage, its sums, its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.singleton_tasks import SingletonTask
from elasticdl.master.core.events import Numbers
from elasticdl.shard import SnapshotId, Task


class Stage(StrEnum):
    """The stage of a round."""

    CUTTING = "waiting for a frozen view"
    LEASING = "computing metrics"
    SUMMARISING = "summarising"


@dataclass(slots=True)
class Round:
    """An open round. `snapshot` is None on live parameters (`elasticdl evaluate`, or a ring)."""

    number: int
    final: bool
    since_s: float
    stage: Stage
    snapshot: SnapshotId | None
    ledger: Ledger
    version: int = 0
    epoch: int = 0
    sums: dict[str, list[list[float]]] = field(default_factory=dict)
    summary: SingletonTask = field(default_factory=lambda: SingletonTask(Task.SUMMARY))
    added_up_s: float = 0.0
    """When its last shard was done."""

    def not_addable(self, metrics: dict[str, tuple[Numbers, ...]]) -> str | None:
        """Why a shard's metric states cannot be added to the sums; None if they can."""
        if self.sums and self.sums.keys() != metrics.keys():
            return f"its metrics are {sorted(metrics)}, but other shards have {sorted(self.sums)}"
        for name, arrays in metrics.items():
            before = self.sums.get(name)
            if before is not None and [len(array) for array in before] != [
                len(array) for array in arrays
            ]:
                return f"the state of metric {name!r} differs in shape from that of other shards"
        return None

    def add(self, metrics: dict[str, tuple[Numbers, ...]]) -> None:
        """Add the metric states of one shard."""
        for name, arrays in metrics.items():
            if name not in self.sums:
                self.sums[name] = [list(array) for array in arrays]
            else:
                self.sums[name] = [
                    [a + b for a, b in zip(total, other, strict=True)]
                    for total, other in zip(self.sums[name], arrays, strict=True)
                ]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a round. `loss`: the newest training loss at that time."""

    round: int
    version: int
    epoch: int
    at_s: float
    values: dict[str, float]
    loss: float | None = None
