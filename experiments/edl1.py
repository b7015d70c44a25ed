"""PaddlePaddle EDL's first experiment: 20 jobs, 10 s apart, each of 60 trainers and 10 servers.

Without elasticity the jobs that come later wait; here each has its first worker at once, and all
have the same share.
"""

from __future__ import annotations

from experiments.cluster_experiment import Experiment, Lab, PlannedJob, cpu_of_slot, spec
from experiments.figures import Figures
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

JOBS, WORKERS, SERVERS, APART_S = 20, 60, 10, 10.0
SMALL_JOBS, SMALL_WORKERS, SMALL_SERVERS, SMALL_APART_S = 5, 10, 1, 1.0
SHARDS_A_WORKER = 12
COST, SMALL_COST = CostModel(5.0, 4.0), CostModel(3.0, 0.2)
SLOTS_A_NODE, SMALL_SLOTS_A_NODE = 16, 2
LIMIT_S = 1800.0


async def run(lab: Lab, *, small: bool) -> Figures:
    """Run it on all simulated nodes."""
    count, workers, servers = (
        (SMALL_JOBS, SMALL_WORKERS, SMALL_SERVERS) if small else (JOBS, WORKERS, SERVERS)
    )
    slots = SMALL_SLOTS_A_NODE if small else SLOTS_A_NODE
    jobs = [
        PlannedJob(
            spec(
                f"job-{number}", cpu_of_slot(slots), num_workers=f"1:{workers}", num_ps_pods=servers
            ),
            number * (SMALL_APART_S if small else APART_S),
            workers * SHARDS_A_WORKER,
            SMALL_COST if small else COST,
        )
        for number in range(count)
    ]
    return await Experiment(lab, slots * NODES, LIMIT_S).run(jobs)
