"""A cluster whose own code fails: whoever observes it must hear of that."""

from __future__ import annotations

import asyncio

import pytest

from elasticdl.cluster.base import ProcessSpec
from elasticdl.cluster.kubernetes.cluster import KubernetesCluster
from elasticdl.cluster.kubernetes.plans import Image, Owner, PodPlan
from tests.contract.api_server import Server, change, item, sends, serving

pytestmark = pytest.mark.contract


def plan(_spec: ProcessSpec) -> PodPlan:
    return PodPlan(Image("zoo"))


@pytest.mark.parametrize("when", ["list", "watch"])
async def test_an_error_of_our_own_is_raised_to_whoever_observes_and_does_not_end_in_silence(
    when: str,
) -> None:
    stray = item("u", 1)
    stray["metadata"]["labels"] = ["no", "mapping"]
    server = Server()
    server.lists = [[stray] if when == "list" else []]
    server.watches = [sends(change("ADDED", stray))]

    with pytest.raises(TypeError):
        async with serving(server) as api, asyncio.timeout(20):
            cluster = KubernetesCluster(api, Owner("ns", "job", "uid"), plan)
            try:
                async for _ in cluster.observe():
                    pass
            finally:
                await cluster.close()
