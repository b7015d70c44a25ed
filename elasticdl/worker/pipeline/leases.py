"""Keep the worker supplied with leases: a thread requests the next one while one is worked on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never, final

from elasticdl.dropped import DropCause
from elasticdl.errors import PermanentError, TransientError
from elasticdl.rpc.conversation import Finished, LeaseAnswer, Wait
from elasticdl.shard import Lease, WorkItem
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended, ThreadQueue

_log = logging.getLogger(__name__)

WAIT_S = 10.0
AHEAD = 2
"""Leases in progress: the current one and the next."""

_LEAST_S = 0.05
"""Shortest interval between two requests, so that a master that answers at once costs no core."""

_GIVE_UP_S = 600.0

_WAIT_SHARE = 0.125
_LONGEST_WAIT_S = 1.0


def report_wait_s(lease_s: float) -> float:
    """How long a request waits for a report to travel with, if a lease takes `lease_s`."""
    return min(_WAIT_SHARE * lease_s, _LONGEST_WAIT_S)


class LeaseSource(Protocol):
    """Grants leases: the master's client."""

    def request_lease(self, wait_s: float) -> LeaseAnswer:
        """Block up to `wait_s` for a lease. Raises Refused, TransientError."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease in hand; `LeaseKeeper.is_void` tells whether it still counts."""

    lease: Lease


@final
class LeaseKeeper:
    """Thread-safe: the reader takes leases, the loop makes room for more, orders revoke them."""

    def __init__(
        self,
        source: LeaseSource,
        outbox: Outbox,
        shutdown: Shutdown,
        report_wait_s: Callable[[float], float] = report_wait_s,
    ) -> None:
        self._source = source
        self._report_wait_s = report_wait_s
        self._outbox = outbox
        self._shutdown = shutdown
        self._leases: ThreadQueue[HeldLease] = ThreadQueue(depth=AHEAD)
        self._ahead: set[HeldLease] = set()
        self._revocation = 0
        self._voided: list[Lease] = []
        self._worked: HeldLease | None = None
        """The newest lease that was worked through."""
        self._worked_s, self._lease_s = time.monotonic(), 0.0
        """When that was, and how long after the one before."""
        self._changed = threading.Condition()
        shutdown.listen(self._leases.close)
        shutdown.listen(self._wake)

    @property
    def revocation(self) -> int:
        """Leases of earlier revocations are void."""
        return self._revocation

    def is_void(self, held: HeldLease) -> bool:
        """Whether the master has revoked this lease."""
        return held.lease.revocation < self._revocation

    def start(self) -> None:
        threading.Thread(target=self._run, name="keeper", daemon=True).start()

    def next(self) -> HeldLease:
        """The next lease, in the order granted; blocks until there is one.

        Raises Ended if there will be none.
        """
        return self._leases.get()

    def worked_through(self, held: HeldLease) -> None:
        """The last batch of this lease is computed: there is room for another lease."""
        with self._changed:
            self._ahead.discard(held)
            now_s = time.monotonic()
            self._lease_s, self._worked_s = now_s - self._worked_s, now_s
            self._worked = held
            self._changed.notify_all()

    def revoke(self, revocation: int) -> None:
        """Void all leases of earlier revocations.

        A lease that was granted before the order and arrives after it is void, too. One that was
        granted after the order and arrives before it is not.
        """
        with self._changed:
            self._revocation = max(self._revocation, revocation)
            self._voided += (
                lease for lease in self._outbox.held() if lease.revocation < self._revocation
            )
            # Still under the lock: `_accept` cannot add a lease of the old revocation in between.
            self._leases.drop(self.is_void)
            self._ahead = {held for held in self._ahead if not self.is_void(held)}
            self._changed.notify_all()

    def voided(self) -> tuple[Lease, ...]:
        """Leases in hand that were voided since the last call; blocks until there are some.

        Raises Ended if the worker ends.
        """
        with self._changed:
            while not self._voided:
                if self._shutdown:
                    raise Ended
                self._changed.wait(LOOK_AGAIN_S)
            voided, self._voided = tuple(self._voided), []
            return voided

    def _run(self) -> None:
        try:
            while not self._shutdown:
                self._wait_for_room()
                if not self._fill_room():
                    return
        except Ended:
            return
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._shutdown.fail(error)

    def _wait_for_room(self) -> None:
        with self._changed:
            while len(self._ahead) >= AHEAD and not self._shutdown:
                self._changed.wait(LOOK_AGAIN_S)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _fill_room(self) -> bool:
        """Request until a lease is granted; False if there will be no more."""
        answer = self._outbox.carried.ask(self._wait_for_report_s(), self._shutdown)
        if answer is not None and (more := self._answered(answer)) is not None:
            return more
        away_since_s: float | None = None
        while not self._shutdown:
            begin_s = time.monotonic()
            try:
                answer = self._source.request_lease(WAIT_S)
            except TransientError as error:
                away_since_s = away_since_s or begin_s
                if begin_s - away_since_s > _GIVE_UP_S:
                    raise
                _log.warning("waiting for a lease: %s", error)
                self._shutdown.wait(error.retry_after_s)
                continue
            # The limit is for one outage; a master that answers, even with Wait, is not away.
            away_since_s = None
            if (more := self._answered(answer)) is not None:
                return more
            self._shutdown.wait(max(0.0, _LEAST_S - (time.monotonic() - begin_s)))
        return False

    def _wait_for_report_s(self) -> float:
        """How long a request may wait for a report to travel with.

        Not at all if no report is due soon, or if the worker has nothing else to do.
        """
        with self._changed:
            worked, idle, lease_s = self._worked, not self._ahead, self._lease_s
        if worked is None or idle or worked.lease not in self._outbox.held():
            return 0.0
        return self._report_wait_s(lease_s)

    def _answered(self, answer: LeaseAnswer) -> bool | None:
        """Whether there may be further leases after this one; None: it is no lease."""
        match answer:
            case Lease():
                self._accept(answer)
                return True
            case Wait(reason):
                _log.debug("no lease now: %s", reason)
                return None
            case Finished():
                self._leases.finish()
                return False
            case WorkItem():
                raise PermanentError(f"asked for a lease, got item {answer.number} of a ring")
            case _:
                assert_never(answer)

    def _accept(self, lease: Lease) -> None:
        held = HeldLease(lease)
        with self._changed:
            if self.is_void(held):
                self._outbox.drop(DropCause.VOIDED_LEASE)
                return
            # Before the queue: the reader may finish the lease as soon as it is there.
            self._outbox.hold(lease)
            self._ahead.add(held)
            self._leases.put(held)
