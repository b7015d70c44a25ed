"""Synchronous steps with parameter servers: which gradients make up a step.

A step is the mean of a fixed number of gradients, all computed at one version. A worker takes a
*turn* before it computes one, and ends it when every server has the gradient. The step is complete
with the first gradients that come; with backup workers more turns are given than that. It also ends
with fewer if no worker can add another: at the end of an epoch, or of the data. A step never mixes
epochs.

Nothing here is journaled. A master that takes over asks the servers for the last step, and opens
the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from elasticdl.cluster.base import ProcessName
from elasticdl.shard import ShardId

_ENDED_KEPT = 64
"""Ended turns per worker: a worker repeats a call whose answer was lost, and ends others meanwhile.
"""

LeasePart: TypeAlias = tuple[ProcessName, ShardId, int]
"""A worker's lease: shard and attempt."""


@dataclass(frozen=True, slots=True)
class TrainingLease:
    """A training lease of a worker that is at work."""

    worker: ProcessName
    shard: ShardId
    attempt: int
    epoch: int

    @property
    def part(self) -> LeasePart:
        return self.worker, self.shard, self.attempt


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where further gradients may come from.

    `ready` are the workers that can get a lease. `returning` is the lowest epoch of shards that are
    being taken back, `available` that of shards to lease; None if there are none. `held`: no turn
    is given, because all servers return to a checkpoint.
    """

    leases: Sequence[TrainingLease] = ()
    ready: frozenset[ProcessName] = frozenset()
    returning: int | None = None
    available: int | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Contribution:
    """A gradient that every server has: its push, and how many examples it is the mean of."""

    worker: ProcessName
    sequence: int
    examples: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn number `number` of a worker, which belongs to a step."""

    worker: ProcessName
    number: int
    step: int


@dataclass(frozen=True, slots=True)
class _Ask:
    number: int
    epoch: int
    order: int


