"""Responses of the HTTP API: JSON, and refusals in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from aiohttp import web

from elasticdl.formatting import finite

API = "/api/v1"
NO_STORE = {"Cache-Control": "no-store"}


@final
class Refusal(Exception):
    """A refused request: the HTTP status, the problem and the next step."""

    def __init__(
        self, status: int, message: str, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        body = {"error": {"message": self.message, "hint": self.hint}}
        return web.json_response(body, status=self.status, headers={**NO_STORE, **self.headers})


def encoded(value: object) -> bytes:
    """Encode standard JSON: NaN and infinity become null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # A worker's text may contain lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", errors="replace")


def answer(value: object, status: int = 200) -> web.Response:
    """Return a JSON response that no cache keeps."""
    return ready(encoded(value), status)


def ready(body: bytes, status: int = 200) -> web.Response:
    """Return the same for encoded JSON."""
    return web.Response(
        body=body, status=status, content_type="application/json", charset="utf-8", headers=NO_STORE
    )


def number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return an integer of the query. Raises Refusal (400)."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        # Python's int() also accepts digits of other scripts.
        value = int(text) if text.isascii() and len(text) < 20 else None
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise Refusal(400, f"{name}={text[:40]!r}: expected a whole number from {low} to {high}")
    return value
