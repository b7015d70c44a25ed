"""One stall, and the latest step taken against it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elasticdl.job_status import StallStatus
from elasticdl.master.core.obligation import Obligation


class StallStep(StrEnum):
    """The latest step taken against a stall."""

    NAMED = "named"
    ASKED = "asked for their state"
    FORMED = "new ring generation formed"
    REPLACED = "process replaced"
    ENDED = "job ended"


@dataclass(slots=True)
class Stall:
    """One stall.

    `since_s`: the last movement before it. `acted_s`: when the last step was taken. `owed`: what
    the job waits for, the most urgent first.
    """

    since_s: float
    acted_s: float
    owed: list[Obligation]
    step: StallStep = StallStep.NAMED

    def status(self, bound_s: float) -> StallStatus:
        """This stall for the status; `bound_s`: how long the job may be quiet."""
        owed = self.owed[0]
        return StallStatus(
            since_s=self.since_s,
            bound_s=bound_s,
            waits_for=owed.what,
            debtors=tuple(map(str, owed.debtors)),
            owed_since_s=owed.since_s,
            numbers=owed.numbers,
            step=str(self.step),
        )
