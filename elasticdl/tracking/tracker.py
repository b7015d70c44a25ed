"""The interface to what gets a job's curves or spans, and the values that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, final

T = TypeVar("T", contravariant=True)


@final
@dataclass(frozen=True, slots=True)
class Run:
    """What a tracker shows of a job.

    `key` identifies the job's run in all trackers, whichever master writes it.
    """

    key: str
    name: str
    job_dir: Path
    params: Mapping[str, str]
    uri: str = ""
    """Address from the flag; '' leaves it to the tracker's own environment variables."""


@final
@dataclass(frozen=True, slots=True)
class MetricRow:
    """Values at one version of the model; `at` is unix time in seconds."""

    step: int
    at: float
    values: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the job ended. `summary` has the receipt's numbers and the last metrics."""

    exit_code: int
    state: str
    """`done`, `stopped` or `failed`."""
    message: str
    version: int = 0
    summary: Mapping[str, float] = field(default_factory=dict)


class Tracker(Protocol[T]):
    """One run of one tracker.

    Methods block no longer than about half a minute. They raise whatever the tracker's library
    raises. After any error the run is opened again: somebody may mend its cause while the job runs.
    """

    name: str
    """As people know it."""

    def open(self, run: Run) -> str:
        """Begin the run, or continue it; return where people find it. It may be called again."""

    def log(self, rows: Sequence[T]) -> bool:
        """Add rows, and return whether they are safe if this process is killed.

        Rows that an earlier call could not add come again.
        """

    def leave(self) -> None:
        """Leave the run to the process of the next master: all rows are safe afterwards."""

    def close(self, end: RunEnd) -> None:
        """End the run."""
