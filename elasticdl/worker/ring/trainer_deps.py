"""What the trainer of a ring is made of, as protocols, so that a ring can be simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from elasticdl.shard import WorkItem
from elasticdl.worker.ring.base import Ring
from elasticdl.worker.ring.reading import RingReading

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.contribution import Part
    from elasticdl.model.ring_step import RingOutcome
    from elasticdl.worker.ring.exchange import Exchange


class MemberStep(Protocol):
    """The methods of `RingStep` and `VirtualStep` that training needs."""

    def train(
        self, parts: Sequence[Part], *, rank: int, size: int, iteration: int, wish: bool = False
    ) -> RingOutcome:
        """Run one step of all members, on what `BatchPart.batches` has of it for this one.

        Raises UserError and the ring's errors.
        """

    def waits(self) -> bool:
        """In `train`: it waits for the others. From any thread."""


class Listener(Protocol):
    """Handles steps and marks besides the master: callbacks, checkpoints, evaluation."""

    def before_step(self, item: WorkItem) -> None:
        """A global minibatch of this item comes next."""

    def after_step(self, loss: float | None, version: int) -> None:
        """The step is applied here (loss None: nothing was computed)."""

    def rate(self, version: int, scale: float) -> None:
        """Set the learning rate for the step after `version`."""

    def at_mark(self, item: WorkItem, version: int, rank: int, stop: Callable[[], bool]) -> bool:
        """Do the work of a mark. False if `stop()` interrupted it: a newer ring waits."""

    def restore(self, directory: str) -> int:
        """Load a checkpoint's values ('': the initial ones); returns its version."""


@dataclass(frozen=True, slots=True)
class RingDeps:
    """The parts of the trainer."""

    ring: Ring
    exchange: Exchange
    step: MemberStep
    reading: RingReading
    listener: Listener
    virtual_workers: int = 0
