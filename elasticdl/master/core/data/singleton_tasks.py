"""Work that one worker does for all: the summary of an evaluation round, the export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticdl.cluster.base import ProcessName
from elasticdl.shard import SnapshotId, Task

MAX_FAILURES = 3


def attempts(failures: Sequence[str]) -> str:
    """All failures, one per attempt; the same error of several workers is reported once.

    A failure is `WORKER: REASON`.
    """
    lines, previous = [], ""
    for number, failure in enumerate(failures, 1):
        worker, _, reason = failure.partition(": ")
        if reason and reason == previous:
            lines.append(f"attempt {number}: {worker}: the same")
        else:
            lines.append(f"attempt {number}: {failure}")
        previous = reason
    return "\n".join(lines)


@dataclass(slots=True)
class SingletonTask:
    """One such task. Only its holder's reports count."""

    task: Task
    attempt: int = 0
    holder: ProcessName | None = None
    failures: list[str] = field(default_factory=list)
    done: bool = False

    def release(self, worker: ProcessName, reason: str = "") -> bool:
        """Take the task back from that worker; a `reason` counts as a failure.

        True if it failed too often.
        """
        if self.holder != worker:
            return False
        self.holder = None
        self.attempt += 1
        if reason:
            self.failures.append(reason)
        return len(self.failures) >= MAX_FAILURES

    def story(self) -> str:
        """All failures, one per attempt."""
        return attempts(self.failures)


@dataclass(slots=True)
class Export:
    """An open export.

    `number` is that of its folder below `--output`; None: it is `--output` itself. `snapshot` is
    the frozen view that it reads, `cutting` until that exists; None: the live parameters, which no
    longer change.
    """

    final: bool
    number: int | None
    since_s: float
    version: int
    snapshot: SnapshotId | None
    cutting: bool
    task: SingletonTask = field(default_factory=lambda: SingletonTask(Task.EXPORT))

    def is_at(self, path: str) -> bool:
        """Whether a reported path is that of this export, and not of an earlier one.

        The last one takes a higher number if another job has its own.
        """
        name = path.rpartition("/")[2]
        return (
            self.number is None
            or name == str(self.number)
            or (self.final and name.isdecimal() and int(name) > self.number)
        )