@final
class Steps:
    """The open step. It decides from what workers say and from the `Outlook`; no I/O, no clock."""

    def __init__(self, full: int, backups: int) -> None:
        """`full`: gradients of a full step; `backups`: turns that it does not wait for."""
        self._full = full
        self._backups = backups
        self.step = 1
        """Number of the open step."""
        self._epoch: int | None = None
        self._asks: dict[ProcessName, _Ask] = {}
        self._asked = 0
        self._turns: dict[tuple[ProcessName, int], Contribution | None] = {}
        """Turns of the open step, in the order of their gradients; None: still computing."""
        self._closing: tuple[Contribution, ...] = ()
        """What is being applied: the step is complete."""
        self._read: set[LeasePart] = set()
        """Leases whose last minibatch is in a step."""
        self._ended: dict[ProcessName, dict[int, bool]] = {}
        """The newest turns that each worker ended, and whether the gradient was accepted."""

    @property
    def turns(self) -> int:
        """Turns of one step, at most."""
        return self._full + self._backups

    def continue_after(self, step: int) -> None:
        """Open the step after one that an earlier master applied."""
        self.step = step + 1

    # workers

    def ask(self, worker: ProcessName, number: int, epoch: int) -> None:
        """A worker has a minibatch of `epoch` and wants its turn `number`, from 1."""
        self._asked += 1
        before = self._asks.get(worker)
        order = before.order if before is not None else self._asked
        self._asks[worker] = _Ask(number, epoch, order)

    def withdraw(self, worker: ProcessName) -> None:
        """The worker no longer waits."""
        self._asks.pop(worker, None)

    def has_turn(self, worker: ProcessName, number: int) -> bool:
        """Whether this turn was given and belongs to the open step."""
        return (worker, number) in self._turns

    def end(
        self, worker: ProcessName, number: int, contribution: Contribution | None, lease: LeasePart
    ) -> bool:
        """End a turn with a gradient that all servers have, or give it up.

        Returns False for a gradient that came too late: the step is complete without it.
        """
        ended = self._ended.setdefault(worker, {})
        if number in ended:
            return ended[number]
        key = worker, number
        accepted = ended[number] = key in self._turns
        if len(ended) > _ENDED_KEPT:
            del ended[next(iter(ended))]
        if not accepted:
            return False
        # At the end: the first gradients complete the step.
        del self._turns[key]
        if contribution is not None:
            self._turns[key] = contribution
        return True

    def read(self, lease: LeasePart) -> None:
        """The last minibatch of a lease is in a step: no gradient follows."""
        self._read.add(lease)

    def remove(self, worker: ProcessName) -> list[int]:
        """Remove a worker that lost its leases from the open step.

        Returns the pushes that are dropped. A step that is being applied keeps its gradients.
        """
        self._asks.pop(worker, None)
        mine = [key for key in self._turns if key[0] == worker]
        dropped = [
            contribution.sequence
            for key in mine
            if (contribution := self._turns.pop(key)) is not None
        ]
        return dropped

    def forget(self, worker: ProcessName) -> None:
        self.remove(worker)
        self._ended.pop(worker, None)

    def applying(self, worker: ProcessName) -> list[int]:
        """Pushes of a worker in the step that is being applied."""
        return [
            contribution.sequence for contribution in self._closing if contribution.worker == worker
        ]

    def involved(self) -> set[ProcessName]:
        """Workers with a turn in the open step."""
        return {worker for worker, _ in self._turns}

    # decisions

    def give(self, outlook: Outlook) -> list[Turn]:
        """Give turns to waiting workers."""
        if self._closing or outlook.held:
            return []
        turns = []
        busy = self._busy(outlook)
        limit = max(self._full, min(self._full + self._backups, len(busy)))
        counts = Counter(worker for worker, _ in self._turns)
        if not self._turns:
            self._epoch = None
        # Whoever has fewest turns first; an empty step takes the lowest epoch.
        for worker, ask in sorted(
            self._asks.items(), key=lambda item: (item[1].epoch, counts[item[0]], item[1].order)
        ):
            if self._epoch is None and self._may_come(ask.epoch - 1, outlook):
                # A step of this epoch would close without the rest of the epoch before.
                break
            if self._epoch is not None and ask.epoch != self._epoch:
                continue
            reserved = sum(
                counts[other] < counts[worker] and not self._blocked(other, ask.epoch)
                for other in busy
            )
            if limit - len(self._turns) <= reserved:
                continue
            self._epoch = ask.epoch
            self._turns[worker, ask.number] = None
            counts[worker] += 1
            del self._asks[worker]
            turns.append(Turn(worker, ask.number, self.step))
        return turns

    def complete(self, outlook: Outlook) -> tuple[Contribution, ...]:
        """Return the gradients of the open step if it is complete; `applied` must follow."""
        if self._closing or self._epoch is None:
            return ()
        contributions = [
            contribution for contribution in self._turns.values() if contribution is not None
        ]
        if not contributions:
            return ()
        if len(contributions) < self._full:
            computing = len(self._turns) > len(contributions)
            if computing or self._may_come(self._epoch, outlook) or self._eligible():
                return ()
        self._closing = tuple(contributions[: self._full])
        # Who still computes is too late.
        self._turns.clear()
        self._epoch = None
        return self._closing

    def applied(self) -> tuple[Contribution, ...]:
        """All servers applied the step: open the next one. Returns what was applied."""
        closed, self._closing = self._closing, ()
        self.step += 1
        return closed

    def prune(self, held: Iterable[LeasePart]) -> None:
        """Forget leases that have ended."""
        self._read &= set(held)

    def missing(self, outlook: Outlook) -> set[ProcessName]:
        """Workers that the open step waits for."""
        computing = {key[0] for key, contribution in self._turns.items() if contribution is None}
        coming = {
            worker
            for worker in self._busy(outlook) - self.involved()
            if not self._blocked(worker, self._epoch)
        }
        return computing | coming

    def why_open(self, outlook: Outlook) -> str:
        """Why the open step is not complete, in words; '' if nobody waits for it."""
        contributors = [
            contribution.worker for contribution in self._turns.values() if contribution is not None
        ]
        if self._closing or not (contributors or self._asks):
            return ""
        computing = {key[0] for key, contribution in self._turns.items() if contribution is None}
        missing = [
            f"{worker} computes its gradient" if worker in computing else f"{worker} reads"
            for worker in sorted(self.missing(outlook))
        ] or ["shards of other workers are being leased again"]
        return (
            f"step {self.step} has {len(contributors)} of {self._full} gradients:"
            f" {', '.join(missing[:4])}"
        )

    def _busy(self, outlook: Outlook) -> set[ProcessName]:
        leased = {lease.worker for lease in outlook.leases if lease.part not in self._read}
        return leased | set(self._asks)

    def _blocked(self, worker: ProcessName, epoch: int | None) -> bool:
        """Whether a worker waits with a minibatch of another epoch."""
        ask = self._asks.get(worker)
        return ask is not None and ask.epoch != epoch

    def _eligible(self) -> bool:
        return any(ask.epoch == self._epoch for ask in self._asks.values())

    def _may_come(self, epoch: int, outlook: Outlook) -> bool:
        """Whether a worker that does not wait may still bring a minibatch of `epoch` or before."""
        if any(
            lease.epoch <= epoch and lease.part not in self._read and lease.worker not in self._asks
            for lease in outlook.leases
        ):
            return True
        if outlook.returning is not None and outlook.returning <= epoch:
            return True
        free = outlook.ready - self._busy(outlook)
        return outlook.available is not None and outlook.available <= epoch and bool(free)
