"""Make every server refuse a worker, and collect which pushes each server has applied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import final

from elasticdl.master.gateway.ps_registry import PsRegistry, Server
from elasticdl.rpc.ps_control import Fenced

_ATTEMPT_S = 2.0


@final
class Fences:
    """All workers ever fenced, so that a restarted server refuses them too."""

    def __init__(self, registry: PsRegistry, between_steps: asyncio.Lock | None = None) -> None:
        """`between_steps` is held while a synchronous step is applied."""
        self._registry = registry
        self._between_steps = between_steps or asyncio.Lock()
        self._fenced: dict[str, None] = {}

    def restore(self, workers: Iterable[str]) -> None:
        """Remember the workers that an earlier master fenced."""
        self._fenced.update(dict.fromkeys(workers))

    async def fence(self, worker: str) -> tuple[Fenced | None, ...]:
        """Return the last push of `worker` at each server, in index order; None if absent.

        An absent server fences the worker when it attaches. Asks each server until it answers or is
        gone. The cluster's report, or 10 s of silence, ends the wait for a dead server. If its
        memory may outlive it, its next process is asked, for `PsRegistry.returns_s` at most.
        """
        # Before asking: a server that attaches meanwhile catches up from this list.
        self._fenced[worker] = None
        while True:
            indices = self._registry.indices
            # Servers that stand by may have the parameters soon.
            spare = [
                server for server in self._registry.attached() if server.name.index not in indices
            ]
            # A server that answers in the middle of a step would deny a push that it then applies.
            async with self._between_steps:
                answers = await asyncio.gather(
                    *(self._ask_index(index, worker) for index in indices)
                )
                await asyncio.gather(*(self._ask(server, worker) for server in spare))
            if self._registry.indices == indices:
                break
        known = (
            answer if answer is not None and answer.applied is not None else None
            for answer in answers
        )
        return tuple(known)

    async def _ask_index(self, index: int, worker: str) -> Fenced | None:
        """Ask the server of an index, and its next process if it ends meanwhile."""
        while (server := await self._registry.present(index)) is not None:
            if (answer := await self._ask(server, worker)) is not None:
                return answer
            if not self._registry.returns_s:
                return None
        return None

    async def catch_up(self, server: Server) -> None:
        """Send all fences to a newly attached server.

        Returns when the server knows them, or is gone.
        """
        await asyncio.gather(*(self._ask(server, worker) for worker in tuple(self._fenced)))

    async def _ask(self, server: Server, worker: str) -> Fenced | None:
        return await server.answer(
            lambda control: control.fence(worker, timeout_s=_ATTEMPT_S), f"fence of {worker}"
        )
