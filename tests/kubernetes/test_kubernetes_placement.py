"""Where the stock scheduler puts a job's pods, on simulated nodes in racks and zones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.cluster_setup import set_up
from elasticdl.cluster.kubernetes.labels import ROLE_LABEL
from elasticdl.cluster.kubernetes.setup_objects import cluster_objects
from tests.kubernetes.many_pods import NODES
from tests.kubernetes.sharing import placed, running_job, spec_of, until
from tests.kubernetes.target_cluster import TargetCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
RACK, ZONE = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"
NODES_A_RACK, NODES_A_ZONE = 5, 10
JOBS, SERVERS, WORKERS = 3, 2, 8
"""A rack has ten slots, so each job fits into one, and three jobs into the four racks."""


@dataclass(frozen=True)
class Traffic:
    """The share of the exchange between workers and servers that crosses racks, and zones.

    Each worker exchanges as much with every server.
    """

    racks: float
    zones: float
    server_nodes: int
    """Nodes with servers, of all jobs."""


@contextlib.contextmanager
def racks(place: TargetCluster) -> Iterator[None]:
    """Four racks in two zones, of the simulated nodes."""
    for start in range(0, NODES, NODES_A_RACK):
        names = [f"node/fake-{number}" for number in range(start, start + NODES_A_RACK)]
        labels = f"{RACK}=rack-{start // NODES_A_RACK}", f"{ZONE}=zone-{start // NODES_A_ZONE}"
        place.kubectl("label", *names, *labels)
    yield


async def measured(api: ApiServer, namespace: str, prefix: str, **flags: Any) -> Traffic:
    """Three jobs that come at the same time, with names of this prefix."""
    specs = [
        spec_of(f"{prefix}-{number}", num_workers=WORKERS, num_ps_pods=SERVERS, **flags)
        for number in range(JOBS)
    ]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(
            *(stack.enter_async_context(running_job(api, namespace, spec)) for spec in specs)
        )

        async def pods() -> list[dict[str, Any]]:
            found = await placed(api, namespace, "app.kubernetes.io/name=elasticdl")
            return list(found.values())

        async def all_placed() -> bool:
            return len(await pods()) == JOBS * (SERVERS + WORKERS)

        await until(all_placed, pods)
        return traffic(await pods(), (await api.get("/api/v1/nodes"))["items"])


def traffic(pods: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Traffic:
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}

    def role(name: str) -> list[tuple[str, str]]:
        """The job and the node of each of its pods."""
        return [
            (pod["metadata"]["labels"]["app.kubernetes.io/instance"], pod["spec"]["nodeName"])
            for pod in pods
            if pod["metadata"]["labels"][ROLE_LABEL] == name
        ]

    pairs = [
        (labels[worker], labels[server])
        for (job, worker), (other, server) in product(role("worker"), role("ps"))
        if job == other
    ]

    def crossing(key: str) -> float:
        return sum(one[key] != other[key] for one, other in pairs) / len(pairs)

    return Traffic(crossing(RACK), crossing(ZONE), len({*role("ps")}))


@pytest.mark.usefixtures("fake_nodes")
def test_workers_are_in_the_rack_of_their_servers_and_these_on_different_nodes(
    place: TargetCluster, namespace: str
) -> None:
    async def story() -> tuple[Traffic, Traffic]:
        api = await place.connect()
        try:
            await set_up(api, cluster_objects(), namespace)
            near = await measured(api, namespace, "near")
            return near, await measured(api, namespace, "anywhere", affinity="{}")
        finally:
            await api.close()

    with racks(place):
        near, anywhere = asyncio.run(story())
    print(f"near their servers: {near}\nwithout a preference: {anywhere}")
    assert near.racks < 0.5 * anywhere.racks and near.zones < 0.5 * anywhere.zones
    assert near.server_nodes == JOBS * SERVERS
