"""Volcano's experiment: 1, 2 and 5 jobs of 2 servers and 4 workers, with and without a gang.

A service has all slots until all jobs wait. No worker computes before all four of its job are
there. Two jobs that hold half of the slots each wait for ever.
"""

from __future__ import annotations

from typing import Any

from experiments.cluster_experiment import (
    Experiment,
    Lab,
    PlannedJob,
    cordoned,
    cpu_of_slot,
    spec,
)
from experiments.figures import Figures
from experiments.services import Services
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

COUNTS = (1, 2, 5)
SERVERS, WORKERS = 2, 4
SLOTS, SLOTS_A_NODE = 10, 2
SHARDS_A_WORKER, SMALL_SHARDS_A_WORKER = 10, 4
COST, SMALL_COST = CostModel(1.0, 2.0, WORKERS), CostModel(0.5, 0.2, WORKERS)
STALL_S = 25.0
"""For each job. Jobs that are not done by then wait for each other."""
LIMIT_S = 600.0
FREED_S = 5.0


async def run(lab: Lab, *, small: bool) -> Figures:
    """Run each number of jobs, first alone and then in gangs. The cluster has gangs of its own."""
    rows = []
    with cordoned(lab.place, NODES - SLOTS // SLOTS_A_NODE):
        for gang in (False, True):
            for count in COUNTS:
                rows.append(await _row(lab, count, gang=gang, small=small))
    return Figures(more={"runs": rows})


async def _row(lab: Lab, count: int, *, gang: bool, small: bool) -> dict[str, Any]:
    each = SMALL_SHARDS_A_WORKER if small else SHARDS_A_WORKER
    jobs = [
        PlannedJob(
            spec(
                f"{'gang' if gang else 'alone'}-{count}-{number}",
                cpu_of_slot(SLOTS_A_NODE),
                num_workers=str(WORKERS),
                num_ps_pods=SERVERS,
                gang=gang,
            ),
            0.0,
            WORKERS * each,
            SMALL_COST if small else COST,
        )
        for number in range(count)
    ]
    services = Services(
        lab.api, lab.namespace, cpu_of_slot(SLOTS_A_NODE), ((0.0, SLOTS), (FREED_S, 0))
    )
    found = await Experiment(lab, SLOTS, LIMIT_S, services).run(jobs, stall_s=count * STALL_S)
    freed_s = max(span.end_s for span in found.spans if span.services)
    took_s = found.makespan_s - freed_s if found.makespan_s is not None else None
    return {
        "gang": gang,
        "jobs": count,
        "ended": found.ended,
        "makespan_s": took_s,
        "slots_held_at_the_end": found.spans[-1].slots_used,
    }
