"""Access to the page: a token once, then a session; requests of other sites are refused.

The job's token is the owner's. The viewer's token opens the page for reading only.

A page of another site can make a browser send requests here. It cannot make the browser send our
cookie (SameSite=Strict). A foreign `Host` (DNS rebinding) or a foreign `Origin` is refused. No site
can put our page into a frame.

Cookies ignore ports, so several jobs on one host share them. Our cookie therefore has a name of
this job's. Its value is random, and worth nothing after the sign-out or in the next master.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection
from enum import Enum
from ipaddress import ip_address
from typing import final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.master.status.limits import LIMITS
from elasticdl.master.status.responses import Refusal
from elasticdl.tokens import derived, same, viewer_token

_LOG = logging.getLogger(__name__)
SAFE_METHODS = frozenset({"GET", "HEAD"})
MOST_BODY_BYTES = 64 << 10
MOST_SESSIONS = 256
"""Of owners, and as many of viewers. The oldest of them ends when one more begins."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src"
    " 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Server": "elasticdl",
}
_HINT = (
    "`elasticdl dashboard JOB` opens the page with its token; programs send `Authorization: Bearer"
    " TOKEN`"
)


class Visitor(Enum):
    """Who uses the page."""

    OWNER = "owner"
    VIEWER = "viewer"


@final
class AccessGuard:
    """Checks every request to one job's page.

    `names` are host names of the page, in addition to those of this machine.
    """

    def __init__(self, token: str, names: Collection[str] = ()) -> None:
        self._tokens = {Visitor.OWNER: token, Visitor.VIEWER: viewer_token(token)}
        self._sessions: dict[str, Visitor] = {}
        """By cookie, the oldest first."""
        self.cookie_name = f"elasticdl_{derived(token, 'name of the cookie')[:16]}"
        self._names = frozenset(name.lower() for name in names)

    def holder(self, token: str) -> Visitor | None:
        """Return whose token it is; None if nobody's."""
        visitors = [visitor for visitor, known in self._tokens.items() if same(token, known)]
        return visitors[0] if visitors else None

    def visitor(self, request: web.Request) -> Visitor | None:
        """Return who sent the request, by a token or the cookie of a session; None: a stranger."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.holder(token.strip())
        return self._sessions.get(request.cookies.get(self.cookie_name, ""))

    def sign_in(self, request: web.Request, response: web.StreamResponse, visitor: Visitor) -> None:
        """Begin a session, and give its cookie to the browser."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = visitor
        # Counted apart, since a viewer must not sign an owner out.
        of_kind = [cookie for cookie, kind in self._sessions.items() if kind is visitor]
        for oldest in of_kind[:-MOST_SESSIONS]:
            del self._sessions[oldest]
        # On loopback the browser may speak clear text to the command line, which relays over TLS.
        secure = request.secure and _name_of(request.headers.get("Host", "")) not in _LOOPBACK
        response.set_cookie(
            self.cookie_name, cookie, path="/", httponly=True, samesite="Strict", secure=secure
        )

    def sign_out(self, request: web.Request, response: web.StreamResponse) -> None:
        """End the session, here and in the browser."""
        self._sessions.pop(request.cookies.get(self.cookie_name, ""), None)
        response.del_cookie(self.cookie_name, path="/", httponly=True, samesite="Strict")

    def check(self, request: web.Request, *, open_to_all: bool) -> None:
        """Raise Refusal.

        421 for a foreign host, 403 for another site or a viewer's action, 401 without a token.
        """
        host = request.headers.get("Host", "")
        if not self._ours(host, request):
            raise Refusal(
                421, f"unknown host {host[:100]!r}", "use the address that `dashboard` prints"
            )
        self._check_origin(request, host)
        if open_to_all:
            return
        visitor = self.visitor(request)
        if visitor is None:
            raise Refusal(
                401, "the token is missing or wrong", _HINT, {"WWW-Authenticate": "Bearer"}
            )
        if visitor is Visitor.VIEWER and request.method not in SAFE_METHODS:
            raise Refusal(403, "this token is for reading only", "use the job's token")

    def _ours(self, host: str, request: web.Request) -> bool:
        """Return whether the host is ours. Ignore the port, which a port forwarder may change."""
        name = _name_of(host)
        known = name in self._names or f"*.{name.partition('.')[2]}" in self._names
        return known or name in _LOOPBACK or name == _own_address(request)

    def _check_origin(self, request: web.Request, host: str) -> None:
        """Refuse requests that a browser marks as coming from another site.

        With our policy a form sends the origin `null`, but also says that it has the same origin.
        """
        origin, platform = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        same = origin is not None and origin.lower() in (
            f"http://{host}".lower(),
            f"https://{host}".lower(),
        )
        if same or (origin in (None, "null") and platform == "same-origin"):
            return
        if origin is not None or (request.method not in SAFE_METHODS and platform is not None):
            raise Refusal(403, f"refused a request from another site (Origin {origin!r:.100})")


