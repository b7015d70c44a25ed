"""A connection whose protocol errors get the same kind of answer as all other errors.

aiohttp answers such errors itself, before any handler sees a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from aiohttp import web

from elasticdl.master.status.access import HEADERS
from elasticdl.master.status.connection_limiter import ConnectionLimiter
from elasticdl.master.status.responses import Refusal

_LOG = logging.getLogger(__name__)
# aiohttp logs a traceback for each invalid request, so strangers could fill the job's volume.
_LOG.setLevel(logging.CRITICAL)
_KEEP_OPEN_S = 30.0


@final
class HttpProtocol(web.RequestHandler):
    """One HTTP connection."""

    __slots__ = ("_limiter",)

    def __init__(self, server: web.Server, limiter: ConnectionLimiter) -> None:
        """Create it within a running loop."""
        self._limiter = limiter
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_LOG,
            keepalive_timeout=_KEEP_OPEN_S,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limiter.enter(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._limiter.leave(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer an invalid request; repeat none of it in the answer or in the log.

        Raises ConnectionError.
        """
        super().handle_error(request, status, exc, message)
        description = "internal error of the page" if status >= 500 else "invalid request"
        return _closing(status, description)


def only_known_expectations(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """Answer 417 to an `Expect` other than 100-continue, before aiohttp does.

    It repeats the header in its answer, and fails where that is no text.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "100-continue").lower() != "100-continue":
            return _closing(417, "only 100-continue may be expected")
        return await handler(request)

    return handle


def _closing(status: int, message: str) -> web.StreamResponse:
    response = Refusal(status, message, headers=HEADERS).response()
    response.force_close()
    return response
