"""The seam between the loop and the way in which workers keep one model: parameter servers, or a
ring.
"""

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
    """What `feed` made of a window of a lease's shard.

    With it, the first `end` records of the shard are done; `records` and `bad` count what it adds
    to the batch before. `last`
    ends the lease. `computes` is False where there is nothing to compute: `feed` kept nothing, or
    the lease has no shard.
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
    """A batch with the parameters that it is computed on, and when (monotonic) they were asked for.

    None where nothing is computed.
    """

    batch: Batch
    lookups: Lookups | None = None
    pulled: Pulled | None = None
    asked_at_s: float = 0.0

    @property
    def ready(self) -> tuple[Lookups, Pulled]:
        """What a step needs; only for a batch that computes."""
        assert self.lookups is not None and self.pulled is not None
        return self.lookups, self.pulled


class Trainer(Protocol):
    """`load` is called by one thread, ahead of time; everything else by the loop's.

    Batches come in order.
    """

    @property
    def version(self) -> int:
        """The model's version, as far as this worker knows."""

    def load(self, batch: Batch) -> Loaded:
        """Get what the batch needs to be computed, from the live parameters or from its lease's
        snapshot.

        Blocks as long as that takes. Raises Ended when the worker ends meanwhile, NoLongerNeeded
        when the lease became void, Refused, TransientError after the
        time that may be waited for servers, UserError.
        """

    def drop(self, loaded: Loaded) -> None:
        """This loaded batch will not be trained: its lease was revoked."""

    def train(self, loaded: Loaded) -> float | None:
        """One step; the loss.

        Tells the outbox as soon as the update is in the model for good, which may be later.

        A batch that does not compute only counts as read, after those before it. Raises as `load`.
        """

    def after_all(self, call: Callable[[], None]) -> None:
        """Call this, from any thread, once everything trained so far is in the model and told to
        the outbox.
        """

    def settle(self, timeout_s: float) -> bool:
        """Wait until then, at most `timeout_s`; False if it took longer or went wrong."""
