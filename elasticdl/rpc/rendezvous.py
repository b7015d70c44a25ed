"""Where ring members find each other: the HTTP key-value store for Horovod's Gloo, made fast.

Horovod opens a connection for each PUT, GET and DELETE of `/SECTION/KEY`, and polls every 10 ms for
a missing key. Here a GET **waits** until its key exists, so nothing polls, and an early member may
wait as long as it likes.

Each member of a generation has an unguessable *scope*, which precedes the section (it uses
`HOST:PORT/SCOPE` as the address; Horovod appends its port once more). So members of different
generations never meet, strangers cannot join, and no member can write another's values: 403. A
withdrawn scope answers 410 to all requests, including waiting ones.

Until a request has named a scope that is served, its connection is a stranger's: nothing but its
first line is kept. A request has to be complete within a few seconds. Strangers have a number of
places, and the oldest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from elasticdl.tls.acceptor import Handshake, accepting, listen

_PATH: Final = re.compile(rb"/([a-z0-9-]{1,80})(?::\d{1,5})?(/[\w.-]{1,200}/[\w.-]{1,100})")
_OWN: Final = re.compile(rb".*/(?:rank_)?(\d{1,9})")
"""The keys that Horovod writes: a member's rank, and `rank_` with it."""
_HEAD_BYTES: Final = 4096
_VALUE_BYTES: Final = 1 << 20
"""A member's value has one address of about 150 bytes for each other member."""
_LINGER_S: Final = 1.0

_REASONS: Final = {
    200: b"OK",
    400: b"Bad Request",
    403: b"Forbidden",
    408: b"Request Timeout",
    410: b"Gone",
    507: b"Insufficient Storage",
}


def new_scopes(generation: int, members: int) -> tuple[str, ...]:
    """Unguessable names, one for each member by rank; none for a member alone."""
    names = tuple(f"g{generation}-{secrets.token_hex(12)}" for _ in range(members))
    return names if members > 1 else ()


@dataclass(frozen=True, slots=True)
class RendezvousLimits:
    """Limits for connections whose request is incomplete, and for values."""

    request_s: float = 10.0
    most_strangers: int = 256
    generation_bytes: int = 256 << 20
    """All values of one generation."""


