"""Work that one worker does for all: the summary of an evaluation round, the export."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticdl.cluster.base import ProcessName
from elasticdl.shard import Task

MAX_FAILURES = 3


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
        return "\n".join(
            f"attempt {number}: {reason}" for number, reason in enumerate(self.failures, 1)
        )
