"""Server-sent event streams to browsers, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import final

from aiohttp import web

from elasticdl.master.status.access import AccessGuard
from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.event_frames import event_bytes
from elasticdl.master.status.limits import PageLimits
from elasticdl.master.status.responses import API, NO_STORE, Refusal

_LOG = logging.getLogger(__name__)
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

    def __init__(self, change_feed: ChangeFeed, limits: PageLimits, guard: AccessGuard) -> None:
        self._change_feed, self._limits, self._guard = change_feed, limits, guard
        self._feed = change_feed.feed

    def routes(self) -> list[web.RouteDef]:
        """GET, not HEAD."""
        return [web.get(f"{API}/stream", self.stream, allow_head=False)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the browser leaves, its session ends or the job ends."""
        if self._change_feed.watchers >= self._limits.most_streams:
            raise Refusal(
                503,
                f"{self._limits.most_streams} windows already watch this job",
                "close some of them",
                {"Retry-After": "10"},
            )
        self._change_feed.join()
        try:
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            with suppress(ConnectionError):
                await self._serve(request, response)
            return response
        except TimeoutError:
            _LOG.info("a browser read nothing for %g s: closing its stream", self._limits.stuck_s)
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self._change_feed.leave()

    async def _serve(self, request: web.Request, response: web.StreamResponse) -> None:
        known = request.headers.get("Last-Event-ID") or request.query.get("from") or ""
        at = self._feed.place(known)
        await self._send(response, f"retry: {_RETRY_MS}\n\n".encode())
        if at is None:
            at = await self._begin(
                response, "the master changed, or too much has changed since" if known else ""
            )
        while self._guard.visitor(request) is not None:
            frames = self._feed.after(at)
            if frames is None:
                at = await self._begin(response, "too many changes at once")
                continue
            for frame in frames:
                await self._send(response, frame.data)
                at = frame.number
            if self._feed.closed and at == self._feed.newest:
                return
            if at == self._feed.newest:
                await self._wait(response)

    async def _begin(self, response: web.StreamResponse, why: str) -> int:
        """Send the whole state, and return the frame to continue after.

        First tell a browser that has an older state to discard it.
        """
        at, whole = self._feed.newest, self._change_feed.whole()
        if why:
            await self._send(response, event_bytes("reset", {"reason": why}))
        await self._send(response, whole)
        return at

    async def _wait(self, response: web.StreamResponse) -> None:
        try:
            async with asyncio.timeout(self._limits.keep_alive_s):
                await self._feed.changed()
        except TimeoutError:
            await self._send(response, b": still here\n\n")

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        """Send data in pieces and wait for each.

        Raises TimeoutError if the browser does not read, ConnectionError if it is gone.
        """
        for begin in range(0, len(data), _PIECE_BYTES):
            async with asyncio.timeout(self._limits.stuck_s):
                await response.write(data[begin : begin + _PIECE_BYTES])