@dataclass(slots=True)
class _Generation:
    values: dict[bytes, bytes] = field(default_factory=dict)
    size_bytes: int = 0
    """Total size of the values."""
    waiting: dict[bytes, list[_Connection]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What one member sees of its generation."""

    generation: _Generation
    rank: int

    def may_write(self, key: bytes) -> bool:
        own = _OWN.fullmatch(key)
        return own is not None and int(own[1]) == self.rank


@final
class Rendezvous:
    """Serves all generations of a job's ring, one after the other. Belongs to one asyncio loop."""

    def __init__(
        self,
        limits: RendezvousLimits = RendezvousLimits(),
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`context` of a TLS server; None: clear text."""
        self._limits, self._context = limits, context
        self._scopes: dict[bytes, _Scope] = {}
        self._connections: set[_Connection | Handshake] = set()
        self._strangers: dict[_Connection | Handshake, None] = {}
        """By age."""
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "", port: int = 0, *, reuse_port: bool = False) -> int:
        """Listen; returns the port. Raises OSError.

        `reuse_port`: another process holds the port for this one.
        """
        accept = accepting(self._context, self._connection, self)
        self._server = await listen(accept, host or None, port, backlog=1024, reuse_port=reuse_port)
        return int(self._server.sockets[0].getsockname()[1])

    def open(self, scopes: Sequence[str]) -> None:
        """Serve the members of a generation from now on; their scopes by rank."""
        generation = _Generation()
        for rank, scope in enumerate(scopes):
            self._scopes[scope.encode()] = _Scope(generation, rank)

    def withdraw(self, scopes: Iterable[str]) -> None:
        """Answer all requests of a superseded or incomplete generation with 410, at once."""
        for name in scopes:
            scope = self._scopes.pop(name.encode(), None)
            waiting = scope.generation.waiting if scope is not None else {}
            for connection in [waiter for those in waiting.values() for waiter in those]:
                connection.reply(410)
            waiting.clear()

    async def close(self) -> None:
        """Stop listening, and withdraw every scope."""
        self.withdraw([scope.decode() for scope in self._scopes])
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for connection in self._connections:
            connection.abort()
        while self._connections:  # the loop calls each one's connection_lost in its next turn
            await asyncio.sleep(0)

    def _connection(self) -> _Connection:
        return _Connection(self)

    def enter(self, connection: _Connection | Handshake) -> None:
        """Take a new connection; the oldest stranger goes if there are too many."""
        self._connections.add(connection)
        self._strangers[connection] = None
        if len(self._strangers) > self._limits.most_strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        if isinstance(connection, _Connection):
            loop = asyncio.get_running_loop()
            loop.call_later(self._limits.request_s, connection.expect_request)

    def named(self, connection: _Connection, method: bytes, path: bytes) -> int:
        """Look at the first line of a request; returns the status of a refusal, 0 for none."""
        match = _PATH.fullmatch(path)
        if match is None or method not in (b"GET", b"PUT", b"DELETE"):
            return 400
        scope = self._scopes.get(match[1])
        if scope is None:
            return 410
        self._strangers.pop(connection, None)
        return 403 if method == b"PUT" and not scope.may_write(match[2]) else 0

    def answer(self, connection: _Connection, method: bytes, path: bytes, value: bytes) -> None:
        """Answer a complete request, at once or when its key exists."""
        match = _PATH.fullmatch(path)
        scope = self._scopes.get(match[1]) if match is not None else None
        if match is None or scope is None:
            connection.reply(410)
            return
        key, generation = match[2], scope.generation
        if method == b"PUT":
            size_bytes = generation.size_bytes + len(value) - len(generation.values.get(key, b""))
            if size_bytes > self._limits.generation_bytes:
                connection.reply(507)
                return
            generation.values[key], generation.size_bytes = value, size_bytes
            connection.reply(200)
            for waiting in generation.waiting.pop(key, ()):
                waiting.reply(200, value)
        elif method == b"DELETE":
            # A member says that it needs no more of this section; others may, so values stay as
            # long as their generation.
            connection.reply(200)
        elif key in generation.values:
            connection.reply(200, generation.values[key])
        else:
            connection.waits_for = (match[1], key)
            generation.waiting.setdefault(key, []).append(connection)

    def leave(self, connection: _Connection | Handshake) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        if isinstance(connection, Handshake):
            return
        name, key = connection.waits_for
        scope = self._scopes.get(name)
        waiting = scope.generation.waiting.get(key, []) if scope is not None else []
        if connection in waiting:
            waiting.remove(connection)


@final
class _Connection(asyncio.Protocol):
    """One request, one reply, then the end, as Horovod's client expects."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._named = False
        self._complete = False
        self._asked = False
        self.waits_for = (b"", b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._rendezvous.enter(self)

    def abort(self) -> None:
        """Close without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def expect_request(self) -> None:
        """Give up a request that is not complete."""
        if not self._asked:
            self.reply(408)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._rendezvous.leave(self)

    def data_received(self, data: bytes) -> None:
        # One request per connection; whatever follows is ignored.
        if self._asked:
            return
        self._received += data
        if not self._named and not self._name():
            return
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            if len(self._received) > _HEAD_BYTES:
                self.reply(400)
            return
        first, *headers = bytes(head).split(b"\r\n")
        length = _content_length(headers)
        if length is None:
            self.reply(400)
        elif len(rest) >= length:
            self._asked = self._complete = True
            method, path, _ = first.split(b" ")
            self._received.clear()
            self._rendezvous.answer(self, method, path, bytes(rest[:length]))

    def _name(self) -> bool:
        """Whether the first line is there and may go on."""
        line, end, _ = self._received.partition(b"\r\n")
        if not end and len(self._received) <= _HEAD_BYTES:
            return False
        parts = bytes(line).split(b" ")
        refusal = (
            self._rendezvous.named(self, parts[0], parts[1]) if end and len(parts) == 3 else 400
        )
        if refusal:
            self.reply(refusal)
        self._named = not refusal
        return self._named

    def reply(self, status: int, value: bytes = b"") -> None:
        """Answer and close; does nothing if the peer is gone."""
        self._asked = True
        self._received.clear()
        if self._transport is not None:
            reason = _REASONS[status]
            self._transport.write(
                b"HTTP/1.1 %d %s\r\nContent-Length: %d\r\n\r\n%s"
                % (status, reason, len(value), value)
            )
            if self._complete or not self._transport.can_write_eof():
                self._transport.close()
                return
            # To close with bytes unread would reset the connection before the peer has the answer.
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(_LINGER_S, self.abort)


def _content_length(headers: list[bytes]) -> int | None:
    """0 if the header is missing, None if it is invalid."""
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            text = value.strip()
            return (
                int(text)
                if text.isdigit() and len(text) < 8 and int(text) <= _VALUE_BYTES
                else None
            )
    return 0
