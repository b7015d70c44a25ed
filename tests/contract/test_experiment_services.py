"""What an experiment reports of the waits of its services, against a server that places some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from elasticdl.cluster.kubernetes.apiserver import ApiServer
from experiments.services import Services
from tests.contract.api_server import Server, change, item, sends, serving
from tests.waiting import until_async

pytestmark = pytest.mark.contract

LIMIT_S = 60.0


def test_a_service_that_was_deleted_before_it_had_a_node_counts_as_one_without() -> None:
    async def story() -> Services:
        async with _server_that_places_one_of_three() as api:
            services = Services(api, "ns", "1", ((0.0, 3), (0.0, 0)))
            one_placed = until_async("one has a node", lambda: services.placed == 1)
            await asyncio.wait_for(services.run(one_placed), LIMIT_S)
        return services

    services = asyncio.run(story())
    assert services.wished == services.placed == 0
    row = services.as_row()
    assert (row["services"], row["services_without_node"]) == (1, 2)
    assert "service_wait_longest_s" not in row  # No job gave way to it.


def test_the_waits_are_those_of_services_that_come_after_the_jobs() -> None:
    async def story() -> Services:
        async with _server_that_places_one_of_three() as api:
            services = Services(api, "ns", "1", ((0.0, 0), (0.0, 3), (600.0, 3)))
            running = asyncio.ensure_future(services.run(asyncio.sleep(0)))
            await until_async("one has a node", lambda: services.placed == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return services

    row = asyncio.run(story()).as_row()
    assert (row["services"], row["services_without_node"]) == (1, 2)
    assert 0 < row["service_wait_median_s"] == row["service_wait_longest_s"] < LIMIT_S


@asynccontextmanager
async def _server_that_places_one_of_three() -> AsyncIterator[ApiServer]:
    server = Server()
    server.posts = [(201, {}, {})] * 3
    placed = item("uid-0", 101, "service-0") | {"spec": {"nodeName": "node"}}

    async def place_one(answer: web.StreamResponse) -> None:
        await until_async("all are created", lambda: len(server.bodies) == 3)
        await sends(change("ADDED", placed))(answer)

    server.watches = [place_one]
    async with serving(server) as api:
        yield api
