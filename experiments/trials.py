"""A batch of trials, each of at most four workers: side by side, and one after the other."""

from __future__ import annotations

from dataclasses import replace

from experiments.cluster_experiment import (
    Experiment,
    Lab,
    PlannedJob,
    cordoned,
    cpu_of_slot,
    spec,
)
from experiments.elasticdl1 import SLOTS_A_NODE
from experiments.figures import Figures
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

TRIALS, SMALL_TRIALS = 8, 4
WORKERS = 4
SLOTS, SMALL_SLOTS = 16, 8
SHARDS_A_WORKER, SMALL_SHARDS_A_WORKER = 20, 4
COST, SMALL_COST = CostModel(1.0, 2.0), CostModel(2.0, 0.2)
LIMIT_S = 900.0


async def run(lab: Lab, *, small: bool) -> Figures:
    """Run both; `makespan_s` is of the trials side by side."""
    slots = SMALL_SLOTS if small else SLOTS
    with cordoned(lab.place, NODES - slots // SLOTS_A_NODE):
        found = await Experiment(lab, slots, LIMIT_S).run(_trials("together", small=small))
        one_by_one_s = 0.0
        for trial in _trials("alone", small=small):
            alone = await Experiment(lab, slots, LIMIT_S).run([trial])
            assert alone.makespan_s is not None, "a trial that does not end raises TimeoutError"
            one_by_one_s += alone.makespan_s
    return replace(found, more={"one_after_the_other_s": one_by_one_s})


def _trials(name: str, *, small: bool) -> list[PlannedJob]:
    each = SMALL_SHARDS_A_WORKER if small else SHARDS_A_WORKER
    return [
        PlannedJob(
            spec(
                f"{name}-{number}",
                cpu_of_slot(SLOTS_A_NODE),
                num_workers=f"1:{WORKERS}",
                num_ps_pods=1,
                ps_resource_request="",
            ),
            0.0,
            WORKERS * each,
            SMALL_COST if small else COST,
        )
        for number in range(SMALL_TRIALS if small else TRIALS)
    ]
