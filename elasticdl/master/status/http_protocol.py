"""A connection whose protocol errors get the same kind of answer as all other errors.

aiohttp answers such errors itself, before any handler sees a request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import final

from aiohttp import web

from elasticdl.master.status.access import HEADERS
from elasticdl.master.status.responses import Refusal

_LOG = logging.getLogger(__name__)
# aiohttp logs a traceback for each invalid request, so strangers could fill the job's volume.
_LOG.setLevel(logging.CRITICAL)
_KEEP_OPEN_S = 30.0


@final
class HttpProtocol(web.RequestHandler):
    """One HTTP connection."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        """Create it within a running loop."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=_LOG,
            keepalive_timeout=_KEEP_OPEN_S,
        )

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
        words = "the page failed here" if status >= 500 else "this is no request that makes sense"
        response = Refusal(status, words, headers=HEADERS).response()
        response.force_close()
        return response
