"""Long polls for leases: who waits and what was answered; no lease is lost in between.

A worker numbers its requests. A repeated number gets the same answer again, since the first was
lost on its way. A lease that nobody waits for any more returns to the core. A lease without a shard
stays for its worker. Leases and revocations take different ways to a worker and arrive in any
order, so both carry the revocation number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.rpc.conversation import LeaseAnswer, Wait
from elasticdl.shard import Lease

_ASKED_AT_ONCE = 32
"""Workers that are asked for at once when work appears."""
_ASKED_EACH_TICK = 1000


@dataclass(slots=True, eq=False)
class _Poll:
    """A waiting worker. `reason`: why it has no lease yet."""

    sequence: int
    answer: asyncio.Future[LeaseAnswer]
    at_once: bool
    """Whether it takes `Wait` for an answer."""
    reason: str = "the master has not answered yet"


@dataclass(slots=True)
class _LastAnswer:
    """The last answer to a worker, in case it was lost.

    `taker` is the call that carried it; None after a repeated request.
    """

    sequence: int
    answer: LeaseAnswer
    taker: _Poll | None


@final
class LeasePolls:
    """One poll per worker at a time. Use it from one event loop.

    `ask` sends a worker's request to the core; `give_back` returns a lease that nobody took.
    """

    def __init__(
        self, ask: Callable[[ProcessName], None], give_back: Callable[[ProcessName, Lease], None]
    ) -> None:
        self._ask = ask
        self._give_back = give_back
        self._polls: dict[ProcessName, _Poll] = {}
        self._to_ask = 0
        """How many waiting workers are still to be asked for, the first ones first."""
        self._asked: set[ProcessName] = set()
        """Workers whose request the core has not answered."""
        self._given: dict[ProcessName, _LastAnswer] = {}
        self._kept: dict[ProcessName, Lease] = {}
        self._eras: dict[ProcessName, int] = {}

    async def poll(self, worker: ProcessName, sequence: int, wait_s: float) -> LeaseAnswer:
        """Wait up to `wait_s` for a lease; 0: until the core has decided.

        The caller may be cancelled.
        """
        # A repeated sequence number: the first answer was lost on its way. Without this the core
        # would hold a lease that the worker never got.
        last = self._given.get(worker)
        if last is not None and last.sequence == sequence:
            last.taker = None
            return last.answer
        # A singleton task that an earlier call did not take; the core still counts this worker as
        # its holder.
        kept = self._kept.pop(worker, None)
        if kept is not None:
            self._given[worker] = _LastAnswer(sequence, kept, taker=None)
            return kept
        self._end(worker, "superseded by a newer request of this worker")
        answer: asyncio.Future[LeaseAnswer] = asyncio.get_running_loop().create_future()
        poll = self._polls[worker] = _Poll(sequence, answer, at_once=wait_s == 0)
        self._ask_once(worker)
        try:
            return await self._within(poll, wait_s)
        except asyncio.CancelledError:
            self._abandon(worker, poll)
            raise
        finally:
            if self._polls.get(worker) is poll:
                del self._polls[worker]

    def answer(self, worker: ProcessName, answer: LeaseAnswer) -> bool:
        """Deliver the core's answer to `worker`, requested or not.

        Returns False if nobody waits for it.
        """
        self._asked.discard(worker)
        if isinstance(answer, Lease) and (revocation := self._eras.get(worker, 0)):
            # The lease and a revocation take two ways; the number tells the worker their
            # order.
            answer = replace(answer, revocation=revocation)
        poll = self._polls.get(worker)
        if poll is None or poll.answer.done():
            self._return(worker, answer)
            return False
        if isinstance(answer, Wait):
            poll.reason = answer.reason
            if poll.at_once:
                poll.answer.set_result(answer)
        else:
            # Remember it before the call returns: the reply may be lost from here on.
            self._given[worker] = _LastAnswer(poll.sequence, answer, taker=poll)
            poll.answer.set_result(answer)
            if self._to_ask:
                # There was work, so there may be more.
                self._to_ask -= 1
                self._ask_next(1)
        return True

    def revoked(self, worker: ProcessName) -> int:
        """Return the number of a new revocation: the core voided all leases of `worker`."""
        revocation = self._eras[worker] = self._eras.get(worker, 0) + 1
        return revocation

    def restore(self, worker: ProcessName, revocation: int) -> None:
        """Continue the revocations of a worker that an earlier master counted."""
        self._eras[worker] = max(revocation, self._eras.get(worker, 0))

    def work_appeared(self) -> None:
        """Ask the core again for the waiting workers: for some at once, for the others soon.

        Any of them may be the one that can have the work. Thousands that wait must not cost a
        request each whenever one of them could.
        """
        self._to_ask = max(0, len(self._polls) - _ASKED_AT_ONCE)
        self._ask_next(_ASKED_AT_ONCE)

    def tick(self) -> None:
        """Ask for waiting workers that the last `work_appeared` left out."""
        number = min(self._to_ask, _ASKED_EACH_TICK)
        self._to_ask -= number
        self._ask_next(number)

    def leave(self, worker: ProcessName) -> None:
        """End a worker's poll and forget its answers: the core now owns its leases."""
        self._given.pop(worker, None)
        self._kept.pop(worker, None)
        self._eras.pop(worker, None)
        self._end(worker, f"{worker} was given up")

    def waiting(self) -> dict[ProcessName, str]:
        """Return the waiting workers and their reasons."""
        return {worker: poll.reason for worker, poll in self._polls.items()}

    def _ask_next(self, most: int) -> None:
        for worker in tuple(islice(self._polls, most)):
            # To the end, so that it is everyone's turn.
            poll = self._polls[worker] = self._polls.pop(worker)
            if not poll.answer.done():
                self._ask_once(worker)

    def _ask_once(self, worker: ProcessName) -> None:
        # At most one open request per worker: each answer of the core belongs to one request.
        if worker not in self._asked:
            self._asked.add(worker)
            self._ask(worker)

    @staticmethod
    async def _within(poll: _Poll, wait_s: float) -> LeaseAnswer:
        if poll.at_once:
            return await poll.answer
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                # The timeout must not cancel the answer, which the core may still give.
                return await asyncio.shield(poll.answer)
        # The answer may have arrived at the same moment as the timeout.
        return poll.answer.result() if poll.answer.done() else Wait(poll.reason)

    def _end(self, worker: ProcessName, reason: str) -> None:
        old = self._polls.pop(worker, None)
        if old is not None and not old.answer.done():
            old.answer.set_result(Wait(reason))

    def _abandon(self, worker: ProcessName, poll: _Poll) -> None:
        """Return an answer whose call ended without a reply and was not repeated."""
        last = self._given.get(worker)
        # A repeat of the call may have taken the answer meanwhile; then it is delivered.
        if last is not None and last.taker is poll:
            del self._given[worker]
            self._return(worker, last.answer)

    def _return(self, worker: ProcessName, answer: LeaseAnswer) -> None:
        if isinstance(answer, Lease) and answer.shard is None:
            self._kept[worker] = answer
        elif isinstance(answer, Lease):
            self._give_back(worker, answer)
