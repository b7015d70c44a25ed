"""A port on this machine's loopback whose connections are forwarded elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, TypeAlias, final

LOOPBACK: Final = "127.0.0.1"
Carry: TypeAlias = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]
]


@final
class LoopbackListener:
    """Owns its connections. Belongs to one asyncio loop."""

    def __init__(self, carry: Carry) -> None:
        """`carry` serves one connection, which is closed when it returns."""
        self._carry = carry
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """Listen; returns the port. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._carrying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._carry(reader, writer)
        finally:
            await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever has become of it."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
