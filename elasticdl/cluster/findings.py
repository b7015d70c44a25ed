"""Findings of a check before a job starts, locally or on a cluster, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, final


class Weight(StrEnum):
    """The severity of a finding for the job."""

    FINE = "ok"
    WARNING = "warning"
    """The job can be submitted, but may have to wait or to do without something."""
    PROBLEM = "problem"
    """The job would not run."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    about: str
    weight: Weight
    text: str

    def as_dict(self) -> dict[str, str]:
        """Return a dictionary for JSON and YAML."""
        return {"about": self.about, "result": str(self.weight), "text": self.text}


def fine(about: str, text: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(about, Weight.FINE, text)


def warning(about: str, text: str) -> Finding:
    """A check of the weight WARNING."""
    return Finding(about, Weight.WARNING, text)


def problem(about: str, text: str) -> Finding:
    """A check of the weight PROBLEM."""
    return Finding(about, Weight.PROBLEM, text)


Findings: TypeAlias = list[Finding]


def worst(findings: Iterable[Finding]) -> Weight:
    """The highest severity of all findings."""
    weights = {finding.weight for finding in findings}
    return next(
        (weight for weight in (Weight.PROBLEM, Weight.WARNING) if weight in weights), Weight.FINE
    )
