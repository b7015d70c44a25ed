"""Take one cut over all servers: close gates, agree, freeze, open gates.

The gates open again whatever happens in between.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final

from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.master.gateway.ps_registry import PsRegistry, Server
from elasticdl.rpc.ps_control import ServerControl, ServerCut, ServerSaved
from elasticdl.rpc.retry import delay_s
from elasticdl.shard import Applied, SnapshotId

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class CutLimits:
    """Time limits of the calls to servers, in seconds."""

    gate_s: float = 10.0
    sure_s: float = 10.0
    """Gates stay closed for at least this long after the first call."""
    cut_s: float = 5.0
    ungate_s: float = 2.0
    drop_s: float = 5.0
    drop_tries: int = 12
    drop_delay_s: Callable[[int], float] = delay_s
    """The pause after each try."""
    save_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A consistent view: its version and each worker's last push that all servers include.

    `sequences` are the numbers of those pushes, `reached` those of the last ones on any server.
    `behind` has, by index, the servers that lack some of the latter, with what they have instead.
    """

    version: int
    applied: Mapping[str, Applied]
    sequences: Mapping[str, int] = field(default_factory=dict)
    reached: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def highest(gates: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the last push to admit per worker: if any server has a push, all get it."""
    workers = sorted({worker for gate in gates for worker in gate})
    return {worker: max(gate.get(worker, 0) for gate in gates) for worker in workers}


def agreed(cuts: Sequence[ServerCut], indices: Sequence[int] = ()) -> Cut:
    """Combine the cuts of the servers with these indices into one.

    A push of a worker that died meanwhile may be on some servers only; it does not count. A worker
    that some server never saw has nothing in the cut.
    """
    everywhere = set.intersection(*(set(cut.applied) for cut in cuts))
    applied, sequences = {}, {}
    for worker in sorted(everywhere):
        # The lowest sequence number is on every server.
        least = min(cuts, key=lambda cut: cut.sequences.get(worker, 0))
        applied[worker] = least.applied[worker]
        sequences[worker] = least.sequences.get(worker, 0)
    reached = highest([cut.sequences for cut in cuts])
    behind = {
        str(index): lacking
        for index, cut in zip(indices or range(len(cuts)), cuts, strict=True)
        if (lacking := _lower(cut.sequences, reached))
    }
    return Cut(min(cut.version for cut in cuts), applied, sequences, reached, behind)


def _lower(numbers: Mapping[str, int], than: Mapping[str, int]) -> dict[str, int]:
    """Those that are lower; 0 for what is missing."""
    return {name: numbers.get(name, 0) for name in than if numbers.get(name, 0) < than[name]}


@final
class Snapshots:
    """Takes one cut at a time; saves and drops run concurrently. Use it from one event loop."""

    def __init__(
        self,
        registry: PsRegistry,
        limits: CutLimits = CutLimits(),
        between_steps: asyncio.Lock | None = None,
        lives: Callable[[str], bool] = lambda _worker: False,
    ) -> None:
        """`between_steps` is held while a synchronous step is applied.

        `lives` returns whether a worker may push again.
        """
        self._lives = lives
        self._registry, self._limits = registry, limits
        self._cutting = between_steps or asyncio.Lock()

    @asynccontextmanager
    async def cut(self, snapshot: SnapshotId, *, seal: bool = False) -> AsyncIterator[Cut]:
        """Freeze a view; the gates open when the context ends, or with `seal` by `unseal` only.

        Raises ElasticDLError if a server cannot do its part.
        """
        async with self._cutting:
            servers, limits = self._registry.everyone(), self._limits
            now_s = asyncio.get_running_loop().time
            closed_s = now_s()
            try:
                # First stop all servers, then compare: otherwise their numbers would differ by
                # pushes on their way.
                gates = await _all(
                    [server.control.gate(timeout_s=limits.gate_s) for server in servers]
                )
                until = highest(gates)
                cuts = await _all(
                    [
                        server.control.cut(snapshot, until, timeout_s=limits.cut_s)
                        for server in servers
                    ]
                )
                cut = agreed(cuts, [server.name.index for server in servers])
                if seal:
                    await self._seal(snapshot, servers, cuts)
                if now_s() - closed_s >= limits.sure_s:
                    # This process was suspended. It may handle reports of later pushes before the
                    # cut.
                    raise TransientError(
                        f"the cut took {now_s() - closed_s:.0f} s, so the gates may have timed out"
                    )
                yield cut
            finally:
                # Also after a failure: a closed gate holds up all training until it times out.
                await self._open(servers)

    async def _seal(
        self, snapshot: SnapshotId, servers: Sequence[Server], cuts: Sequence[ServerCut]
    ) -> None:
        """Keep all later pushes out of servers.

        Raises TransientError if one came in before, or if a worker that lives may repeat a push
        that only some servers have: their parts would get it twice from the servers that follow.
        """
        for worker, number in highest([cut.sequences for cut in cuts]).items():
            lack = [
                server.name
                for server, cut in zip(servers, cuts, strict=True)
                if cut.sequences.get(worker, 0) < number
            ]
            if lack and self._lives(worker):
                raise TransientError(f"{lack[0]} lacks the last push of {worker}")
        sealed = await _all(
            [server.control.seal(snapshot, timeout_s=self._limits.cut_s) for server in servers]
        )
        for server, cut, sequences in zip(servers, cuts, sealed, strict=True):
            if _made(sequences) != _made(cut.sequences):
                raise TransientError(f"{server.name} admitted a push between its cut and its seal")

    async def unseal(self, snapshot: SnapshotId) -> None:
        """Undo a seal at all servers: ask each until it answers or is gone."""
        # A cut that is under way may be about to seal; servers refuse that from now on.
        await self._tell_all(
            lambda control: control.unseal(snapshot, timeout_s=self._limits.drop_s),
            f"unseal of view {snapshot}",
            tries=sys.maxsize,
        )

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
    ) -> tuple[ServerSaved, ...]:
        """Have every server write its part of a view below `directory`.

        Servers that know what was changed since the view `base` write only that. Each pauses for
        `pause_s` at most, and no longer once a server has failed. Returns results in index order,
        in which a server that is done pauses until all are. Raises ElasticDLError.
        """
        limit_s, failed = self._limits.save_s, asyncio.Event()
        now_s = asyncio.get_running_loop().time

        async def save_at(server: Server) -> tuple[ServerSaved, float]:
            try:
                saved = await server.control.save(
                    snapshot, directory, base, pause_s, timeout_s=limit_s
                )
                return saved, now_s()
            except ElasticDLError:
                # The checkpoint has failed: the next try waits until the other servers are done.
                if pause_s and not failed.is_set():
                    failed.set()
                    await self.hurry(snapshot)
                raise

        results = await _all([save_at(server) for server in self._registry.everyone()])
        end_s = max((at_s for _, at_s in results), default=0.0)
        return tuple(
            replace(saved, paused_s=saved.paused_s + (end_s - at_s)) for saved, at_s in results
        )

    async def hurry(self, snapshot: SnapshotId) -> None:
        """Have all servers write a view without further pauses. One that fails pauses as before."""
        calls = [
            server.control.hurry(snapshot, timeout_s=self._limits.drop_s)
            for server in self._registry.attached()
        ]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(error, ElasticDLError):
                _LOG.warning("hurry for view %d: %s", snapshot, error)
            elif error is not None:
                raise error

    async def drop(self, snapshot: SnapshotId, *, saved: bool = False) -> None:
        """Release a view at all servers; `saved` makes it the base of the next checkpoint.

        Retry each until it answers, is gone, or the tries run out. An unreleased view costs memory
        and one of the server's few places for views until the server ends.
        """
        await self._tell_all(
            lambda control: control.drop(snapshot, saved=saved, timeout_s=self._limits.drop_s),
            f"drop of view {snapshot}",
            level=logging.DEBUG,
        )

    async def keep(self, snapshots: Sequence[SnapshotId]) -> None:
        """Release all other views at all servers, and open their gates.

        A server that does not answer opens its gate by itself.
        """
        # A cut that begins meanwhile must wait: a call that arrives late would release its view.
        async with self._cutting:
            await self._tell_all(
                lambda control: control.keep(snapshots, timeout_s=self._limits.drop_s),
                "views of an earlier master",
            )

    async def _tell_all(
        self,
        call: Callable[[ServerControl], Awaitable[None]],
        doing: str,
        *,
        tries: int | None = None,
        level: int = logging.WARNING,
    ) -> None:
        tries, pause_s = tries or self._limits.drop_tries, self._limits.drop_delay_s
        await asyncio.gather(
            *(
                server.answer(call, doing, tries=tries, pause_s=pause_s, level=level)
                for server in self._registry.attached()
            )
        )

    async def _open(self, servers: Sequence[Server]) -> None:
        opened = await asyncio.gather(
            *(server.control.ungate(timeout_s=self._limits.ungate_s) for server in servers),
            return_exceptions=True,
        )
        for server, error in zip(servers, opened, strict=True):
            if isinstance(error, ElasticDLError):
                _LOG.warning(
                    "cannot open the gate of %s, which opens by itself within %g s: %s",
                    server.name,
                    self._limits.gate_s,
                    error,
                )
            elif error is not None:
                raise error


def _made(sequences: Mapping[str, int]) -> dict[str, int]:
    """Those of workers that have pushed."""
    return {worker: number for worker, number in sequences.items() if number}


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, or raise the first error after every call has ended."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    values: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        values.append(result)
    return values
