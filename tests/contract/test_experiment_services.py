"""What an experiment reports of the waits of its services, against a server that places some."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from experiments.services import Services
from tests.contract.api_server import Server, change, item, sends, serving
from tests.waiting import until_async

pytestmark = pytest.mark.contract


def test_a_service_that_was_deleted_before_it_had_a_node_counts_as_one_without() -> None:
    services = asyncio.run(_three_of_which_one_has_a_node())
    assert services.wished == services.placed == 0
    row = services.as_row()
    assert (row["services"], row["services_without_node"]) == (1, 2)


async def _three_of_which_one_has_a_node() -> Services:
    server = Server()
    server.posts = [(201, {}, {})] * 3
    placed = item("uid-0", 101, "service-0") | {"spec": {"nodeName": "node"}}

    async def place_one(answer: web.StreamResponse) -> None:
        await until_async("all are created", lambda: len(server.bodies) == 3)
        await sends(change("ADDED", placed))(answer)

    server.watches = [place_one]
    async with serving(server) as api:
        services = Services(api, "ns", "1", ((0.0, 3), (0.0, 0)))
        one_placed = until_async("one has a node", lambda: services.placed == 1)
        await asyncio.wait_for(services.run(one_placed), 60)
    return services
