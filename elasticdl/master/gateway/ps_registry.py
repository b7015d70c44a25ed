"""The attached parameter servers, as the driver reaches them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import TransientError
from elasticdl.rpc.ps_control import ServerControl

Connect: TypeAlias = Callable[[ProcessName, str], ServerControl]


@dataclass(slots=True, eq=False)
class Server:
    """An attached server. `gone` is set when it has ended or was given up."""

    name: ProcessName
    control: ServerControl
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def gone_within(self, seconds: float) -> bool:
        """Wait up to `seconds` and return whether the server is gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        return self.gone.is_set()


@final
class PsRegistry:
    """At most one server per index: the newest incarnation. Use it from one event loop."""

    def __init__(self, number: int, connect: Connect) -> None:
        self.number = number
        self._connect = connect
        self._servers: dict[int, Server] = {}

    def attach(self, name: ProcessName, address: str) -> Server:
        """Add a server at `address`; it replaces an earlier incarnation."""
        old = self._servers.get(name.index)
        if old is not None:
            old.gone.set()
        server = self._servers[name.index] = Server(name, self._connect(name, address))
        return server

    async def leave(self, name: ProcessName) -> None:
        """Remove an ended or given-up server: calls to it end."""
        server = self._servers.get(name.index)
        if server is None or server.name != name:
            return
        del self._servers[name.index]
        server.gone.set()
        await server.control.close()

    def attached(self) -> tuple[Server, ...]:
        """Return the attached servers in index order."""
        return tuple(self._servers[index] for index in sorted(self._servers))

    def everyone(self) -> tuple[Server, ...]:
        """Return all servers of the job in index order.

        Raises TransientError that names absent servers.
        """
        away = [f"ps-{index}" for index in range(self.number) if index not in self._servers]
        if away:
            raise TransientError(f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} away")
        return self.attached()

    async def close(self) -> None:
        """Drop every connection."""
        for server in self.attached():
            await self.leave(server.name)
