"""What the master orders about the ring, and the worker's reports about itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, final

from elasticdl.clock import Clock
from elasticdl.dropped import DropCause
from elasticdl.rpc.conversation import RingDrop, RingGeneration, RingReport, RingSave
from elasticdl.worker.pipeline.outbox import RingPosition
from elasticdl.worker.process.shutdown import Draining, Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended, ThreadQueue

_MOST_COPY_ORDERS = 64


class ReportSink(Protocol):
    """Passes reports to the master: the outbox."""

    def say(self, report: RingReport, position: RingPosition) -> None:
        """Send this with the next report, at once."""


@final
class Generations:
    """Thread-safe: the orders' thread puts generations in, the loop's thread takes them.

    `changed` is notified of each newer generation, and when the worker ends. `copies` has the
    orders about copies of the weights.
    """

    def __init__(
        self,
        shutdown: Shutdown,
        clock: Clock,
        drop: Callable[[DropCause], None] = lambda cause: None,
    ) -> None:
        """`drop` counts ignored orders."""
        self._shutdown = shutdown
        self._clock = clock
        self._drop = drop
        self.changed = threading.Condition()
        self.copies: ThreadQueue[RingSave | RingDrop] = ThreadQueue(_MOST_COPY_ORDERS)
        self._newest: RingGeneration | None = None
        self._without_since_s: dict[str, float] = {}
        """Since when the newest ring, and all after it, are without these former members."""
        shutdown.listen(self._wake)
        shutdown.listen(self.copies.finish)

    @property
    def newest(self) -> int:
        """The number of the newest generation, 0 before the first."""
        return self._newest.number if self._newest is not None else 0

    def follow(self, order: RingGeneration | RingSave | RingDrop) -> None:
        """Handle an order of the master about the ring."""
        if isinstance(order, RingGeneration):
            self.put(order)
        else:
            with suppress(Ended):
                self.copies.put(order)

    def put(self, generation: RingGeneration) -> None:
        """The master published this generation; old ones that come late or again are dropped."""
        with self.changed:
            if generation.number <= self.newest:
                self._drop(DropCause.STALE_GENERATION)
                return
            former = self._newest.members if self._newest is not None else ()
            left = {*former, *self._without_since_s} - {*generation.members}
            now_s = self._clock.now_s()
            self._without_since_s = {name: self._without_since_s.get(name, now_s) for name in left}
            self._newest = generation
            self.changed.notify_all()

    def after(self, generation: int, limit_s: float) -> RingGeneration | None:
        """A generation newer than `generation`; blocks until there is one, for at most `limit_s`.

        Raises Ended, but not for a drain.
        """
        with self.changed:
            if not self.changed.wait_for(
                lambda: self.newest > generation or self._ended(), min(limit_s, LOOK_AGAIN_S)
            ):
                return None
            if self._ended():
                raise Ended
            return self._newest

    def lost(self, members: Sequence[str], for_s: float) -> list[str]:
        """Those of these members that the ring has been without for longer than `for_s`."""
        now_s = self._clock.now_s()
        with self.changed:
            since_s = self._without_since_s
            return [member for member in members if now_s - since_s.get(member, now_s) > for_s]

    def _ended(self) -> bool:
        reason = self._shutdown.reason
        # A draining member still takes part until the others have a generation without it.
        return reason is not None and not isinstance(reason, Draining)

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()


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
            # Under one lock with `say`, so that reports leave in the order in which they were made.
            self._report = replace(self._report, **facts)  # type: ignore[arg-type]
            self._sink.say(self._report, self._position)
