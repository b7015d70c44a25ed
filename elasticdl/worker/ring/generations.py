"""The ring generation that this worker is to join, and the worker's reports about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, final

from elasticdl.dropped import DropCause
from elasticdl.rpc.conversation import RingDrop, RingGeneration, RingReport, RingSave
from elasticdl.worker.pipeline.outbox import RingPosition
from elasticdl.worker.process.channel import LOOK_AGAIN_S, Ended
from elasticdl.worker.process.shutdown import Draining, Shutdown


class ReportSink(Protocol):
    """Passes reports to the master: the outbox."""

    def say(self, report: RingReport, position: RingPosition) -> None:
        """Send this with the next report, at once."""


@final
class Generations:
    """Thread-safe: the orders' thread puts generations in, the loop's thread takes them.

    `listen`ers are called for each newer one.
    """

    def __init__(
        self, shutdown: Shutdown, drop: Callable[[DropCause], None] = lambda cause: None
    ) -> None:
        """`drop` counts ignored orders."""
        self._shutdown = shutdown
        self._drop = drop
        self._changed = threading.Condition()
        self._newest: RingGeneration | None = None
        self._listeners: list[Callable[[], None]] = []
        self._copies: Callable[[RingSave | RingDrop], None] = lambda _: None
        shutdown.listen(self._wake)

    @property
    def newest(self) -> int:
        """The number of the newest generation, 0 before the first."""
        return self._newest.number if self._newest is not None else 0

    def follow(self, order: RingGeneration | RingSave | RingDrop) -> None:
        """Handle an order of the master about the ring.

        Orders about copies go to the handler of `copies_by`.
        """
        if isinstance(order, RingGeneration):
            self.put(order)
        else:
            self._copies(order)

    def copies_by(self, copies: Callable[[RingSave | RingDrop], None]) -> None:
        """Send orders about copies of the weights there."""
        self._copies = copies

    def put(self, generation: RingGeneration) -> None:
        """The master published this generation; old ones that come late or again are dropped."""
        with self._changed:
            if generation.number <= self.newest:
                self._drop(DropCause.STALE_GENERATION)
                return
            self._newest = generation
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the thread that puts, after each newer generation."""
        self._listeners.append(listener)

    def after(self, generation: int, limit_s: float) -> RingGeneration | None:
        """A generation newer than `generation`; blocks until there is one, for at most `limit_s`.

        Raises Ended, but not for a drain.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self.newest > generation or self._ended(), min(limit_s, LOOK_AGAIN_S)
            ):
                return None
            if self._ended():
                raise Ended
            return self._newest

    def _ended(self) -> bool:
        reason = self._shutdown.reason
        return reason is not None and not isinstance(reason, Draining)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@final
class MemberReporter:
    """This worker's latest report about itself.

    Belongs to the loop's thread, except for `leave`.
    """

    def __init__(self, sink: ReportSink, position: RingPosition) -> None:
        """`position` goes with each report, as it is then."""
        self._sink = sink
        self._position = position
        self._lock = threading.Lock()
        self._report = RingReport()

    def ready(self) -> None:
        """Compiled; only joining and taking the others' state remain."""
        self._say(ready=True)

    def entered(self, generation: int) -> None:
        """Joined the generation, with the elected state."""
        self._say(entered=generation, problem="")

    def broken(self, generation: int, problem: str) -> None:
        """The generation broke, or could not be joined."""
        self._say(broken=generation, problem=problem)

    def leave(self) -> None:
        """This worker drains: it requests a generation without itself. From any thread."""
        self._say(leaving=True)

    def _say(self, **facts: object) -> None:
        with self._lock:
            self._report = replace(self._report, **facts)  # type: ignore[arg-type]
            self._sink.say(self._report, self._position)
