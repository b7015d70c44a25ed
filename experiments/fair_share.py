"""How long jobs take that share slots without any delay: at least, and with fair shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

_DONE_S = 1e-9


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs: `work_s` is the time that one worker would compute."""

    arrives_s: float
    work_s: float
    workers: int
    """The most that it uses."""
    servers: int
    """Slots that it holds besides."""


def ideal_makespan_s(jobs: Sequence[Demand], slots: int) -> float:
    """Return a lower bound of the seconds until all work is done, whenever the jobs come.

    All slots always compute or hold a server. Each job has its servers only as long as its work
    takes with all the workers that it can have.
    """
    used_s = 0.0
    for job in jobs:
        alone_s = job.work_s / min(job.workers, slots - job.servers)
        used_s += job.work_s + job.servers * alone_s
    return used_s / slots


def fair_makespan_s(jobs: Sequence[Demand], slots: int) -> float:
    """Return the seconds until all work is done if each job always has its max-min fair share.

    Workers and servers start, move and end in no time. A job computes as fast as it has workers.
    The slots hold the servers of all jobs that are there at a time.
    """
    now_s, left = 0.0, [job.work_s for job in jobs]
    while any(left):
        here = [n for n, job in enumerate(jobs) if left[n] and job.arrives_s <= now_s]
        later_s = [job.arrives_s - now_s for job in jobs if job.arrives_s > now_s]
        free = slots - sum(jobs[number].servers for number in here)
        shares = dict(zip(here, _shares([jobs[n].workers for n in here], free), strict=True))
        ends_s = [left[number] / share for number, share in shares.items() if share > 0]
        step_s = min([*later_s, *ends_s])
        for number, share in shares.items():
            rest_s = left[number] - share * step_s
            left[number] = rest_s if rest_s > _DONE_S * jobs[number].work_s else 0.0
        now_s += step_s
    return now_s


def _shares(limits: Sequence[int], slots: float) -> list[float]:
    """Max-min fair shares: nobody has more than its limit, and what it leaves goes to the rest."""
    shares, left = [0.0] * len(limits), slots
    for done, number in enumerate(sorted(range(len(limits)), key=lambda one: limits[one])):
        shares[number] = min(limits[number], left / (len(limits) - done))
        left -= shares[number]
    return shares
