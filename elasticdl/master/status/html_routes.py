"""Routes of the page, its files and the sign-in: a token once, then a session."""

from __future__ import annotations

import asyncio
import json
import zlib
from functools import lru_cache
from typing import final
from urllib.parse import parse_qs

from aiohttp import web

from elasticdl.master.status.access import AccessGuard, Visitor, body_of
from elasticdl.master.status.change_feed import ChangeFeed
from elasticdl.master.status.job_view import JobView
from elasticdl.master.status.json_api import snapshot_of
from elasticdl.master.status.responses import NO_STORE, Refusal
from elasticdl.page import NoSuchFile, render_page, render_sign_in, static

_FORM = "application/x-www-form-urlencoded"
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
_GZIP = 31
"""zlib's number for a gzip header with the largest window."""


@final
class HtmlRoutes:
    """Routes without a token: the sign-in page, its files, and the session. Nothing else."""

    def __init__(self, guard: AccessGuard, view: JobView, change_feed: ChangeFeed) -> None:
        self._guard, self._view, self._change_feed = guard, view, change_feed
        self._drawing = asyncio.Lock()

    open_to_all = frozenset(
        {(method, path) for method in ("GET", "HEAD") for path in ("/", "/static/{name}")}
        | {("POST", "/session"), ("DELETE", "/session")}
    )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.page),
            web.get("/static/{name}", self.file),
            web.post("/session", self.sign_in),
            web.delete("/session", self.sign_out),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Serve the page around the snapshot of now.

        A thread encodes it, since a thousand processes take a moment.
        """
        visitor = self._guard.visitor(request)
        if visitor is None:
            # Without a token, answer with the sign-in page: browsers report a 401 as an error of
            # the page.
            return _html(render_sign_in(), 401 if "Authorization" in request.headers else 200)
        async with self._drawing:
            await self._view.all_events_read()
            snapshot = snapshot_of(self._view, self._change_feed)
            read_only = visitor is Visitor.VIEWER
            return _html(await asyncio.to_thread(render_page, snapshot, read_only=read_only))

    async def file(self, request: web.Request) -> web.Response:
        """Serve a file by its hashed name, which is looked up and never made into a path."""
        zipped = "gzip" in request.headers.get("Accept-Encoding", "")
        try:
            body, kind = _file(request.match_info["name"], zipped=zipped)
        except NoSuchFile as error:
            raise Refusal(404, "no such file") from error
        return web.Response(
            body=body,
            headers={
                **_FOR_EVER,
                "Content-Type": kind,
                **({"Content-Encoding": "gzip"} if zipped else {}),
            },
        )

    async def sign_in(self, request: web.Request) -> web.Response:
        """Accept {"token"} as JSON (204), or a form (redirect to the page). Begins a session."""
        form = request.content_type == _FORM
        if not form and request.content_type != "application/json":
            raise Refusal(
                415, f"expected application/json or a form, got {request.content_type[:60]}"
            )
        visitor = self._guard.holder(_token_of(await body_of(request), form=form))
        if visitor is None and form:
            return _html(render_sign_in("Wrong token."), 401)
        if visitor is None:
            raise Refusal(
                401,
                "wrong token",
                "the address that `elasticdl dashboard JOB` prints ends with the token",
            )
        response = (
            web.Response(status=303, headers={"Location": "/"})
            if form
            else web.Response(status=204)
        )
        response.headers.update(NO_STORE)
        self._guard.sign_in(request, response, visitor)
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        """End the session."""
        response = web.Response(status=204, headers=NO_STORE)
        self._guard.sign_out(request, response)
        return response


def _html(text: str, status: int = 200) -> web.Response:
    body = text.encode("utf-8", errors="replace")
    return web.Response(
        body=body, status=status, content_type="text/html", charset="utf-8", headers=NO_STORE
    )


def _token_of(body: bytes, *, form: bool) -> str:
    """Return the token, or '' if there is none."""
    try:
        text = body.decode("utf-8")
        parsed = parse_qs(text, max_num_fields=8) if form else json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "invalid body") from error
    token = parsed.get("token", "") if isinstance(parsed, dict) else ""
    if form and token:
        token = token[0]
    return token.strip() if isinstance(token, str) else ""


@lru_cache(maxsize=32)
def _file(name: str, *, zipped: bool) -> tuple[bytes, str]:
    body, kind = static(name)
    if not zipped:
        return body, kind
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush(), kind
