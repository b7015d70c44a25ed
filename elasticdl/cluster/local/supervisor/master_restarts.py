"""Whether a master that ended is started again, and when."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ExitStatus
from elasticdl.errors import ExitCode

_REFUSED = frozenset(
    int(code)
    for code in ExitCode
    # Python itself exits with 0 and 1, so without an outcome these mean a crash.
    if code.is_final and code not in (ExitCode.DONE, ExitCode.JOB_FAILED)
)
_ASKED = frozenset({signal.SIGTERM, signal.SIGINT})


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """How often a master is started again while the job makes no progress.

    `pauses_s` are the pauses before the restarts of masters that lived less than `short_s`, one
    after the other; after the last one the job ends. `most` bounds masters that lived longer, too.
    """

    short_s: float = 30.0
    pauses_s: tuple[float, ...] = (0.0, 0.0, 0.5, 1.0, 2.0)
    most: int = 20


@final
class Restarts:
    """Counts the masters in a row that did not bring the job further.

    Progress is a number of records above that of every master before: a master that goes back to a
    checkpoint must get beyond its predecessors.
    """

    def __init__(self, limits: RestartLimits = RestartLimits()) -> None:
        self._limits = limits
        self._farthest = self._counted = 0
        self._short = self._fruitless = 0

    def progressed(self, records: int) -> None:
        """Note the records that the job has done."""
        self._farthest = max(self._farthest, records)

    @property
    def in_a_row(self) -> int:
        """How many masters in a row have ended without progress."""
        return self._fruitless

    def delay_s(self, lived_s: float) -> float | None:
        """Return the pause before the next master; None if there should be none.

        `lived_s` is how long the master lived that has ended.
        """
        if self._farthest > self._counted:
            self._counted = self._farthest
            self._short = self._fruitless = 0
        self._fruitless += 1
        self._short = self._short + 1 if lived_s < self._limits.short_s else 0
        if self._short > len(self._limits.pauses_s) or self._fruitless > self._limits.most:
            return None
        return self._limits.pauses_s[self._short - 1] if self._short else 0.0


def ended_on_purpose(status: ExitStatus) -> bool:
    """Whether a master that recorded no outcome is over all the same.

    It was refused or interrupted, or a person ended it before it could handle the signal.
    """
    return status.exit_code in _REFUSED or status.signal in _ASKED


def how(status: ExitStatus) -> str:
    """Return an end in words."""
    if status.signal is not None:
        return f"signal {signal.Signals(status.signal).name}"
    return status.reason or f"exit code {status.exit_code}"
