"""What the job as a whole waits for while its processes have their places: servers, work, a ring.

Told when it is over, with its
duration, and meanwhile once it has lasted. Reads only; keeps only what people were told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from elasticdl.history.job_event import EventKind, meaning
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.data.ledger import Stage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase

_LASTS_S = 5.0
"""Shorter waits are the ordinary course of things."""
_QUIET_S = 2.0
"""One that begins again so soon is the same one."""
_MOST_REASONS = 8
_MOST_BUSY = 4
_OTHER = "other reasons"
_NUMBERS = re.compile(r"\d+")


class Awaited(StrEnum):
    """`details["wait"]`: what is waited for."""

    PLACE = "place"
    SERVERS = "servers"
    WORK = "work"
    RING = "ring"
    CODE = "code"
    """User code that takes long."""


@dataclass(slots=True)
class Reasons:
    """How long a wait had which reason, of at most eight.

    Those that differ in their numbers only are one.
    """

    _found: dict[str, tuple[str, float]] = field(default_factory=dict)

    def add(self, reason: str, seconds: float) -> None:
        """The reason stood for so long."""
        shape = _NUMBERS.sub("#", reason)
        if shape not in self._found and len(self._found) >= _MOST_REASONS:
            shape = reason = _OTHER
        first, before_s = self._found.get(shape, (reason, 0.0))
        self._found[shape] = (first, before_s + seconds)

    def words(self) -> str:
        """The longest first; with their durations if there are several."""
        longest = sorted(self._found.values(), key=lambda item: -item[1])[:3]
        if len(longest) <= 1:
            return "".join(reason for reason, _ in longest)
        return ", ".join(f"{reason} ({seconds:.0f} s)" for reason, seconds in longest)


@dataclass(slots=True)
class _Open:
    since_s: float
    seen_s: float
    reasons: Reasons = field(default_factory=Reasons)
    told: bool = False


@final
class Waits:
    """One wait a thing that is awaited, whatever its reasons."""

    def __init__(self, context: JobContext, leasing: Leasing, evaluation: Evaluation) -> None:
        self._context = context
        self._evaluation = evaluation
        self._leasing = leasing
        self._open: dict[Awaited, _Open] = {}
        self._were_there = False
        self.busy: Callable[[], list[str]] = list
        """Which workers have been in their user's code for long, in words."""

    def tick(self, ring: str = "") -> None:
        """Look what is waited for now. `ring`: why there is no ring that trains, in words."""
        now_s, found = self._context.now_s, dict(self._now(ring))
        if busy := self.busy():
            found[Awaited.CODE] = "; ".join(busy[:_MOST_BUSY])
        for what, reason in found.items():
            wait = self._open.setdefault(what, _Open(now_s, now_s))
            wait.reasons.add(reason, now_s - wait.seen_s)
            wait.seen_s = now_s
            if not wait.told and now_s - wait.since_s >= _LASTS_S:
                wait.told = True
                details = meaning(
                    EventKind.BEGUN, wait=str(what), since_s=wait.since_s, reason=reason
                )
                self._context.orders.announce(
                    "wait",
                    f"waiting for {_WORDS[what]}: {reason}",
                    level="warning",
                    details=details,
                )
        for what, wait in tuple(self._open.items()):
            if what not in found and now_s - wait.seen_s >= _QUIET_S:
                del self._open[what]
                self._over(what, wait)

    def end(self) -> None:
        """The job is over, and whatever it waits for."""
        for what, wait in self._open.items():
            self._over(what, wait)
        self._open.clear()

    def _over(self, what: Awaited, wait: _Open) -> None:
        waited_s = wait.seen_s - wait.since_s
        if not wait.told:
            return
        reason = wait.reasons.words()
        text = f"waited {waited_s:.0f} s for {_WORDS[what]}: {reason}"
        details = meaning(
            EventKind.ENDED, wait=str(what), since_s=wait.since_s, waited_s=waited_s, reason=reason
        )
        self._context.orders.announce("wait", text, details=details)

    def _now(self, ring: str) -> Mapping[Awaited, str]:
        if self._context.phase not in (Phase.WORKING, Phase.EVALUATING, Phase.EXPORTING):
            return {}
        away = self._context.servers_away()
        self._were_there = self._were_there or not away
        if away:
            # Before all of them were there for the first time this is how a job starts.
            return {Awaited.SERVERS: away} if self._were_there else {}
        if self._context.on_ring:
            return {Awaited.RING: ring} if ring else {}
        idle = self._idle()
        return {Awaited.WORK: idle} if idle else {}

    def _idle(self) -> str:
        """Why some worker that is ready has nothing to do; '' if none is, or if it need only ask
        for work.
        """
        current, work = self._evaluation.round, self._context.work
        if (
            self._context.phase is Phase.WORKING
            and work is not None
            and (work.available or not work.held)
        ):
            return ""
        ledgers = (work, current.ledger if current else None)
        busy = {
            held.worker
            for one in ledgers
            if one
            for held in one.held.values()
            if held.stage is not Stage.CLOSING
        }
        busy |= {current.summary.holder} if current and current.summary.holder else set()
        busy |= (
            {self._context.export.holder}
            if self._context.export and self._context.export.holder
            else set()
        )
        workers = self._context.processes.live_workers()
        idle = sum(worker.up and worker.name not in busy for worker in workers)
        return self._leasing.idle_reason() if idle else ""


_WORDS = {
    Awaited.PLACE: "a place",
    Awaited.SERVERS: "the parameter servers",
    Awaited.WORK: "work",
    Awaited.RING: "the ring",
    Awaited.CODE: "user code",
}
