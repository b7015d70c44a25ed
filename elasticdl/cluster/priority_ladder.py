"""The priority ladder: on which priority class of Kubernetes a process of a job stands. Pure.

Worker k of every job has level ⌈k / weight⌉. Rungs are ranges of levels, and a higher rung has a
lower priority. So the stock scheduler shares a full cluster by weighted max-min fairness: a new
job's first worker preempts the last worker of the job that has most. Masters, servers and the
workers that a job is guaranteed stand above all rungs. docs/explanation/sharing.md proves the
bounds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import count
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.job import JobSpec
from elasticdl.job_status import ClusterShare

PLACEHOLDER = "{rung}"
HIGHEST_NAMED = 32
"""The highest rung that `{rung}` stands for in a class that the user names."""
MASTER_CLASS, GUARANTEED_CLASS = "elasticdl-master", "elasticdl-guaranteed"
_RUNG_CLASS = "elasticdl-rung-{}"
_EXACT, _GROWTH, _MOST_WORKERS = 32, 16, 16_384
_MASTER_VALUE, _GUARANTEED_VALUE, _STEP = -90, -100, 10
"""Below 0, the priority of pods without a class: services go first. And below -10: the cluster
autoscaler neither buys nodes for these pods nor keeps one for them
(`--expendable-pods-priority-cutoff`)."""


def _last_levels() -> tuple[int, ...]:
    levels = [*range(1, _EXACT + 1)]
    while levels[-1] < _MOST_WORKERS:
        levels.append(levels[-1] + levels[-1] // _GROWTH)
    return tuple(levels)


LAST_LEVELS = _last_levels()
"""By rung, from rung 1: the last level that stands on it. Exact up to 32, then 1/16 longer each."""
RUNGS = len(LAST_LEVELS)


def rung_of(worker: int, weight: int = 1) -> int:
    """The rung of a job's k-th worker, k from 1, in a job of this weight.

    Its level is ⌈k / weight⌉. Beyond the last level all share the last rung.
    """
    level = -(-worker // weight)
    return min(RUNGS, bisect_left(LAST_LEVELS, level) + 1)


@final
@dataclass(frozen=True, slots=True)
class LadderClass:
    """A PriorityClass of the ladder."""

    name: str
    value: int
    description: str


def ladder_classes() -> tuple[LadderClass, ...]:
    """All classes, the highest priority first."""
    firsts = [1, *(last + 1 for last in LAST_LEVELS)]
    return (
        LadderClass(MASTER_CLASS, _MASTER_VALUE, "Masters of jobs."),
        LadderClass(
            GUARANTEED_CLASS,
            _GUARANTEED_VALUE,
            "Parameter servers, and the workers that a job never loses to another job.",
        ),
        *(
            LadderClass(
                _RUNG_CLASS.format(rung),
                _GUARANTEED_VALUE - _STEP * rung,
                _description(first, last, rung),
            )
            for rung, first, last in zip(count(1), firsts, LAST_LEVELS, strict=False)
        ),
    )


def _description(first: int, last: int, rung: int) -> str:
    if rung == RUNGS:
        return f"Workers from {first} on of every job, divided by the job's weight."
    workers = f"Worker {first}" if first == last else f"Workers {first} to {last}"
    return f"{workers} of every job, divided by the job's weight."


def guaranteed_workers(spec: JobSpec) -> int:
    """The workers that no other job preempts: MIN of MIN:MAX; the first one of a plain N.

    In a gang it is all N: one that lost a member would wait for it.
    """
    workers = spec.cluster.num_workers
    return workers.low if workers.low < workers.high or spec.gang_workers else 1


def share_of(spec: JobSpec, placed: int) -> ClusterShare:
    """What a job has of its cluster with `placed` workers on nodes.

    A worker takes the lowest free k, so these are the first ones, but for moments after an end.
    """
    workers, section = spec.cluster.num_workers, spec.kubernetes
    guaranteed, rung = None, rung_of(max(1, placed), section.weight)
    if PLACEHOLDER in section.worker_pod_priority:
        guaranteed, rung = 0, min(rung, HIGHEST_NAMED)
    elif spec.on_ladder and not section.worker_pod_priority:
        guaranteed = guaranteed_workers(spec)
    on_rung = guaranteed is not None and placed > guaranteed
    return ClusterShare(
        section.weight, placed, workers.low, workers.high, guaranteed, rung if on_rung else None
    )


def class_of(spec: JobSpec, role: Role, place: int) -> str:
    """The priority class of a process; '' for none. `place`, from 1, is k of worker k.

    A class that the user names takes precedence.
    """
    section = spec.kubernetes
    rung = rung_of(place, section.weight)
    if priority := str(getattr(section, f"{role}_pod_priority")):
        return priority.replace(PLACEHOLDER, str(min(rung, HIGHEST_NAMED)))
    if not spec.on_ladder:
        return ""
    match role:
        case Role.MASTER:
            return MASTER_CLASS
        case Role.PS:
            return GUARANTEED_CLASS
        case Role.WORKER:
            guaranteed = place <= guaranteed_workers(spec)
            return GUARANTEED_CLASS if guaranteed else _RUNG_CLASS.format(rung)


def classes_of(spec: JobSpec) -> tuple[str, ...]:
    """Every class that a pod of the job may get, in the order of their priority on the ladder."""
    places = {Role.MASTER: 1, Role.PS: spec.servers}
    places[Role.WORKER] = spec.cluster.num_workers.high
    classes = (
        class_of(spec, role, place)
        for role in (Role.MASTER, Role.PS, Role.WORKER)
        for place in range(1, places[role] + 1)
    )
    return tuple(name for name in dict.fromkeys(classes) if name)
