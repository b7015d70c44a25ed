"""The HTTP server of the page.

It lives as long as the master. Its errors do not affect the job.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import final

from aiohttp import web
from aiohttp.typedefs import Handler

from elasticdl.master.core.commands import FinishJob
from elasticdl.master.status.access import MOST_BODY_BYTES, AccessGuard, add_headers, watchman
from elasticdl.master.status.actions import Actions
from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.connection_limiter import ConnectionLimiter
from elasticdl.master.status.event_frames import EventFrames
from elasticdl.master.status.event_streams import EventStreams
from elasticdl.master.status.html_routes import HtmlRoutes
from elasticdl.master.status.http_protocol import HttpProtocol, only_known_expectations
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.json_api import JsonApi
from elasticdl.master.status.limits import LIMITS, PageLimits
from elasticdl.master.status.logs import Logs
from elasticdl.tls.acceptor import Factory, accepting, listen

_LOG = logging.getLogger(__name__)
_CLOSE_S = 2.0
_BACKLOG = 64


@final
class StatusServer:
    """The page's server. Use it from the master's event loop."""

    def __init__(
        self,
        view: JobView,
        guard: AccessGuard,
        term: int,
        log_directory: Path,
        limits: PageLimits = PageLimits(),
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`context` of a TLS server; None: clear text."""
        self._limits, self._context = limits, context
        self._change_feed = ChangeFeed(view, EventFrames(term))
        html_routes = HtmlRoutes(guard, view, self._change_feed)
        self._guard = guard
        self._limiter = ConnectionLimiter(limits.most_connections)
        application = web.Application(
            middlewares=[self._hear, watchman(guard, html_routes.open_to_all)],
            client_max_size=MOST_BODY_BYTES,
        )
        application[LIMITS] = limits
        parts = (
            html_routes,
            JsonApi(view, self._change_feed, log_directory),
            EventStreams(self._change_feed, limits, guard),
            Logs(view, log_directory),
            Actions(view),
        )
        for part in parts:
            application.router.add_routes(part.routes())
        application.on_response_prepare.append(add_headers)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSE_S)
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Start to sample the job and to listen; return the port.

        The system chooses the port if `port` is 0. `reuse_port`: another process holds it for this
        one. Raises OSError; the page is unavailable then.
        """
        self._change_feed.start()
        await self._runner.setup()
        accept = self._accept(self._runner)
        self._listening = await listen(accept, host, port, backlog=_BACKLOG, reuse_port=reuse_port)
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self, finish: FinishJob | None) -> None:
        """Send the job's outcome to browsers, and disconnect them.

        None: this master ends and the job does not, or its outcome is unknown.
        """
        ended = (
            {"exit_code": int(finish.exit_code), "message": finish.message, "hint": finish.hint}
            if finish
            else None
        )
        if self._listening is not None:
            self._listening.close()
        try:
            await self._change_feed.close(ended)
            await self._runner.cleanup()
        except Exception:  # noqa: BLE001 - an error in the page must not reach the job
            _LOG.exception("the page did not shut down cleanly")

    @web.middleware
    async def _hear(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._guard.visitor(request) is not None:
            self._limiter.showed_token(request.protocol)
        else:
            self._limiter.asked(request.protocol)
        return await handler(request)

    def _accept(self, runner: web.AppRunner) -> Factory:
        server = runner.server
        assert server is not None
        server.request_handler = only_known_expectations(server.request_handler)
        loop = asyncio.get_running_loop()

        def accept() -> asyncio.Protocol:
            protocol = HttpProtocol(server, self._limiter)
            loop.call_later(self._limits.speak_within_s, self._limiter.expect_request, protocol)
            return protocol

        return accepting(self._context, accept, self._limiter)