def _name_of(host: str) -> str:
    name = host.lower()
    # An IPv6 address contains colons, so it ends at the bracket, not at the port.
    if name.startswith("["):
        return name[: name.find("]") + 1]
    return name.partition(":")[0]


def _own_address(request: web.Request) -> str:
    """Return the connection's own address, written like a host.

    It is a number, so no foreign DNS name can equal it.
    """
    sockname = (
        request.transport.get_extra_info("sockname") if request.transport is not None else None
    )
    try:
        address = ip_address(str(sockname[0]).partition("%")[0]) if sockname else None
    except ValueError:
        return "?"
    if address is None:
        return "?"
    # A dual-stack socket shows an IPv4 connection as ::ffff:a.b.c.d; the browser sends a.b.c.d.
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address) if mapped or address.version == 4 else f"[{address}]"


async def add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Add security headers to every answer, including errors."""
    for name, value in HEADERS.items():
        response.headers[name] = value


def watchman(guard: AccessGuard, open_to_all: Collection[tuple[str, str]]) -> Middleware:
    """Return the middleware that checks every request and answers every error.

    `open_to_all` lists (method, path of the route) that need no token.
    """

    @web.middleware
    async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = (request.method, resource.canonical if resource is not None else "")
        response = await answered(request, handler, route)
        if not response.prepared and guard.visitor(request) is None:
            # Connections are limited, so a client without a token must not keep one.
            response.force_close()
        return response

    async def answered(
        request: web.Request, handler: Handler, route: tuple[str, str]
    ) -> web.StreamResponse:
        try:
            guard.check(request, open_to_all=route in open_to_all)
            return await handler(request)
        except Refusal as refusal:
            return refusal.response()
        except web.HTTPException as error:
            return Refusal(error.status, error.reason, headers=_allow(error)).response()
        except ElasticDLError as error:
            return Refusal(
                503 if isinstance(error, TransientError) else 502, error.message, error.hint
            ).response()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 - the top of a request: an error in the page must not reach the job
            _LOG.exception("%s %s failed", request.method, request.path)
            return Refusal(
                500, "internal error of the page", "see the master's log; the job is unaffected"
            ).response()

    return watch


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


async def body_of(request: web.Request) -> bytes:
    """Return a short body that arrives soon. Raises Refusal (408, 413)."""
    # A small compressed body can expand to a large one.
    if "Content-Encoding" in request.headers:
        raise Refusal(415, "an encoded body is not supported")
    limit_s = request.app[LIMITS].body_s
    try:
        async with asyncio.timeout(limit_s):
            return await request.read()
    except web.RequestPayloadError as error:
        raise Refusal(400, "the body does not match its headers") from error
    except TimeoutError as error:
        raise Refusal(408, f"the request did not arrive within {limit_s:g} s") from error
