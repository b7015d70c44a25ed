"""Makes every server refuse a worker, and asks what it had really pushed."""

from __future__ import annotations

import asyncio
import logging
from typing import final

from elasticdl.errors import ElasticDLError
from elasticdl.master.gateway.ps_registry import PsRegistry, Server
from elasticdl.rpc.ps_control import Fenced
from elasticdl.rpc.retry import delay_s
from elasticdl.shard import Applied

_LOG = logging.getLogger(__name__)
_ATTEMPT_S = 2.0


@final
class Fences:
    """Every worker that was ever fenced, so that a server that comes back later refuses it, too."""

    def __init__(self, registry: PsRegistry) -> None:
        self._registry = registry
        self._fenced: dict[str, None] = {}

    async def fence(self, worker: str) -> tuple[Applied | None, ...]:
        """What each server of the job last had of `worker`, in index order; None of one that is
        away, which is fenced as it comes up.

        Asks until a server answers or is gone: the cluster's word, or 10 s of silence, ends the
        wait for a dead one.
        """
        self._fenced[worker] = None
        servers = self._registry.attached()
        answers = await asyncio.gather(*(self._ask(server, worker) for server in servers))
        known = {
            server.name.index: answer.applied
            for server, answer in zip(servers, answers, strict=True)
            if answer is not None
        }
        return tuple(known.get(index) for index in range(self._registry.number))

    async def catch_up(self, server: Server) -> None:
        """Tell a server that came up of everybody who is fenced.

        Returns when it knows, or is gone.
        """
        await asyncio.gather(*(self._ask(server, worker) for worker in tuple(self._fenced)))

    async def _ask(self, server: Server, worker: str) -> Fenced | None:
        attempt = 0
        while not server.gone.is_set():
            attempt += 1
            try:
                return await server.control.fence(worker, timeout_s=_ATTEMPT_S)
            except ElasticDLError as error:
                _LOG.warning(
                    "fence of %s at %s, attempt %d: %s", worker, server.name, attempt, error
                )
            await server.gone_within(delay_s(attempt))
        return None
