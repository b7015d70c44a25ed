"""What a look before a job starts has found, here or on a cluster: plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, final


class Weight(StrEnum):
    """What a finding means for the job."""

    FINE = "ok"
    WARNING = "warning"
    """It can be submitted, and may have to wait or to do without."""
    PROBLEM = "problem"
    """It would not run."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    weight: Weight
    text: str

    def as_dict(self) -> dict[str, str]:
        """For JSON and YAML."""
        return {"about": self.about, "result": str(self.weight), "text": self.text}


Findings: TypeAlias = list[Finding]


def worst(findings: Iterable[Finding]) -> Weight:
    """Of all of them."""
    weights = {finding.weight for finding in findings}
    return next(
        (weight for weight in (Weight.PROBLEM, Weight.WARNING) if weight in weights), Weight.FINE
    )
