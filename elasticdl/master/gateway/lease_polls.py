"""Long polls for leases: who waits, what was answered, and that no lease is lost between the two.

A worker numbers the answers it wants. A repeat of the last number gets the same answer again: the
first one was lost on its
way. A lease that comes when nobody waits for it any more goes back; one without a shard is kept for
its worker. Leases and
revocations reach a worker by two ways, in any order: both carry its revocation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.rpc.conversation import LeaseAnswer, Wait
from elasticdl.shard import Lease


@dataclass(slots=True, eq=False)
class _Poll:
    """One worker that waits. `reason`: why it got nothing so far."""

    sequence: int
    answer: asyncio.Future[LeaseAnswer]
    reason: str = "the master has not looked yet"


@dataclass(slots=True)
class _Given:
    """The last answer to a worker, in case it is lost.

    `taker`: whose call brought it, None when asked for again.
    """

    sequence: int
    answer: LeaseAnswer
    taker: _Poll | None


@final
class LeasePolls:
    """One poll per worker at a time. Use it from one event loop.

    `ask` has the core asked on behalf of a worker, `give_back` returns a lease that nobody took.
    """

    def __init__(
        self, ask: Callable[[ProcessName], None], give_back: Callable[[ProcessName, Lease], None]
    ) -> None:
        self._ask = ask
        self._give_back = give_back
        self._polls: dict[ProcessName, _Poll] = {}
        self._asked: set[ProcessName] = set()
        """Workers for whom the core was asked and has not answered."""
        self._given: dict[ProcessName, _Given] = {}
        self._kept: dict[ProcessName, Lease] = {}
        self._eras: dict[ProcessName, int] = {}

    async def poll(self, worker: ProcessName, sequence: int, wait_s: float) -> LeaseAnswer:
        """Wait up to `wait_s` for a lease. The caller may be cancelled."""
        given = self._given.get(worker)
        if given is not None and given.sequence == sequence:
            given.taker = None
            return given.answer
        kept = self._kept.pop(worker, None)
        if kept is not None:
            self._given[worker] = _Given(sequence, kept, taker=None)
            return kept
        self._end(worker, "a newer request of this worker came in")
        poll = self._polls[worker] = _Poll(sequence, asyncio.get_running_loop().create_future())
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
        """The core's answer to one question on behalf of `worker`, or unasked.

        False if nobody waits for any.
        """
        self._asked.discard(worker)
        if isinstance(answer, Lease):
            answer = replace(answer, revocation=self._eras.get(worker, 0))
        poll = self._polls.get(worker)
        if poll is None or poll.answer.done():
            self._return(worker, answer)
            return False
        if isinstance(answer, Wait):
            poll.reason = answer.reason
        else:
            self._given[worker] = _Given(poll.sequence, answer, taker=poll)
            poll.answer.set_result(answer)
        return True

    def revoked(self, worker: ProcessName) -> int:
        """The core voided all leases of `worker`: the revocation that begins."""
        revocation = self._eras[worker] = self._eras.get(worker, 0) + 1
        return revocation

    def work_appeared(self) -> None:
        """Ask again for everybody who waits."""
        for worker, poll in tuple(self._polls.items()):
            if not poll.answer.done():
                self._ask_once(worker)

    def leave(self, worker: ProcessName) -> None:
        """The worker is gone: its leases are the core's business now, a poll of it ends."""
        self._given.pop(worker, None)
        self._kept.pop(worker, None)
        self._eras.pop(worker, None)
        self._end(worker, f"{worker} was given up")

    def waiting(self) -> dict[ProcessName, str]:
        """Who waits, and why."""
        return {worker: poll.reason for worker, poll in self._polls.items()}

    def _ask_once(self, worker: ProcessName) -> None:
        if worker not in self._asked:
            self._asked.add(worker)
            self._ask(worker)

    @staticmethod
    async def _within(poll: _Poll, wait_s: float) -> LeaseAnswer:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(poll.answer)
        # The answer may have come in the very moment that the time was over.
        return poll.answer.result() if poll.answer.done() else Wait(poll.reason)

    def _end(self, worker: ProcessName, reason: str) -> None:
        old = self._polls.pop(worker, None)
        if old is not None and not old.answer.done():
            old.answer.set_result(Wait(reason))

    def _abandon(self, worker: ProcessName, poll: _Poll) -> None:
        """The call ended without its reply: an answer that came in the same moment, and was not
        asked for again, goes back.
        """
        given = self._given.get(worker)
        if given is not None and given.taker is poll:
            del self._given[worker]
            self._return(worker, given.answer)

    def _return(self, worker: ProcessName, answer: LeaseAnswer) -> None:
        if isinstance(answer, Lease) and answer.shard is None:
            self._kept[worker] = answer
        elif isinstance(answer, Lease):
            self._give_back(worker, answer)
