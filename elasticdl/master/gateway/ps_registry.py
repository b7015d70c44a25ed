"""The attached parameter servers, as the driver reaches them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.rpc.ps_control import ServerControl
from elasticdl.rpc.retry import delay_s

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[ProcessName, str], ServerControl]


@dataclass(slots=True, eq=False)
class Server:
    """An attached server. `gone` is set when it has ended or was given up.

    `memory` is the number of its kept memory, 0 for none: two processes with the same one have the
    same state. `kept`: so has the process of its index that attached before it.
    """

    name: ProcessName
    control: ServerControl
    memory: int = 0
    kept: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(
        self,
        call: Callable[[ServerControl], Awaitable[T]],
        doing: str,
        *,
        tries: int = sys.maxsize,
        pause_s: Callable[[int], float] | None = None,
        level: int = logging.WARNING,
    ) -> T | None:
        """Repeat a call until the server answers; None if it is gone, or after so many `tries`.

        `pause_s` returns the pause after each of them; `delay_s` by default. A try that fails is
        logged at `level`. The last one is an error, unless the server is gone after its pause.
        """
        if self.gone.is_set():
            return None
        for attempt in range(1, tries + 1):
            try:
                return await call(self.control)
            except ElasticDLError as error:
                what = f"{doing} at {self.name}, attempt {attempt}: {error}"
            if attempt < tries:
                _LOG.log(level, "%s", what)
            if await self.gone_within((pause_s or delay_s)(attempt)):
                return None
        _LOG.error("%s", what)
        return None

    async def gone_within(self, seconds: float) -> bool:
        """Wait up to `seconds` and return whether the server is gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        return self.gone.is_set()


@final
@dataclass(frozen=True, slots=True)
class Holder:
    """A server with gradients of an open step, also one that is away, and its memory."""

    index: int
    server: Server | None
    memory: int


@final
class PsRegistry:
    """At most one server per index: the newest incarnation. Use it from one event loop.

    `indices`: those of the servers that share the parameters.
    """

    def __init__(
        self, number: int, connect: Connect, returns_s: float = 0.0, *, first: int = 0
    ) -> None:
        """`returns_s`: how long a server that has ended is expected back with its memory.

        It counts from its end, however many calls wait. 0: memory ends with its process. `first`:
        the index of the first server.
        """
        self.indices = range(first, first + number)
        self.returns_s = returns_s
        self._connect = connect
        self._servers: dict[int, Server] = {}
        self._replaced: list[Server] = []
        """Servers whose next process attached before their end was known."""
        self._memories: dict[int, int] = {}
        self._back_by_s: dict[int, float] = {}
        self._arrival = asyncio.Event()

    @property
    def number(self) -> int:
        """How many servers share the parameters."""
        return len(self.indices)

    def attach(self, name: ProcessName, address: str, memory: int = 0) -> Server:
        """Add a server at `address`; it replaces an earlier incarnation.

        `memory` is the number of its kept memory; 0: none.
        """
        old = self._servers.get(name.index)
        if old is not None:
            old.gone.set()
            self._replaced.append(old)
        kept = bool(memory) and self._memories.get(name.index) == memory
        self._memories[name.index] = memory
        server = Server(name, self._connect(name, address), memory, kept)
        self._servers[name.index] = server
        self._arrival.set()
        self._arrival = asyncio.Event()
        return server

    def learn(self, server: Server, memory: int) -> None:
        """Note the memory of a server that attached to an earlier master."""
        server.memory = memory
        if self._servers.get(server.name.index) is server:
            self._memories[server.name.index] = memory

    def expect_all(self) -> None:
        """Expect each server of an earlier master, from now on."""
        for index in self.indices:
            self._expect(index)

    def _expect(self, index: int) -> None:
        self._back_by_s[index] = asyncio.get_running_loop().time() + self.returns_s

    def holder(self, index: int) -> Holder:
        """Return the server of an index and its memory."""
        return Holder(index, self._servers.get(index), self._memories.get(index, 0))

    async def present(self, index: int) -> Server | None:
        """Return the server of an index; wait for the next process of one that is away.

        None if there has been none for `returns_s`, or never.
        """
        back_by_s = self._back_by_s.get(index, asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout_at(back_by_s):
                while index not in self._servers:
                    await self._arrival.wait()
        return self._servers.get(index)

    async def leave(self, name: ProcessName) -> None:
        """Remove an ended or given-up server: calls to it end."""
        ended = [replaced for replaced in self._replaced if replaced.name == name]
        self._replaced = [replaced for replaced in self._replaced if replaced.name != name]
        for replaced in ended:
            await replaced.control.close()
        server = self._servers.get(name.index)
        if server is None or server.name != name:
            return
        del self._servers[name.index]
        self._expect(name.index)
        server.gone.set()
        await server.control.close()

    def attached(self) -> tuple[Server, ...]:
        """Return the attached servers in index order."""
        return tuple(self._servers[index] for index in sorted(self._servers))

    def everyone(self) -> tuple[Server, ...]:
        """Return all servers that share the parameters, in index order.

        Raises TransientError that names absent servers.
        """
        away = [f"ps-{index}" for index in self.indices if index not in self._servers]
        if away:
            raise TransientError(f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} away")
        return tuple(self._servers[index] for index in self.indices)

    async def close(self) -> None:
        """Drop every connection."""
        for server in (*self._replaced, *self.attached()):
            await self.leave(server.name)
