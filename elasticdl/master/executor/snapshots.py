"""One cut over all servers: gate, agree, freeze, open.

Whatever happens in between, every gate is opened again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.master.gateway.ps_registry import PsRegistry, Server
from elasticdl.rpc.ps_control import ServerCut, ServerSaved
from elasticdl.rpc.retry import delay_s
from elasticdl.shard import Applied, SnapshotId

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_GATE_S = 10.0
# From the first call on, gates are closed for so long at least.
_SURE_S = _GATE_S
_CUT_S = 5.0
_UNGATE_S = 2.0
_DROP_S = 5.0
_DROP_TRIES = 12
_SAVE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cut:
    """One consistent view: its version and each worker's last push that every server has in it."""

    version: int
    applied: Mapping[str, Applied]


def highest(gates: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Up to which of its pushes each worker is let in: what any server has, all get."""
    workers = sorted({worker for gate in gates for worker in gate})
    return {worker: max(gate.get(worker, 0) for gate in gates) for worker in workers}


def agreed(cuts: Sequence[ServerCut]) -> Cut:
    """The view as a whole.

    A worker that died in a push has it on some servers only: that one does not count.

    A worker that some server never saw has nothing in the cut.
    """
    everywhere = set.intersection(*(set(cut.applied) for cut in cuts))
    applied = {}
    for worker in sorted(everywhere):
        least = min(cuts, key=lambda cut: cut.sequences.get(worker, 0))
        applied[worker] = least.applied[worker]
    return Cut(min(cut.version for cut in cuts), applied)


@final
class Snapshots:
    """Cuts one after the other; saving and dropping go on beside. Use it from one event loop."""

    def __init__(self, registry: PsRegistry) -> None:
        self._registry = registry
        self._cutting = asyncio.Lock()

    @asynccontextmanager
    async def cut(self, snapshot: SnapshotId) -> AsyncIterator[Cut]:
        """Freeze a view; the gates open when the context ends.

        Raises ElasticDLError if a server cannot do its part.
        """
        async with self._cutting:
            servers = self._registry.everyone()
            now_s = asyncio.get_running_loop().time
            closed_s = now_s()
            try:
                gates = await _all([server.control.gate(timeout_s=_GATE_S) for server in servers])
                until = highest(gates)
                cut = agreed(
                    await _all(
                        [
                            server.control.cut(snapshot, until, timeout_s=_CUT_S)
                            for server in servers
                        ]
                    )
                )
                if now_s() - closed_s >= _SURE_S:
                    # This process stood still meanwhile. Reports of later pushes may have been
                    # handled before the cut is.
                    raise TransientError(
                        f"the cut took {now_s() - closed_s:.0f} s: the gates may have opened by"
                        " themselves"
                    )
                yield cut
            finally:
                await self._open(servers)

    async def save(self, snapshot: SnapshotId, directory: str) -> tuple[ServerSaved, ...]:
        """Have every server write its part of a view below `directory`; in index order.

        Raises ElasticDLError.
        """
        servers = self._registry.everyone()
        return tuple(
            await _all(
                [server.control.save(snapshot, directory, timeout_s=_SAVE_S) for server in servers]
            )
        )

    async def drop(self, snapshot: SnapshotId) -> None:
        """Release a view wherever it is: each server is asked until it answers, is gone, or was
        asked often enough.
        """
        await asyncio.gather(
            *(self._drop_at(server, snapshot) for server in self._registry.attached())
        )

    @staticmethod
    async def _drop_at(server: Server, snapshot: SnapshotId) -> None:
        """A view that stays costs memory, and one of the few places that a server has for views,
        until the server ends.
        """
        for attempt in range(1, _DROP_TRIES + 1):
            try:
                await server.control.drop(snapshot, timeout_s=_DROP_S)
                return
            except ElasticDLError as error:
                last = error
            if await server.gone_within(delay_s(attempt)):
                return
        _LOG.error(
            "view %d stays on %s, which was asked %d times to drop it: %s",
            snapshot,
            server.name,
            _DROP_TRIES,
            last,
        )

    @staticmethod
    async def _open(servers: Sequence[Server]) -> None:
        opened = await asyncio.gather(
            *(server.control.ungate(timeout_s=_UNGATE_S) for server in servers),
            return_exceptions=True,
        )
        for server, error in zip(servers, opened, strict=True):
            if isinstance(error, ElasticDLError):
                _LOG.warning(
                    "the gate of %s opens by itself within %g s: %s", server.name, _GATE_S, error
                )
            elif error is not None:
                raise error


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, or the first error, raised when every call has ended: none goes on behind our
    back.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
