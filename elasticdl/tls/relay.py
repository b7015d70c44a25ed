"""A port on this machine whose connections continue to a TLS server.

For programs that cannot verify the job's certificates themselves: browsers, and Horovod.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, final

from elasticdl.loopback import LOOPBACK, LoopbackListener, close
from elasticdl.tls.contexts import client_context, refusal_of

_CONNECT_S: Final = 10.0
_PIECE_BYTES: Final = 64 << 10


@final
class Relay:
    """Listens on loopback until closed; belongs to one asyncio loop."""

    def __init__(self, authority: str, name: str) -> None:
        """`authority` (PEM) signs the server's certificate, which is for `name`."""
        self._context, self._name = client_context(authority), name
        self._server = "", 0
        self._listener = LoopbackListener(self._carry)
        self.problem = ""
        """Why the last connection failed."""

    async def open(self, host: str, port: int) -> int:
        """Relay to this server from now on; returns the port here. Raises OSError."""
        self._server = host, port
        return await self._listener.open()

    async def close(self) -> None:
        """End all connections."""
        await self._listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(
                    *self._server, ssl=self._context, server_hostname=self._name
                )
        except OSError as error:  # TimeoutError is one
            self.problem = (
                refusal_of(error) or str(error) or f"no TLS handshake within {_CONNECT_S:g} s"
            )
            return
        self.problem = ""
        try:
            await _joined(reader, writer, far_reader, far_writer)
        finally:
            await close(far_writer)


@final
class RelayThread:
    """Relays with a thread of their own, for a process without a loop. It ends with the process."""

    def __init__(self, authority: str, name: str) -> None:
        self._authority, self._name = authority, name
        self._loop = asyncio.new_event_loop()
        self._relays: dict[tuple[str, int], tuple[Relay, str]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def to(self, host: str, port: int) -> str:
        """Return the address here, host:port, that leads to this server. Raises OSError."""
        if (host, port) not in self._relays:
            relay = Relay(self._authority, self._name)
            opening = asyncio.run_coroutine_threadsafe(relay.open(host, port), self._loop)
            self._relays[host, port] = relay, f"{LOOPBACK}:{opening.result(_CONNECT_S)}"
        return self._relays[host, port][1]

    @property
    def problem(self) -> str:
        """Why a connection failed; '' if the last ones did not."""
        return next((relay.problem for relay, _ in self._relays.values() if relay.problem), "")

    def close(self) -> None:
        """End all connections and the thread."""

        async def end() -> None:
            await asyncio.gather(*(relay.close() for relay, _ in self._relays.values()))
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join(_CONNECT_S)
        self._loop.close()


async def _joined(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways until one side ends."""
    ways = [
        asyncio.ensure_future(_carried(reader, far_writer)),
        asyncio.ensure_future(_carried(far_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
