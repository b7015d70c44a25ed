"""The protocol between the loop and the strategies: parameter servers, or a ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.rpc.parameters import Pulled
from elasticdl.worker.pipeline.leases import HeldLease

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.step import Lookups


@dataclass(frozen=True, slots=True)
class Batch:
    """What `feed` makes of a window of a lease's shard.

    With it, the first `end` records of the shard are done. `records` and `bad` count what it adds
    to the batch before. `last` ends the lease. `computes` is False if there is nothing to compute:
    `feed` kept nothing, or the lease has no shard.
    """

    held: HeldLease
    end: int = 0
    records: int = 0
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    last: bool = True
    computes: bool = False
    features: Any = None
    labels: Any = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch with its parameters, and the monotonic time of their request.

    None if nothing is computed.
    """

    batch: Batch
    lookups: Lookups | None = None
    pulled: Pulled | None = None
    asked_at_s: float = 0.0
    turn: int = 0
    """Its number, in a synchronous step."""

    @property
    def ready(self) -> tuple[Lookups, Pulled]:
        """The arguments of a step; only for a batch that computes."""
        assert self.lookups is not None and self.pulled is not None
        return self.lookups, self.pulled


class Trainer(Protocol):
    """The training side of a strategy.

    One thread calls `load` ahead of time; the loop's thread calls everything else. Batches come in
    order.
    """

    @property
    def version(self) -> int:
        """The model's version, as far as this worker knows."""

    def load(self, batch: Batch) -> Loaded:
        """Get the batch's parameters, live or from a snapshot; blocks as long as that takes.

        Raises Ended if the worker ends meanwhile, NoLongerNeeded if the lease becomes void,
        Refused, TransientError after the time limit for servers, and UserError.
        """

    def drop(self, loaded: Loaded) -> None:
        """This loaded batch will not be trained: its lease was revoked."""

    def train(self, loaded: Loaded) -> float | None:
        """Run one step; returns the loss.

        It informs the outbox once the update is in the model for good, which may be later. A batch
        that does not compute only counts as read, after those before it. Raises as `load`.
        """

    def after_all(self, call: Callable[[], None]) -> None:
        """Call `call`, from any thread, once all training so far is in the model and reported."""

    def settle(self, timeout_s: float) -> bool:
        """Wait for that, at most `timeout_s`; False if it takes longer or fails."""
