"""A worker's part in synchronous steps: turns to compute a gradient, and what became of it.

The pusher ends a turn when every server has the gradient. Its records count when the master says
that the step was applied; until then everything behind them waits here, in order.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from elasticdl.errors import TransientError
from elasticdl.rpc.conversation import Settled
from elasticdl.shard import Applied
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.leases import HeldLease, LeaseKeeper
from elasticdl.worker.pipeline.retry import NoLongerNeeded
from elasticdl.worker.pipeline.trainer import Batch
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import Ended

_log = logging.getLogger(__name__)

WAIT_S = 5.0
_LEAST_S = 0.05
"""Pause after an answer that came at once without a turn."""


class TurnSource(Protocol):
    """Gives turns: the master's client."""

    def take_turn(self, number: int, epoch: int, revocation: int, wait_s: float) -> tuple[int, str]:
        """The step of turn `number`, or 0 and why there is none yet. Raises TransientError."""

    def end_turn(
        self, number: int, sequence: int, examples: float, applied: Applied, *, last: bool
    ) -> bool:
        """Whether the gradient is part of its step. Raises TransientError."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A push without an outcome, or what comes after one: `sequence` is 0."""

    sequence: int
    held: HeldLease | None
    then: Callable[[], None]


@final
class Turns:
    """Thread-safe. The loop takes turns, the pusher ends them, orders settle them."""

    def __init__(
        self, source: TurnSource, keeper: LeaseKeeper, shutdown: Shutdown, *, alone: bool = False
    ) -> None:
        """`alone`: the job was given one worker, so a turn waits for its last push only."""
        self.waits_for = TimeUse.ACKNOWLEDGEMENT if alone else TimeUse.TURN
        self._source = source
        self._keeper = keeper
        self._shutdown = shutdown
        self._number = 0
        self._waiting: deque[_Waiting] = deque()
        self._settled = Settled(0, 0)
        self._late: set[int] = set()
        """Waiting pushes that came too late for their step."""
        self._lost: set[HeldLease] = set()
        """Leases with a dropped push among the settled ones: nothing after it counts."""
        self._failed: set[HeldLease] = set()
        """Leases with a dropped push, known at once: they get no further gradient."""
        self._lock = threading.RLock()

    def take(self, batch: Batch) -> int:
        """Wait for a turn to compute the gradient of a batch; returns its number.

        Raises Ended if the worker ends first, and NoLongerNeeded if the lease becomes void.
        """
        number, lease = self._number + 1, batch.held.lease
        while True:
            if self._shutdown:
                raise Ended
            if self._keeper.is_void(batch.held) or self.has_failed(batch.held):
                raise NoLongerNeeded
            step, reason = self._source.take_turn(number, lease.epoch, lease.revocation, WAIT_S)
            if step:
                # Only now: a repeated request names the same turn.
                self._number = number
                return number
            _log.debug("no turn yet: %s", reason)
            self._shutdown.wait(_LEAST_S)

    def give_up(self, number: int, held: HeldLease) -> None:
        """End a turn without a gradient, so that another worker gets it."""
        try:
            self._source.end_turn(number, 0, 0.0, _position(held, 0), last=False)
        except TransientError as error:
            # The master gives the turn to others when it misses this worker.
            _log.warning("cannot give up a turn: %s", error.message)

    def end(
        self, number: int, sequence: int, examples: float, batch: Batch, then: Callable[[], None]
    ) -> None:
        """Every server has this push; `then` is called when it is in the model.

        `then` is not called if the step does without it: the master then revokes the lease.
        """
        with self._lock:
            # Before the call: its outcome may come before the answer.
            self._waiting.append(_Waiting(sequence, batch.held, then))
        position = _position(batch.held, batch.end)
        if not self._source.end_turn(number, sequence, examples, position, last=batch.last):
            _log.info("a gradient came too late for its step; its records go back")
            with self._lock:
                self._failed.add(batch.held)
                # In its place: the outcome of earlier pushes of this lease may not be known yet.
                self._late.add(sequence)
                self._run_first()

    def after_all(self, call: Callable[[], None], batch: Batch | None = None) -> None:
        """Call `call` once all before it is settled.

        With a batch, which has nothing to compute, it is not called if its lease lost a push.
        """
        if batch is not None and batch.last and self._waiting:
            # Told only after what waits; the step must not wait for a gradient of this lease.
            self._source.end_turn(0, 0, 0.0, _position(batch.held, batch.end), last=True)
        with self._lock:
            self._waiting.append(_Waiting(0, batch.held if batch is not None else None, call))
            self._run_first()

    def has_failed(self, held: HeldLease) -> bool:
        """Whether a push of this lease was dropped."""
        with self._lock:
            return held in self._failed

    def settled(self, order: Settled) -> None:
        """Handle the master's word on pushes; a repeated one changes nothing."""
        with self._lock:
            if order.through >= self._settled.through:
                self._settled = order
            self._run_first()

    @property
    def version(self) -> int:
        """The model's version with the last settled push."""
        return self._settled.version

    def _run_first(self) -> None:
        """Settle from the front, as far as the outcomes are known."""
        while self._waiting:
            first = self._waiting[0]
            late = first.sequence in self._late
            if first.sequence > self._settled.through and not late:
                return
            self._waiting.popleft()
            self._late.discard(first.sequence)
            if first.held is not None and (late or first.sequence in self._settled.dropped):
                self._failed.add(first.held)
                self._lost.add(first.held)
            if first.held is None or first.held not in self._lost:
                first.then()
        waiting = {entry.held for entry in self._waiting}
        # Void leases do not come back, but what waits behind their dropped pushes must not count.
        for leases in (self._lost, self._failed):
            leases -= {held for held in leases - waiting if self._keeper.is_void(held)}


def _position(held: HeldLease, offset: int) -> Applied:
    shard = held.lease.shard
    assert shard is not None
    return Applied(shard.id, held.lease.attempt, offset)
