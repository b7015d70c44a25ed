"""ElasticDL's first experiment: two jobs of 13 CPUs on 24 CPUs.

Gang scheduling runs one after the other. Here the second job starts at once on the 11 that are
left, and both come to 12.
"""

from __future__ import annotations

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from experiments.cost_model import Experiment, PlannedJob
from experiments.figures import Figures
from tests.kubernetes.sharing import SLOTS, spec_of
from tests.kubernetes.target_cluster import TargetCluster

WORKERS, CPUS = 13, 24
ALONE_S, SMALL_ALONE_S = 240.0, 10.0
"""How long a job takes that has all of its workers."""
START_S, SMALL_START_S = 4.0, 0.2
LIMIT_S = 900.0
BUSY_NODES = (SLOTS - CPUS) // 2


async def run(api: ApiServer, place: TargetCluster, namespace: str, *, small: bool) -> Figures:
    """Run it on 12 of the simulated nodes, which have two slots each."""
    alone_s = SMALL_ALONE_S if small else ALONE_S
    start_s = SMALL_START_S if small else START_S
    jobs = [
        PlannedJob(
            spec_of(
                name,
                num_workers=f"1:{WORKERS}",
                distribution_strategy="AllreduceStrategy",
                ps_resource_request="",
            ),
            0.05 * alone_s * number,
            WORKERS * alone_s,
            start_s,
        )
        for number, name in enumerate(("first", "second"))
    ]
    idle = [f"fake-{number}" for number in range(BUSY_NODES)]
    place.kubectl("cordon", *idle)
    try:
        return await Experiment(api, namespace, CPUS, LIMIT_S).run(jobs)
    finally:
        place.kubectl("uncordon", *idle)
