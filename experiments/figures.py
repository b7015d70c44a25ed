"""Figures of an experiment from what each job had over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import mean
from typing import Any, final

SETTLE_S = 10.0


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
    """By jobs and by services."""
    contended: bool
    """Whether jobs and services wish more slots than there are."""
    services: int = 0
    """Slots of services that have a node."""
    yielding: bool = False
    """Whether a service waits for its node, so that workers give way."""
    slots_held: int = 0
    """Slots of pods that have a node: also of those that start or drain."""


@final
@dataclass(frozen=True, slots=True)
class JobTimes:
    """When a job came, its master asked for pods, it had its first worker and ended, in seconds.

    inf: it never did.
    """

    arrived_s: float
    ordered_s: float
    first_worker_s: float
    ended_s: float


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What an experiment reports; what does not apply is None.

    A job wishes slots from the moment when its master asks for pods. `jain` and `utilisation` are
    of the contended time, `utilisation` without the time in which workers give way to services.
    """

    jain: float | None = None
    jain_settled: float | None = None
    """Without the first 10 s after a job came or ended."""
    utilisation: float | None = None
    utilisation_with_waits: float | None = None
    """Of all of the contended time."""
    held: float | None = None
    """As `utilisation`, with the slots of pods that start or drain."""
    first_worker_s: Mapping[str, float] = field(default_factory=dict)
    waiting_s: float | None = None
    """The mean time that a job waited for its first worker."""
    master_s: float | None = None
    """How much of it passed until the master asked for pods: it is a process of this machine."""
    makespan_s: float | None = None
    """From the first submission to the last trained record; None if a job did not end."""
    training_s: float | None = None
    """The part of it after the first master asked for pods."""
    ideal_s: float | None = None
    """A lower bound, of all work at once on all slots: see `fair_share`."""
    fair_s: float | None = None
    """As jobs come, with fair shares and no delay: see `fair_share`."""
    preemptions: int | None = None
    ended: int = 0
    """Jobs that ended."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What only this experiment has."""
    spans: Sequence[Span] = field(default=(), repr=False)

    def as_row(self) -> dict[str, Any]:
        """Everything but the spans, for JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in ("more", "spans")]
        row: dict[str, Any] = {name: getattr(self, name) for name in names}
        return {name: value for name, value in row.items() if value not in (None, {})} | dict(
            self.more
        )


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything; 1 for nothing at all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def figures(
    spans: Sequence[Span],
    jobs: Mapping[str, JobTimes],
    weights: Mapping[str, int],
    slots: int,
    ideal_s: float | None,
    fair_s: float | None,
    preemptions: int,
) -> Figures:
    """The figures of an experiment on `slots` equal slots."""
    contended = [span for span in spans if span.contended and span.end_s > span.begin_s]
    steady = [span for span in contended if not span.yielding]
    waits_s = {name: job.first_worker_s - job.arrived_s for name, job in jobs.items()}
    served_s = [wait_s for wait_s in waits_s.values() if wait_s < math.inf]
    started_s = [job.ordered_s - job.arrived_s for job in jobs.values() if job.ordered_s < math.inf]
    last_s = max(job.ended_s for job in jobs.values())
    return Figures(
        _fairness(contended, weights),
        _fairness(_settled(contended), weights),
        _utilisation(steady, slots),
        _utilisation(contended, slots),
        _utilisation(steady, slots, attrgetter("slots_held")),
        {name: wait_s for name, wait_s in waits_s.items() if wait_s < math.inf},
        mean(served_s) if served_s else None,
        mean(started_s) if started_s else None,
        last_s - min(job.arrived_s for job in jobs.values()) if last_s < math.inf else None,
        last_s - min(job.ordered_s for job in jobs.values()) if last_s < math.inf else None,
        ideal_s,
        fair_s,
        preemptions,
        sum(job.ended_s < math.inf for job in jobs.values()),
        spans=spans,
    )


def _utilisation(
    spans: Sequence[Span], slots: int, used: Callable[[Span], int] = attrgetter("slots_used")
) -> float | None:
    used_s = sum(used(span) * (span.end_s - span.begin_s) for span in spans)
    return used_s / (_whole_s(spans) * slots) if spans else None


def _fairness(spans: Sequence[Span], weights: Mapping[str, int]) -> float | None:
    """The mean of Jain's index over time; None if no jobs compete."""
    fair_s = sum(
        jain([count / weights[job] for job, count in span.workers.items()])
        * (span.end_s - span.begin_s)
        for span in spans
    )
    return fair_s / _whole_s(spans) if spans else None


def _settled(spans: Sequence[Span]) -> list[Span]:
    """The spans that begin when the same jobs have been there for a while."""
    settled: list[Span] = []
    jobs: set[str] = set()
    since_s = 0.0
    for span in spans:
        if span.workers.keys() != jobs:
            jobs, since_s = set(span.workers), span.begin_s
        if span.begin_s - since_s >= SETTLE_S:
            settled.append(span)
    return settled


def _whole_s(spans: Sequence[Span]) -> float:
    return sum(span.end_s - span.begin_s for span in spans)
