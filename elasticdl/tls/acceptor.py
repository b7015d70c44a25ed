"""New connections of an asyncio server, with or without TLS.

asyncio's own TLS servers announce a connection only after its handshake. Strangers who begin one
and never end it would count nowhere, so a server could not limit them.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, final

HANDSHAKE_S: Final = 10.0
_BUFFER_BYTES: Final = 4 << 10
"""What a connection over TLS reads at once. Most messages are smaller."""
Factory: TypeAlias = Callable[[], asyncio.Protocol]


class Strangers(Protocol):
    """Counts connections that have not proved who they are."""

    def enter(self, connection: Handshake) -> None:
        """Take a new connection; it may be aborted at any time."""

    def leave(self, connection: Handshake) -> None:
        """Forget it: it is over, or the protocol that follows has taken its place."""


@final
class Handshake(asyncio.Protocol):
    """A connection until its handshake is complete; then the protocol from `factory` has it."""

    def __init__(self, context: ssl.SSLContext, factory: Factory, strangers: Strangers) -> None:
        self._context, self._factory, self._strangers = context, factory, strangers
        self.transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # `start_tls` must see every byte, and runs a moment later.
        transport.pause_reading()
        self._strangers.enter(self)
        self._task = asyncio.ensure_future(self._run(transport))

    def abort(self) -> None:
        """Close without a farewell."""
        if self.transport is not None:
            self.transport.abort()

    async def _run(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            # Aborted in the turn in which it came: no handshake would ever end.
            self._strangers.leave(self)
            return
        early = _Early()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError:
            # A stranger's doing, or a client that does not trust us: it knows why.
            secured = None
        finally:
            self._strangers.leave(self)
        if secured is None or early.lost:
            transport.abort()
            return
        protocol = self._factory()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if early.received:
            protocol.data_received(bytes(early.received))


@final
class _Early(asyncio.Protocol):
    """Keeps what arrives with the last message of the handshake."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def accepting(context: ssl.SSLContext | None, factory: Factory, strangers: Strangers) -> Factory:
    """What an asyncio server makes of a new connection; `context` None: clear text."""
    if context is None:
        return factory
    # asyncio gives each connection a buffer of 256 KiB: 10,000 took 2.6 GiB. It may have any size.
    sslproto.SSLProtocol.max_size = _BUFFER_BYTES
    return lambda: Handshake(context, factory, strangers)


async def listen(
    accept: Factory, host: str | None, port: int, *, backlog: int, reuse_port: bool
) -> asyncio.Server:
    """Listen at an address, or at all for None. Raises OSError if the port is taken.

    `::` is all addresses of both versions of IP. asyncio alone would leave out those of version 4.
    """
    loop = asyncio.get_running_loop()
    if host != "::" or not socket.has_dualstack_ipv6():
        return await loop.create_server(accept, host, port, backlog=backlog, reuse_port=reuse_port)
    both = socket.create_server(
        (host, port),
        family=socket.AF_INET6,
        backlog=backlog,
        reuse_port=reuse_port,
        dualstack_ipv6=True,
    )
    return await loop.create_server(accept, sock=both, backlog=backlog)
