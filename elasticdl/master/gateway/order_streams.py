"""Orders of the master to each process, until its order stream has delivered them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.rpc.conversation import Order, RingGeneration, Servers, Settled


@final
class OrderStreams:
    """Orders by process.

    Each process has one stream; a new stream ends the old one. Use it from one event loop.
    """

    def __init__(
        self,
        servers: int,
        broke: Callable[[ProcessName], None] = lambda name: None,
        *,
        first: int = 0,
    ) -> None:
        """`servers` is the number of servers, from index `first` on. All are absent at first.

        `broke` is called when a stream ends that we did not end.
        """
        self._servers = Servers(("",) * servers, first)
        self._waiting: dict[ProcessName, deque[Order]] = {}
        self._wake: dict[ProcessName, asyncio.Event] = {}
        self._generations: dict[ProcessName, RingGeneration] = {}
        self._settled: dict[ProcessName, Settled] = {}
        self._broke = broke

    @property
    def servers(self) -> Servers:
        """The servers' bulk addresses as last published."""
        return self._servers

    def publish(self, addresses: tuple[str, ...], first: int = 0) -> None:
        """Send the servers' addresses to all current and future streams."""
        self._servers = Servers(addresses, first)
        for name in tuple(self._waiting):
            self.put(name, self._servers)

    def put(self, name: ProcessName, order: Order) -> None:
        """Queue an order for one process until it has a stream."""
        self._waiting.setdefault(name, deque()).append(order)
        wake = self._wake.get(name)
        if wake is not None:
            wake.set()

    def publish_generation(self, name: ProcessName, generation: RingGeneration) -> None:
        """Send one process the newest generation of the ring, again on each new stream."""
        if name in self._wake:
            self.put(name, generation)
        self._generations[name] = generation

    def publish_settled(self, name: ProcessName, settled: Settled) -> None:
        """Tell a worker what became of its pushes, again on each new stream."""
        if name in self._wake:
            self.put(name, settled)
        self._settled[name] = settled

    async def stream(self, name: ProcessName) -> AsyncGenerator[Order]:
        """Yield the servers' addresses, then every order, until `leave` or a newer stream."""
        self._end_stream(name)
        wake = self._wake[name] = asyncio.Event()
        waiting = self._waiting.setdefault(name, deque())
        try:
            async for order in self._orders(name, wake, waiting):
                yield order
        finally:
            # A reconnected process has a newer stream, which this end does not concern.
            if self._wake.get(name) is wake:
                self._broke(name)

    async def _orders(
        self, name: ProcessName, wake: asyncio.Event, waiting: deque[Order]
    ) -> AsyncIterator[Order]:
        yield self._servers
        if name in self._generations:
            # The queue may hold the same generation or an older one; workers ignore those.
            yield self._generations[name]
        if name in self._settled:
            yield self._settled[name]
        while self._wake.get(name) is wake:
            # Before looking at the queue: an order that is put afterwards sets it again.
            wake.clear()
            while waiting and self._wake.get(name) is wake:
                order = waiting[0]
                yield order
                # Only now has the transport taken the order; a broken stream leaves it to the next
                # one.
                if waiting and waiting[0] is order:
                    waiting.popleft()
            if not waiting and self._wake.get(name) is wake:
                await wake.wait()

    def leave(self, name: ProcessName) -> None:
        """End the streams of a process that has ended."""
        self._waiting.pop(name, None)
        self._generations.pop(name, None)
        self._settled.pop(name, None)
        self._end_stream(name)

    def _end_stream(self, name: ProcessName) -> None:
        wake = self._wake.pop(name, None)
        if wake is not None:
            wake.set()
