"""Figures of an experiment from what each job had over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Span:
    """A time in which nothing changed.

    `workers` are those that run, by job; only jobs that have arrived and not ended are in it.
    """

    begin_s: float
    end_s: float
    workers: Mapping[str, int]
    slots_used: int
    contended: bool
    """Whether the jobs wish more slots than there are."""


@final
@dataclass(frozen=True, slots=True)
class JobTimes:
    """When a job came, had its first worker and ended, in seconds of the experiment."""

    arrived_s: float
    first_worker_s: float
    ended_s: float


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What an experiment reports. `jain` and `utilisation` are of the contended time."""

    jain: float
    utilisation: float
    first_worker_s: Mapping[str, float]
    waiting_s: float
    """The mean time that a job waited for its first worker."""
    makespan_s: float
    ideal_s: float
    """All work at once on all slots for workers."""
    preemptions: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything; 1 for nothing at all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def figures(
    spans: Sequence[Span],
    jobs: Mapping[str, JobTimes],
    weights: Mapping[str, int],
    slots: int,
    ideal_s: float,
    preemptions: int,
) -> Figures:
    """The figures of an experiment on `slots` equal slots."""
    contended = [span for span in spans if span.contended and span.end_s > span.begin_s]
    whole_s = sum(span.end_s - span.begin_s for span in contended)
    fair_s = used_s = 0.0
    for span in contended:
        shares = [count / weights[job] for job, count in span.workers.items()]
        fair_s += jain(shares) * (span.end_s - span.begin_s)
        used_s += span.slots_used * (span.end_s - span.begin_s)
    waits_s = {name: job.first_worker_s - job.arrived_s for name, job in jobs.items()}
    return Figures(
        fair_s / whole_s if whole_s else 1.0,
        used_s / (whole_s * slots) if whole_s else 0.0,
        waits_s,
        sum(waits_s.values()) / len(waits_s),
        max(job.ended_s for job in jobs.values()) - min(job.arrived_s for job in jobs.values()),
        ideal_s,
        preemptions,
    )
