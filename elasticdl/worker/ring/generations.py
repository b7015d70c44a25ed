"""The generation of the ring that this worker is to be in, as the master last said it, and what the
worker says in return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, final

from elasticdl.dropped import DropCause
from elasticdl.rpc.conversation import RingDrop, RingGeneration, RingReport, RingSave
from elasticdl.worker.process.channel import LOOK_AGAIN_S, Ended
from elasticdl.worker.process.shutdown import Draining, Shutdown


class ReportSink(Protocol):
    """Who takes the report to the master: the outbox."""

    def say(self, report: RingReport) -> None:
        """It is told with the next report, at once."""


@final
class Generations:
    """Thread-safe: the orders' thread puts generations in, the loop's thread takes them.

    `listen`ers hear of each newer one.
    """

    def __init__(
        self, shutdown: Shutdown, drop: Callable[[DropCause], None] = lambda cause: None
    ) -> None:
        """`drop` counts what is left aside."""
        self._shutdown = shutdown
        self._drop = drop
        self._changed = threading.Condition()
        self._newest: RingGeneration | None = None
        self._listeners: list[Callable[[], None]] = []
        self._copies: Callable[[RingSave | RingDrop], None] = lambda _: None
        shutdown.listen(self._wake)

    @property
    def newest(self) -> int:
        """The number of the newest one, 0 before the first."""
        return self._newest.number if self._newest is not None else 0

    def follow(self, order: RingGeneration | RingSave | RingDrop) -> None:
        """An order of the master's about the ring.

        Copies are somebody else's, once `copies_by` said whose.
        """
        if isinstance(order, RingGeneration):
            self.put(order)
        else:
            self._copies(order)

    def copies_by(self, copies: Callable[[RingSave | RingDrop], None]) -> None:
        """Orders about copies of the weights go there."""
        self._copies = copies

    def put(self, generation: RingGeneration) -> None:
        """The master published this generation. Old ones that come late or again are dropped."""
        with self._changed:
            if generation.number <= self.newest:
                self._drop(DropCause.STALE_GENERATION)
                return
            self._newest = generation
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this, from the thread that puts, after each newer generation."""
        self._listeners.append(listener)

    def after(self, generation: int, limit_s: float) -> RingGeneration | None:
        """One newer than `generation`; blocks until there is one, for at most `limit_s`.

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
    """What this worker last said of itself. Belongs to the loop's thread, but for `leave`."""

    def __init__(self, sink: ReportSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._report = RingReport()

    def ready(self) -> None:
        """Warm: what is left to do is to enter and to take the others' state."""
        self._say(ready=True)

    def entered(self, generation: int) -> None:
        """In it, with the elected state."""
        self._say(entered=generation, problem="")

    def broken(self, generation: int, problem: str) -> None:
        """It broke, or could not be entered."""
        self._say(broken=generation, problem=problem)

    def leave(self) -> None:
        """This worker drains: it wants a generation without itself. From any thread."""
        self._say(leaving=True)

    def _say(self, **facts: object) -> None:
        with self._lock:
            self._report = replace(self._report, **facts)  # type: ignore[arg-type]
            self._sink.say(self._report)
