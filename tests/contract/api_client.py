"""A client of an application that answers as an API server does: real HTTP on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from elasticdl.cluster.kubernetes.apiserver import ApiServer


@asynccontextmanager
async def listening(*routes: web.RouteDef) -> AsyncIterator[str]:
    """The address at which these are served until the context ends."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(*routes: web.RouteDef) -> AsyncIterator[ApiServer]:
    """The same with a client of namespace `ns`."""
    async with listening(*routes) as address:
        api = ApiServer(Configuration(host=address), "ns")
        try:
            yield api
        finally:
            await api.close()
