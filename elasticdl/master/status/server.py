"""The HTTP server of the page.

It lives as long as the master. Its errors do not affect the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, final

from aiohttp import web
from aiohttp.typedefs import Handler

from elasticdl.master.core.commands import FinishJob
from elasticdl.master.status.access import MOST_BODY_BYTES, AccessGuard, add_headers, watchman
from elasticdl.master.status.actions import Actions
from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.event_frames import EventFrames
from elasticdl.master.status.event_streams import EventStreams
from elasticdl.master.status.html_routes import HtmlRoutes
from elasticdl.master.status.http_protocol import HttpProtocol
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.json_api import JsonApi
from elasticdl.master.status.logs import Logs
from elasticdl.master.status.shards import Shards

_LOG = logging.getLogger(__name__)
MOST_CONNECTIONS = 256
SPEAK_WITHIN_S = 15.0
"""A connection without a request is closed after this time, so that idle ones block no one."""
_CLOSE_S = 2.0
_BACKLOG = 64


@final
class StatusServer:
    """The page's server. Use it from the master's event loop."""

    def __init__(self, watched: JobView, guard: AccessGuard, term: int) -> None:
        self._live = ChangeFeed(watched, EventFrames(term))
        entry = HtmlRoutes(guard, watched, self._live)
        self._silent: set[Any] = set()
        """Connections without a request so far."""
        application = web.Application(
            middlewares=[self._hear, watchman(guard, entry.open_to_all)],
            client_max_size=MOST_BODY_BYTES,
        )
        parts = (
            entry,
            JsonApi(watched, self._live),
            EventStreams(self._live),
            Shards(watched),
            Logs(watched),
            Actions(watched),
        )
        for part in parts:
            application.router.add_routes(part.routes())
        application.on_response_prepare.append(add_headers)
        self._application = application
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSE_S)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Start to sample the job and to listen; return the port.

        The system chooses the port if `port` is 0. Raises OSError; the page is unavailable then.
        """
        self._live.start()
        await self._runner.setup()
        accept = self._accept(self._runner)
        self._listening = await asyncio.get_running_loop().create_server(
            accept, host, port, backlog=_BACKLOG
        )
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self, finish: FinishJob | None) -> None:
        """Send browsers the end, and disconnect them.

        None: this master ends and the job does not, or its end is unknown.
        """
        ended = (
            {"exit_code": int(finish.exit_code), "message": finish.message, "hint": finish.hint}
            if finish
            else None
        )
        if self._listening is not None:
            self._listening.close()
        try:
            await self._live.close(ended)
            await self._runner.cleanup()
        except Exception:  # noqa: BLE001 - an error in the page must not reach the job
            _LOG.exception("the page did not end in order")

    @web.middleware
    async def _hear(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        return await handler(request)

    def _accept(self, runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
        server = runner.server
        assert server is not None
        loop = asyncio.get_running_loop()

        def accept() -> asyncio.Protocol:
            if len(server.connections) >= MOST_CONNECTIONS or len(self._silent) >= MOST_CONNECTIONS:
                self._silent = {
                    protocol for protocol in self._silent if protocol.transport is not None
                }
                return _Full()
            protocol = HttpProtocol(server)
            self._silent.add(protocol)
            loop.call_later(SPEAK_WITHIN_S, self._hang_up, protocol)
            return protocol

        return accept

    def _hang_up(self, protocol: Any) -> None:  # noqa: ANN401 - aiohttp's own
        if protocol in self._silent:
            self._silent.discard(protocol)
            if protocol.transport is not None:
                protocol.transport.abort()


@final
class _Full(asyncio.Protocol):
    """Too many connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
