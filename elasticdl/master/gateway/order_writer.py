"""The server's side of one stream of orders, on which the process may report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, final

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import AsyncContext


@final
class OrderWriter:
    """Writes orders and answers to reports, one at a time. Use it from one event loop."""

    def __init__(self, context: AsyncContext) -> None:
        self._context = context
        self._writing = asyncio.Lock()

    async def write(self, order: pb.Order) -> None:
        """Write one message; gRPC takes no second one meanwhile."""
        async with self._writing:
            await self._context.write(order)

    @asynccontextmanager
    async def reading(self, work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Read messages beside the body; an error of `work` ends the stream."""
        handler = asyncio.current_task()
        assert handler is not None

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                handler.cancel()

        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(ended)
        try:
            yield
        finally:
            task.remove_done_callback(ended)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
