"""Where ring members find each other: the HTTP key-value store for Horovod's Gloo, made fast.

Horovod opens a connection for each PUT, GET and DELETE of `/SECTION/KEY`, and polls every 10 ms for
a missing key. Here a GET **waits** until its key exists, so nothing polls, and an early member may
wait as long as it likes.

Each generation of the ring has an unguessable *scope*, which precedes the section (members use
`HOST:PORT/SCOPE` as the address; Horovod appends its port once more). So members of different
generations never meet, and strangers cannot join. A withdrawn scope answers 410 to all requests,
including waiting ones.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

_PATH: Final = re.compile(rb"/([a-z0-9-]{1,80})(?::\d{1,5})?(/[\w.-]{1,200}/[\w.-]{1,100})")
_HEAD_BYTES: Final = 4096
_VALUE_BYTES: Final = 1 << 20
"""A member's value has one address of about 150 bytes for each other member."""

_REASONS: Final = {200: b"OK", 400: b"Bad Request", 410: b"Gone"}


def new_scope(generation: int) -> str:
    """An unguessable name for the scope of this generation."""
    return f"g{generation}-{secrets.token_hex(12)}"


@dataclass(slots=True)
class _Scope:
    values: dict[bytes, bytes] = field(default_factory=dict)
    waiting: dict[bytes, list[_Connection]] = field(default_factory=dict)


@final
class Rendezvous:
    """Serves all generations of a job's ring, one after the other. Belongs to one asyncio loop."""

    def __init__(self) -> None:
        self._scopes: dict[bytes, _Scope] = {}
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "", port: int = 0) -> int:
        """Listen; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host or None, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def open(self, scope: str) -> None:
        """Serve this scope from now on, until it is withdrawn."""
        self._scopes.setdefault(scope.encode(), _Scope())

    def withdraw(self, scope: str) -> None:
        """Answer all requests of a superseded or incomplete generation with 410, at once."""
        found = self._scopes.pop(scope.encode(), None)
        for connection in (
            [one for waiting in found.waiting.values() for one in waiting] if found else ()
        ):
            connection.reply(410)

    async def close(self) -> None:
        """Stop listening, and withdraw every scope."""
        for scope in list(self._scopes):
            self.withdraw(scope.decode())
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for connection in self._connections:
            connection.abort()
        while self._connections:  # the loop calls each one's connection_lost in its next turn
            await asyncio.sleep(0)

    def _connection(self) -> _Connection:
        return _Connection(self._answer, self._connections, self._leave)

    def _answer(self, connection: _Connection, method: bytes, path: bytes, value: bytes) -> None:
        found = _PATH.fullmatch(path)
        if found is None or method not in (b"GET", b"PUT", b"DELETE"):
            connection.reply(400)
            return
        scope, key = self._scopes.get(found[1]), found[2]
        if scope is None:
            connection.reply(410)
        elif method == b"PUT":
            scope.values[key] = value
            connection.reply(200)
            for waiting in scope.waiting.pop(key, ()):
                waiting.reply(200, value)
        elif method == b"DELETE":
            # A member says that it needs no more of this section; others may, so values stay as
            # long as their scope.
            connection.reply(200)
        elif key in scope.values:
            connection.reply(200, scope.values[key])
        else:
            connection.waits_for = (found[1], key)
            scope.waiting.setdefault(key, []).append(connection)

    def _leave(self, connection: _Connection) -> None:
        name, key = connection.waits_for
        scope = self._scopes.get(name)
        if scope is not None and connection in scope.waiting.get(key, ()):
            scope.waiting[key].remove(connection)


_Answer: TypeAlias = "Callable[[_Connection, bytes, bytes, bytes], None]"
_Leave: TypeAlias = "Callable[[_Connection], None]"


@final
class _Connection(asyncio.Protocol):
    """One request, one reply, then the end, as Horovod's client expects."""

    def __init__(self, answer: _Answer, open_ones: set[_Connection], leave: _Leave) -> None:
        self._answer = answer
        self._open_ones = open_ones
        self._leave = leave
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._asked = False
        self.waits_for = (b"", b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_ones.add(self)

    def abort(self) -> None:
        """Close without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_ones.discard(self)
        self._leave(self)

    def data_received(self, data: bytes) -> None:
        if self._asked:
            return
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            if len(self._received) > _HEAD_BYTES:
                self.reply(400)
            return
        first, *headers = bytes(head).split(b"\r\n")
        length = _content_length(headers)
        parts = first.split(b" ")
        if length is None or len(parts) != 3:
            self.reply(400)
        elif len(rest) >= length:
            self._asked = True
            self._answer(self, parts[0], parts[1], bytes(rest[:length]))

    def reply(self, status: int, value: bytes = b"") -> None:
        """Answer and close; does nothing if the peer is gone."""
        self._asked = True
        if self._transport is not None:
            reason = _REASONS[status]
            self._transport.write(
                b"HTTP/1.1 %d %s\r\nContent-Length: %d\r\n\r\n%s"
                % (status, reason, len(value), value)
            )
            self._transport.close()


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
