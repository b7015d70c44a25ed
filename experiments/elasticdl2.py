"""ElasticDL's second experiment: a training job takes what a service leaves over a day."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from experiments.cluster_experiment import Experiment, Lab, PlannedJob, cpu_of_slot, spec
from experiments.edl2 import ENDLESS
from experiments.figures import Figures
from experiments.services import Services
from experiments.simulated_processes import CostModel
from tests.kubernetes.many_pods import NODES

HOURS = 24
LIMIT_S = 900.0


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A service has from `least` to `most` pods. An hour of its day lasts `hour_s`."""

    least: int
    most: int
    hour_s: float
    servers: int
    slots_a_node: int
    cost: CostModel


FULL = Size(30, 120, 8.0, 4, 8, CostModel(2.0, 2.0))
SMALL = Size(8, 30, 3.0, 1, 2, CostModel(0.5, 0.2))


def plan(size: Size) -> Iterator[tuple[float, int]]:
    """The pods of the service by time: a sine, the fewest at night."""
    middle, swing = (size.most + size.least) / 2, (size.most - size.least) / 2
    for hour in range(HOURS + 1):
        load = middle - swing * math.cos(2 * math.pi * hour / HOURS)
        yield hour * size.hour_s, round(load)


async def run(lab: Lab, *, small: bool) -> Figures:
    """Run it on all simulated nodes."""
    size = SMALL if small else FULL
    cpu, slots = cpu_of_slot(size.slots_a_node), size.slots_a_node * NODES
    workers = slots - size.servers - size.least
    job = PlannedJob(
        spec("training", cpu, num_workers=f"1:{workers}", num_ps_pods=size.servers),
        0.0,
        ENDLESS,
        size.cost,
    )
    services = Services(lab.api, lab.namespace, cpu, tuple(plan(size)))
    return await Experiment(lab, slots, LIMIT_S, services).run([job])
