"""PaddlePaddle EDL's first experiment: 20 jobs, 10 s apart, each of 60 trainers and 10 servers.

Without elasticity the jobs that come later wait; here each has its first worker at once, and all
have the same share.
"""

from __future__ import annotations

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from experiments.cost_model import Experiment, PlannedJob
from experiments.figures import Figures
from tests.kubernetes.many_pods import NODES
from tests.kubernetes.sharing import spec_of
from tests.kubernetes.target_cluster import TargetCluster

JOBS, WORKERS, SERVERS, APART_S = 20, 60, 10, 10.0
SMALL_JOBS, SMALL_WORKERS, SMALL_SERVERS, SMALL_APART_S = 5, 10, 1, 1.0
WORKER_S, SMALL_WORKER_S = 60.0, 8.0
"""The work of a job for each of its workers."""
START_S, SMALL_START_S = 4.0, 0.2
SLOTS_A_NODE, SMALL_SLOTS_A_NODE = 32, 2
LIMIT_S = 1800.0


async def run(api: ApiServer, place: TargetCluster, namespace: str, *, small: bool) -> Figures:
    """Run it on all simulated nodes."""
    count, workers, servers = (
        (SMALL_JOBS, SMALL_WORKERS, SMALL_SERVERS) if small else (JOBS, WORKERS, SERVERS)
    )
    slots = SMALL_SLOTS_A_NODE if small else SLOTS_A_NODE
    request = f"cpu={32 // slots}"
    jobs = [
        PlannedJob(
            spec_of(
                f"job-{number}",
                num_workers=f"1:{workers}",
                num_ps_pods=servers,
                worker_resource_request=request,
                ps_resource_request=request,
            ),
            number * (SMALL_APART_S if small else APART_S),
            workers * (SMALL_WORKER_S if small else WORKER_S),
            SMALL_START_S if small else START_S,
        )
        for number in range(count)
    ]
    return await Experiment(api, namespace, slots * NODES, LIMIT_S).run(jobs)
