"""The master's side of the ring.

It publishes each generation with its own rendezvous, and turns copies of weights into files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from elasticdl.cluster.base import ProcessName
from elasticdl.errors import TransientError
from elasticdl.master.core.commands import PublishRing
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.rpc.conversation import RingDrop, RingGeneration, RingSave, RingSaved
from elasticdl.rpc.ps_control import ServerSaved
from elasticdl.rpc.rendezvous import Rendezvous, new_scopes
from elasticdl.shard import SnapshotId

_SAVE_S = 600.0


class RendezvousServer(Protocol):
    """Where the members of a generation meet: `rpc.rendezvous.Rendezvous`."""

    async def start(self, host: str = "", port: int = 0, *, reuse_port: bool = False) -> int:
        """Listen and return the port. Raises OSError if that is impossible.

        `reuse_port`: another process holds the port for this one.
        """

    def open(self, scopes: Sequence[str]) -> None:
        """Serve the members of a generation until it is withdrawn; their scopes by rank."""

    def withdraw(self, scopes: Sequence[str]) -> None:
        """Withdraw a generation that failed or was superseded."""

    async def close(self) -> None:
        """Stop listening, and withdraw every scope."""


@dataclass(frozen=True, slots=True)
class _Saving:
    """A worker that writes its copy of the weights."""

    holder: ProcessName
    directory: str
    done: asyncio.Future[RingSaved]


@final
class RingCoordinator:
    """Coordinates the ring. Use it from one event loop."""

    def __init__(
        self, orders: OrderStreams, begin_from: str = "", rendezvous: RendezvousServer | None = None
    ) -> None:
        """`rendezvous`: by default one over HTTP."""
        self._orders = orders
        self.begin_from = begin_from
        """The checkpoint that the job begins with, or ''; known before the first member joins."""
        self._rendezvous = rendezvous if rendezvous is not None else Rendezvous()
        self._port = 0
        self._scopes: tuple[str, ...] = ()
        self._members: tuple[ProcessName, ...] = ()
        self._leaders: set[ProcessName] = set()
        """Rank 0 of this generation and of earlier ones, whose last reports may still come."""
        self._copies: dict[SnapshotId, ProcessName] = {}
        self._saving: dict[SnapshotId, _Saving] = {}

    async def start(self, host: str, port: int = 0, *, reuse_port: bool = False) -> int:
        """Serve rendezvous and return the port. Raises OSError if that is impossible."""
        self._port = await self._rendezvous.start(host, port, reuse_port=reuse_port)
        return self._port

    async def close(self) -> None:
        """Stop serving."""
        await self._rendezvous.close()

    def publish(self, command: PublishRing) -> None:
        """End the previous generation, and publish a new one to its members.

        Members of the previous generation that are not in the new one hear of it too.
        """
        self.withdraw()
        self._scopes = new_scopes(command.generation, len(command.members))
        self._rendezvous.open(self._scopes)
        generation = RingGeneration(
            command.generation,
            tuple(map(str, command.members)),
            command.holders,
            command.first_item,
            "" if command.holders else command.restore_from or self.begin_from,
            self._port,
        )
        scopes = dict(zip(command.members, self._scopes, strict=False))
        for name in dict.fromkeys((*self._members, *command.members)):
            # A scope is its member's secret.
            mine = replace(generation, scope=scopes.get(name, ""))
            self._orders.publish_generation(name, mine)
        self._members = command.members
        self._leaders.update(command.members[:1])

    def restore(self, members: tuple[ProcessName, ...], saving: SnapshotId | None) -> None:
        """Continue the generation that an earlier master published.

        Its rank 0 has the copy of the weights for snapshot `saving`.
        """
        self._members = members
        self._leaders.update(members[:1])
        if saving is not None and members:
            self._copies[saving] = members[0]

    def withdraw(self) -> None:
        """End the newest generation; members that wait in its rendezvous get an error."""
        self._rendezvous.withdraw(self._scopes)
        self._scopes = ()

    def may_copy(self, worker: ProcessName) -> bool:
        """Whether the worker has been told to keep copies of its weights."""
        return worker in self._leaders

    def cut(self, worker: ProcessName, snapshot: SnapshotId) -> None:
        """Note that the worker keeps a copy of its weights for `snapshot`.

        A ring that re-forms at the barrier makes another copy: the first is kept.
        """
        if self._copies.setdefault(snapshot, worker) != worker:
            self._orders.put(worker, RingDrop(snapshot))

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
    ) -> tuple[ServerSaved, ...]:
        """Have the worker write its copy below `directory`. Raises TransientError on failure.

        A ring writes all its weights without pauses: `base` and `pause_s` change nothing.
        """
        holder = self._copies.get(snapshot)
        if holder is None:
            raise TransientError(f"the copy of the weights for snapshot {snapshot} is lost")
        done: asyncio.Future[RingSaved] = asyncio.get_running_loop().create_future()
        self._saving[snapshot] = _Saving(holder, directory, done)
        self._orders.put(holder, RingSave(snapshot, directory))
        try:
            async with asyncio.timeout(_SAVE_S):
                saved = await done
        except TimeoutError as error:
            raise TransientError(
                f"{holder} did not write its copy of the weights within {_SAVE_S:.0f} s"
            ) from error
        finally:
            del self._saving[snapshot]
        if saved.problem:
            raise TransientError(f"{holder}: {saved.problem}")
        return (
            ServerSaved(
                saved.files,
                saved.version,
                saved.rows,
                saved.parameters,
                paused_s=saved.paused_s,
            ),
        )

    def saved(self, worker: ProcessName, saved: RingSaved) -> bool:
        """Record a worker's result of `save`; return False if nobody waits for it."""
        waiting = self._saving.get(saved.snapshot)
        if waiting is None or waiting.done.done():
            return False
        # An earlier master may have ordered the same copy below another directory.
        if (waiting.holder, waiting.directory) != (worker, saved.directory):
            return False
        waiting.done.set_result(saved)
        return True

    def drop(self, snapshot: SnapshotId) -> None:
        """Release a copy that is no longer needed. Its holder first completes a `save`."""
        holder = self._copies.pop(snapshot, None)
        if holder is not None:
            self._orders.put(holder, RingDrop(snapshot))

    def leave(self, name: ProcessName) -> None:
        """Forget an ended worker and its copies."""
        self._leaders.discard(name)
        for snapshot in [snapshot for snapshot, holder in self._copies.items() if holder == name]:
            del self._copies[snapshot]
        for snapshot, waiting in self._saving.items():
            if waiting.holder == name:
                problem = "it ended, and its copy of the weights is lost"
                self.saved(name, RingSaved(snapshot, waiting.directory, problem=problem))
