"""One connection: what aiohttp itself answers, before any of our code has seen a request, is
answered as everything else here is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import final

from aiohttp import web

from elasticdl.master.status.access import HEADERS
from elasticdl.master.status.responses import Refusal

_LOG = logging.getLogger(__name__)
# What aiohttp says of requests that make no sense, with a traceback for each: strangers would fill
# the job's volume with it.
_LOG.setLevel(logging.CRITICAL)
_KEEP_OPEN_S = 30.0


@final
class HttpProtocol(web.RequestHandler):
    """Bytes of a browser, or of whoever else comes."""

    __slots__ = ()

    def __init__(self, server: web.Server) -> None:
        """Make it within a running loop."""
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
        """Of what cannot be understood nothing is repeated: not in the answer, nor in the log.

        Raises ConnectionError.
        """
        super().handle_error(request, status, exc, message)
        words = "the page failed here" if status >= 500 else "this is no request that makes sense"
        response = Refusal(status, words, headers=HEADERS).response()
        response.force_close()
        return response
