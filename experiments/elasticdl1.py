"""ElasticDL's first experiment: two jobs of 13 CPUs on 24 CPUs, and two of 4 GPUs on 6.

Gang scheduling runs one after the other. Here the second job starts at once on what is left, and
both come to one half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from experiments.cluster_experiment import (
    Experiment,
    Lab,
    PlannedJob,
    cordoned,
    cpu_of_slot,
    spec,
)
from experiments.figures import Figures
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

SLOTS_A_NODE = 2
SMALL_SHARDS_A_WORKER = 12
COST, SMALL_COST = CostModel(1.0, 2.0), CostModel(1.0, 0.2)
LIMIT_S = 900.0


@final
@dataclass(frozen=True, slots=True)
class Size:
    """`workers` of each of the two jobs, and slots for all.

    With `shards_a_worker` shards of 1 s a job that has all of its workers takes half of what
    the published two took one after the other.
    """

    workers: int
    slots: int
    shards_a_worker: int


CPUS, GPUS = Size(13, 24, 395), Size(4, 6, 482)


def alone_s(cost: CostModel, shards_a_worker: int) -> float:
    """How long a job takes that has all of its workers."""
    return cost.start_s + shards_a_worker * cost.shard_s


async def run(lab: Lab, *, small: bool, least_workers: int = 0) -> Figures:
    """Run it with 13 CPUs each on 24. No worker computes before so many of both jobs are ready."""
    return await _run(lab, CPUS, small=small, least_workers=least_workers)


async def run_gpus(lab: Lab, *, small: bool) -> Figures:
    """Run it with 4 GPUs each on 6."""
    return await _run(lab, GPUS, small=small)


async def _run(lab: Lab, size: Size, *, small: bool, least_workers: int = 0) -> Figures:
    cost = SMALL_COST if small else COST
    each = SMALL_SHARDS_A_WORKER if small else size.shards_a_worker
    cpu = cpu_of_slot(SLOTS_A_NODE)
    jobs = [
        PlannedJob(
            spec(
                name,
                cpu,
                num_workers=f"1:{size.workers}",
                num_ps_pods=1,
                ps_resource_request="",
            ),
            0.05 * alone_s(cost, each) * number,
            size.workers * each,
            cost,
        )
        for number, name in enumerate(("first", "second"))
    ]
    with cordoned(lab.place, NODES - size.slots // SLOTS_A_NODE):
        experiment = Experiment(lab, size.slots, LIMIT_S, least_workers=least_workers)
        found = await experiment.run(jobs)
    return replace(found, more={"one_after_the_other_s": 2 * alone_s(cost, each)})
