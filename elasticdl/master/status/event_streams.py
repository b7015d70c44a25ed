"""Server-sent event streams to browsers, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import final

from aiohttp import web

from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.event_frames import event_bytes
from elasticdl.master.status.responses import API, NO_STORE, Refusal

_LOG = logging.getLogger(__name__)
MOST_STREAMS = 64
KEEP_ALIVE_S = 15.0
STUCK_S = 20.0
"""A browser that reads nothing for this long is disconnected; it may reconnect."""
_PIECE_BYTES = 64 << 10
_RETRY_MS = 2000
_HEADERS = {
    **NO_STORE,
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",
}


@final
class EventStreams:
    """The open streams."""

    def __init__(self, live: ChangeFeed) -> None:
        self._live = live
        self._feed = live.feed

    def routes(self) -> list[web.RouteDef]:
        """GET, not HEAD."""
        return [web.get(f"{API}/stream", self.stream, allow_head=False)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the browser leaves or the job ends."""
        if self._live.watchers >= MOST_STREAMS:
            raise Refusal(
                503,
                f"{MOST_STREAMS} windows watch this job already",
                "close some",
                {"Retry-After": "10"},
            )
        self._live.join()
        try:
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            with suppress(ConnectionError):
                await self._serve(request, response)
            return response
        except TimeoutError:
            _LOG.info("a browser took nothing for %g s: its stream is ended", STUCK_S)
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self._live.leave()

    async def _serve(self, request: web.Request, response: web.StreamResponse) -> None:
        known = request.headers.get("Last-Event-ID") or request.query.get("from") or ""
        at = self._feed.place(known)
        await _send(response, f"retry: {_RETRY_MS}\n\n".encode())
        if at is None:
            at = await self._begin(
                response, "this is another master, or too much has changed since" if known else ""
            )
        while True:
            frames = self._feed.after(at)
            if frames is None:
                at = await self._begin(response, "too much came at once")
                continue
            for frame in frames:
                await _send(response, frame.data)
                at = frame.number
            if self._feed.closed and at == self._feed.newest:
                return
            if at == self._feed.newest:
                await self._wait(response)

    async def _begin(self, response: web.StreamResponse, why: str) -> int:
        """Send the whole state, and return the frame to continue after.

        First tell a browser that has an older state to discard it.
        """
        at, whole = self._feed.newest, self._live.whole()
        if why:
            await _send(response, event_bytes("reset", {"reason": why}))
        await _send(response, whole)
        return at

    async def _wait(self, response: web.StreamResponse) -> None:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._feed.changed()
        except TimeoutError:
            await _send(response, b": still here\n\n")


async def _send(response: web.StreamResponse, data: bytes) -> None:
    """Send data in pieces and wait for each.

    Raises TimeoutError if the browser does not read, ConnectionError if it is gone.
    """
    for begin in range(0, len(data), _PIECE_BYTES):
        async with asyncio.timeout(STUCK_S):
            await response.write(data[begin : begin + _PIECE_BYTES])
