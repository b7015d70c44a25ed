"""PaddlePaddle EDL's second experiment: 400 pods of a service beside six jobs of 15 and 10.

A hundred pods leave every 90 s (here 45 s) until a hundred are left, and come back as slowly. The
jobs may have more than 15 workers, so that they wish all that the service leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from experiments.cluster_experiment import Experiment, Lab, PlannedJob, cpu_of_slot, spec
from experiments.figures import Figures
from experiments.services import Services
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

ENDLESS = 1_000_000
LIMIT_S = 1800.0


@final
@dataclass(frozen=True, slots=True)
class Size:
    """The pods of the service change by `step` every `every_s`."""

    services: int
    step: int
    every_s: float
    jobs: int
    servers: int
    workers: int
    slots_a_node: int
    cost: CostModel


FULL = Size(400, 100, 45.0, 6, 10, 55, 24, CostModel(5.0, 4.0))
SMALL = Size(32, 8, 15.0, 2, 1, 30, 2, CostModel(0.5, 0.2))


def plan(size: Size) -> Iterator[tuple[float, int]]:
    """From how many seconds on the service has how many pods."""
    down = [size.services - size.step * number for number in range(4)]
    for number, count in enumerate([*down, *reversed(down[:-1]), size.services]):
        yield number * size.every_s, count


async def run(lab: Lab, *, small: bool) -> Figures:
    """Run it on all simulated nodes."""
    size = SMALL if small else FULL
    cpu = cpu_of_slot(size.slots_a_node)
    jobs = [
        PlannedJob(
            spec(
                f"job-{number}",
                cpu,
                num_workers=f"1:{size.workers}",
                num_ps_pods=size.servers,
            ),
            0.0,
            ENDLESS,
            size.cost,
        )
        for number in range(size.jobs)
    ]
    services = Services(lab.api, lab.namespace, cpu, tuple(plan(size)))
    return await Experiment(lab, size.slots_a_node * NODES, LIMIT_S, services).run(jobs)
