"""What is answered: JSON, and refusals in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from aiohttp import web

from elasticdl.history.snapshot import finite

API = "/api/v1"
NO_STORE = {"Cache-Control": "no-store"}


@final
class Refusal(Exception):
    """A request that is not done: an HTTP status, what is wrong, and what to do next."""

    def __init__(
        self, status: int, message: str, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        """As JSON."""
        body = {"error": {"message": self.message, "hint": self.hint}}
        return web.json_response(body, status=self.status, headers={**NO_STORE, **self.headers})


def encoded(value: object) -> bytes:
    """JSON that every reader takes: NaN and infinity are null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # Half of a pair, as it may come from a worker's words, is no character.
    return text.encode("utf-8", errors="replace")


def answer(value: object, status: int = 200) -> web.Response:
    """A JSON answer that nobody keeps."""
    return ready(encoded(value), status)


def ready(body: bytes, status: int = 200) -> web.Response:
    """The same of JSON that is encoded already."""
    return web.Response(
        body=body, status=status, content_type="application/json", charset="utf-8", headers=NO_STORE
    )


def number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query. Raises Refusal (400)."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        # Digits of other scripts are digits to Python.
        found = int(text) if text.isascii() and len(text) < 20 else None
    except ValueError:
        found = None
    if found is None or not low <= found <= high:
        raise Refusal(400, f"{name}={text[:40]!r}: expected a whole number from {low} to {high}")
    return found
