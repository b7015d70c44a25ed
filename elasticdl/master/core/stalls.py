"""Sees when nothing in the job moves any more, says what it waits for and from whom, and acts: no
job stands still in silence.

A *movement* is anything that brings the job into another state: records booked, a lease taken, a
process that changes. *Progress* is
a movement that cannot be undone without loss: more records booked than ever, a round, a checkpoint,
a phase. A stall begins when
nothing moved for the bound and nobody accounts for it; it is over with the next progress. Its
steps, each done once:

1. say what is waited for, and ask the debtors for their state and their stacks; leases that the two
sides see differently are voided
2. on a ring: form it anew
3. replace the debtor that most likely is to blame
4. end the job with exit code STALLED; a last checkpoint is taken where that is possible

User code that takes long is no stall: workers tell what they are doing. It has a bound of its own,
ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.history.job_event import EventKind, meaning
from elasticdl.job import Action
from elasticdl.master.core import events
from elasticdl.master.core.commands import (
    AskState,
    Command,
    GrantItem,
    GrantLease,
    StartProcess,
    StopProcess,
)
from elasticdl.master.core.data.ledger import HeldShard, Ledger, Stage
from elasticdl.master.core.job_context import Phase
from elasticdl.master.core.obligations import Books, Obligation, Obligations, RingPosition, listed
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.status import StallStatus
from elasticdl.shard import ShardId

USUAL_S = 60.0
"""The bound where `--stall-seconds` is 0, which asks for words only."""
SHOWN_S = 30.0
"""User code that takes less is shown to nobody as a wait."""
_TIMES_LONGEST = 5.0
_BUSY_TIMES = 10.0
_WITHOUT_PROGRESS_TIMES = 10.0
"""A job that moves and makes no progress, such as a ring that is formed again and again, gets so
many bounds.
"""
_LOOK_S = 5.0
_MOST_BUSY_ENDS = 3
_MOST_TOLD = 3
_DIAGNOSIS_CHARS = 2_000

Mark: TypeAlias = tuple[tuple[int, int], ...]


class Rung(StrEnum):
    """What was done about a stall so far."""

    NAMED = "named"
    ASKED = "asked for their state"
    FORMED = "ring formed anew"
    REPLACED = "debtor replaced"
    ENDED = "job ended"


@dataclass(frozen=True, slots=True)
class Actions:
    """What can be done about a stall."""

    form_anew: Callable[[str], None]
    replace: Callable[[Process, str], None]
    why_not_replace: Callable[[ProcessName], str]
    end: Callable[[str, bool], None]
    """Why, and whether a last checkpoint would be exact."""
    errand_limit_s: Callable[[Process], float]
    """How long the summary or the export that a worker holds may take; 0 if it holds neither."""
    pace_limit_s: Callable[[Process], float | None]
    """How long a worker may be without progress with what it holds; None if it holds nothing."""


@dataclass(slots=True)
class _Stall:
    """`since_s`: the last movement before it. `acted_s`: when the last step was done."""

    since_s: float
    named_s: float
    acted_s: float
    owed: list[Obligation]
    rung: Rung = Rung.NAMED
    diagnosis: str = ""


@dataclass(frozen=True, slots=True)
class _Activity:
    what: str
    since_s: float


@dataclass(slots=True)
class _Clock:
    """When the job last moved and last made progress, and how long it was quiet at most in this
    phase without a reason.
    """

    moved_s: float = 0.0
    progress_s: float = 0.0
    able_s: float = 0.0
    """When somebody last came up, or came out of code that took long: nobody is to blame for the
    time before.
    """
    longest_s: float = 0.0
    phase: Phase = Phase.STARTING
    mark: Mark = ()
    best: list[tuple[int, int]] = field(default_factory=list)
    newest_item: int = 0


@final
class Stalls:
    """Told of every event after it was handled.

    What it remembers follows from events alone, so that a replay finds the same.
    """

    def __init__(self, books: Books, actions: Actions) -> None:
        self._books = books
        self._context = books.context
        self._actions = actions
        self._obligations = Obligations(books)
        given_s = books.context.spec.cluster.stall_seconds
        self._acts = given_s > 0
        self._least_s = given_s or USUAL_S
        self._clock = _Clock()
        self._stall: _Stall | None = None
        self._counted: Ledger | None = None
        self._before = 0
        """What that ledger had when it was made: the checkpoint that it is of."""
        self._activities: dict[ProcessName, _Activity] = {}
        self._longest_s: dict[str, float] = {}
        """By activity: the longest that came to its end."""
        self._words: dict[ProcessName, tuple[bool, int, int, bool]] = {}
        """What each member of a ring last said of itself."""
        self._asked: dict[ProcessName, float] = {}
        """Who was asked for its state, and has not answered."""
        self._busy_ends = 0
        """Workers in a row that were replaced because their code came to no end."""
        self._shown: set[ProcessName] = set()
        """Whose long activity was looked into."""

    # what happens

    def saw(self, event: events.Event, commands: Sequence[Command]) -> None:
        """An event was handled."""
        self._learn(event)
        if isinstance(event, (events.ProcessAttached, events.StartWentOn, events.ActivityTold)):
            # Nothing could be done before: time without progress counts from here.
            self._clock.able_s = event.at_s
        clock, context = self._clock, self._context
        if context.phase is not clock.phase:
            clock.phase, clock.longest_s = context.phase, 0.0
            self._moved()
        elif self._is_movement(event, commands):
            self._moved()

    def _learn(self, event: events.Event) -> None:
        match event:
            case events.ActivityTold():
                self._told_activity(event)
            case events.StateTold():
                self._told_state(event)
            case events.RingTold():
                position = RingPosition(event.version, event.number, event.offset)
                self._books.positions[event.worker] = position
            case events.ProcessEnded() | events.ProcessSilent():
                self._activities.pop(event.name, None)
                self._books.positions.pop(event.name, None)
                self._words.pop(event.name, None)
                self._asked.pop(event.name, None)
                self._shown.discard(event.name)
            case _:
                pass

    def _is_movement(self, event: events.Event, commands: Sequence[Command]) -> bool:
        match event:
            case events.Tick():
                return _changes_processes(commands)
            case events.StateTold() | events.ConnectionLost() | events.MessagesDropped():
                return False
            case events.LeaseRequested():
                return self._granted(commands)
            case events.ProgressReported():
                return self._mark() != self._clock.mark
            case events.ProcessSeen(name=name):
                process = self._context.processes.all.get(name)
                return process is not None and process.since_s == event.at_s
            case events.RingTold():
                word = (event.ready, event.entered, event.broken, event.leaving)
                before, self._words[event.worker] = self._words.get(event.worker), word
                if before is None:
                    self._clock.able_s = event.at_s
                return before != word
            case _:
                return True

    def _granted(self, commands: Sequence[Command]) -> bool:
        for command in commands:
            if isinstance(command, GrantLease):
                return True
            if isinstance(command, GrantItem) and command.item.number > self._clock.newest_item:
                self._clock.newest_item = command.item.number
                return True
        return False

    def _moved(self) -> None:
        clock, now_s = self._clock, self._context.now_s
        quiet_s = now_s - clock.moved_s
        if (
            quiet_s * _TIMES_LONGEST > self._least_s
            and self._stall is None
            and not self._someone_accounts()
        ):
            clock.longest_s = max(clock.longest_s, quiet_s)
        clock.moved_s = now_s
        clock.mark = self._mark()
        if len(clock.best) != len(clock.mark):
            clock.best = [(-1, -1)] * len(clock.mark)
        better = [now > best for now, best in zip(clock.mark, clock.best, strict=True)]
        if any(better):
            clock.best = [max(now, best) for now, best in zip(clock.mark, clock.best, strict=True)]
            clock.progress_s, self._busy_ends = now_s, 0
            self._over()

    def _mark(self) -> Mark:
        """How far the job is, by what cannot be undone without loss."""
        context, evaluation = self._context, self._books.evaluation
        current, saved = evaluation.round, self._books.checkpointing.saved
        rounds = evaluation.results[-1].round + 1 if evaluation.results else 0
        evaluated = 0
        if current is not None:
            evaluated = current.ledger.booked + sum(
                held.offset for held in current.ledger.held.values()
            )
        phase = list(Phase).index(context.phase)
        return (
            (phase, 0),
            (self._booked(), 0),
            (rounds, evaluated),
            (saved[-1].version if saved else -1, 0),
        )

    def _booked(self) -> int:
        """Records of all epochs that are trained or could not be read.

        Asked at each report, and there may be thousands of epochs.
        """
        work = self._context.work
        if work is None:
            return 0
        if work is not self._counted:
            total = work.totals()
            self._counted, self._before = work, total.trained + total.bad - work.booked
        return self._before + work.booked

    def _someone_accounts(self) -> bool:
        """Somebody is known to be busy, or to come up: how long that takes says nothing of how long
        the job may be quiet.
        """
        workers = self._context.processes.live_workers()
        return (
            bool(self._activities)
            or not all(worker.up for worker in workers)
            or bool(self._context.servers_away())
        )

    # what workers are doing

    def _told_activity(self, event: events.ActivityTold) -> None:
        before = self._activities.pop(event.worker, None)
        self._shown.discard(event.worker)
        if before is not None:
            took_s = event.at_s - before.since_s
            self._longest_s[before.what] = max(took_s, self._longest_s.get(before.what, 0.0))
        if event.what and self._context.worker(event.worker) is not None:
            self._activities[event.worker] = _Activity(event.what, event.at_s - event.age_s)

    def busy(self, process: Process) -> bool:
        """It tells that its own code is at work. If that takes too long, it is replaced here."""
        return process.name in self._activities

    def _busy_limit_s(self, process: Process, activity: _Activity) -> float:
        longest_s = self._longest_s.get(activity.what, 0.0)
        return max(
            _BUSY_TIMES * max(self._least_s, longest_s), self._actions.errand_limit_s(process)
        )

    def long_activities(self) -> list[str]:
        """Which workers have been in their user's code for long, in words."""
        found = sorted(self._activities.items())
        return [
            f"{name} has been in {one.what} for {age_s:.0f} s"
            for name, one in found
            if (age_s := self._context.now_s - one.since_s) >= min(SHOWN_S, self._least_s)
        ]

    def _look_at_busy(self) -> None:
        """Where code that takes long is, told once; a worker that is in it for far too long is
        replaced.
        """
        now_s = self._context.now_s
        for name, activity in list(self._activities.items()):
            process, age_s = self._context.worker(name), now_s - activity.since_s
            if process is None or process.life is not Life.READY:
                continue
            if age_s >= self._least_s and name not in self._shown:
                self._shown.add(name)
                self._ask(name)
            limit_s = self._busy_limit_s(process, activity)
            if self._acts and age_s > limit_s:
                del self._activities[name]
                self._replace_busy(
                    process,
                    f"in {activity.what} for {age_s:.0f} s, where {limit_s:.0f} s are allowed",
                )

    def _replace_busy(self, process: Process, why: str) -> None:
        """The first ones are replaced; if their successors come to no end either, the job ends."""
        self._busy_ends += 1
        if self._busy_ends < _MOST_BUSY_ENDS:
            self._actions.replace(process, f"it has been {why}")
            return
        text = (
            f"{process.name} has been {why}; it is the {self._busy_ends}rd worker in a row that"
            " comes to no end"
        )
        self._announce(f"the job stands still: {text}", meaning(EventKind.FAILED))
        self._actions.end(text, not self._context.on_ring or self._obligations.booked_all())

    # time

    @property
    def quiet_s(self) -> float:
        """Seconds since anything moved."""
        return max(0.0, self._context.now_s - self._clock.moved_s)

    @property
    def moved_s(self) -> float:
        """When anything last moved."""
        return self._clock.moved_s

    @property
    def bound_s(self) -> float:
        """How long the job may be quiet: learned from itself."""
        return max(self._least_s, _TIMES_LONGEST * self._clock.longest_s)

    def forgive(self) -> None:
        """The master itself did not run: what it did not see meanwhile may well have happened."""
        self._clock.moved_s = self._clock.able_s = self._context.now_s
        if self._stall is not None:
            self._stall.acted_s = self._context.now_s

    def tick(self) -> None:
        """Look whether the job stands still, and do the next thing about it."""
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return
        self._look_at_busy()
        if _changes_processes(self._context.orders.given):
            # Somebody is replaced at this very moment: what is owed now is owed by others.
            return
        if self._stall is None and self._context.now_s < self._due_s():
            return
        owed = [one for one in self._obligations.now() if not self._accounted_for(one)]
        if not owed:
            return
        if self._stall is None:
            self._begin(owed)
            return
        # Others may owe something now: how long a step has to show an effect depends on whom it is
        # about.
        self._stall.owed = owed
        if self._context.now_s >= self._due_s():
            self._next(self._stall)

    def _due_s(self) -> float:
        """When the next step is due if nothing moves until then, or if there is no progress for far
        longer.
        """
        clock, stall = self._clock, self._stall
        if stall is None:
            bound_s = self.bound_s
            return min(clock.moved_s + bound_s, self._able_s() + _WITHOUT_PROGRESS_TIMES * bound_s)
        moved_s = min(clock.moved_s, self._able_s() + _WITHOUT_PROGRESS_TIMES * self.bound_s)
        return max(stall.acted_s, moved_s) + self._pause_s(stall)

    def _able_s(self) -> float:
        return max(self._clock.progress_s, self._clock.able_s)

    def _pause_s(self, stall: _Stall) -> float:
        """How long the last step has to show an effect."""
        if stall.rung is not Rung.ASKED:
            return self._least_s
        servers = any(name.role is Role.PS for name in stall.owed[0].debtors)
        # A server that is replaced costs updates: a cut that fails is tried again by itself before
        # that.
        return 2.0 * self._least_s if servers else 0.5 * self._least_s

    def _accounted_for(self, owed: Obligation) -> bool:
        """Another part of the master ends that wait, or one of the debtors is busy, on its way
        here, or on its way out.
        """
        if owed.limited:
            return True
        found = [
            process for name in owed.debtors if (process := self._context.processes.going.get(name))
        ]
        return any(not process.up or self.busy(process) for process in found)

    # the steps

    def _begin(self, owed: list[Obligation]) -> None:
        clock, now_s = self._clock, self._context.now_s
        moves = self.quiet_s < self.bound_s
        since_s = self._able_s() if moves else clock.moved_s
        stall = self._stall = _Stall(since_s, now_s, now_s, owed)
        still = f"{'no progress' if moves else 'nothing has moved'} for {now_s - since_s:.0f} s"
        diagnosis = stall.diagnosis = f"{still}, waiting for {self._told(owed)}"
        details = meaning(
            EventKind.BEGUN,
            since_s=since_s,
            quiet_s=self.quiet_s,
            bound_s=self.bound_s,
            waits_for=owed[0].what,
            debtors=listed(owed[0].debtors),
            numbers=owed[0].numbers,
        )
        self._announce(f"the job stands still: {diagnosis}", details)
        self._next(stall)

    def _told(self, owed: list[Obligation]) -> str:
        more = f"; and {len(owed) - _MOST_TOLD} more" if len(owed) > _MOST_TOLD else ""
        return (
            "; ".join(one.text(self._context.now_s) for one in owed[:_MOST_TOLD])[:_DIAGNOSIS_CHARS]
            + more
        )

    def _next(self, stall: _Stall) -> None:
        """The next step of those that there are for this job."""
        if stall.rung in (Rung.ASKED, Rung.FORMED) and self._paced(stall.owed[0]):
            return
        stall.acted_s = self._context.now_s
        match stall.rung:
            case Rung.NAMED:
                self._ask_debtors(stall)
            case _ if not self._acts:
                return
            case Rung.ASKED if self._context.on_ring and self._books.ring.present is not None:
                stall.rung = Rung.FORMED
                self._announce(
                    "the job still stands still: the ring is formed anew", meaning(EventKind.FAILED)
                )
                self._actions.form_anew("nothing moved")
            case Rung.ASKED | Rung.FORMED:
                self._replace(stall)
            case Rung.REPLACED:
                self._end(stall)
            case Rung.ENDED:
                return

    def _paced(self, owed: Obligation) -> bool:
        """The debtors hold leases: each is replaced anyway once it has been without progress for
        longer than such leases take.
        """
        found = [process for name in owed.debtors if (process := self._context.worker(name))]
        limits = [(process, self._actions.pace_limit_s(process)) for process in found]
        return bool(found) and all(
            limit_s is not None and self._context.now_s - process.busy_since_s <= limit_s
            for process, limit_s in limits
        )

    def _ask_debtors(self, stall: _Stall) -> None:
        stall.rung = Rung.ASKED
        debtors = dict.fromkeys(name for one in stall.owed[:_MOST_TOLD] for name in one.debtors)
        for name in list(debtors)[: 2 * _MOST_TOLD]:
            self._ask(name)

    def _ask(self, name: ProcessName) -> None:
        process = self._context.processes.going.get(name)
        if process is not None and process.life in (Life.READY, Life.STOPPING):
            self._asked[name] = self._context.now_s
            self._context.orders.give(AskState(name))

    def _replace(self, stall: _Stall) -> None:
        found = [
            process
            for name in stall.owed[0].debtors
            if (process := self._context.processes.going.get(name)) and process.live
        ]
        if not found:
            self._end(stall)
            return
        stall.rung = Rung.REPLACED
        spare = (process for process in found if not self._actions.why_not_replace(process.name))
        process = next(spare, found[0])
        why = f"the job stands still, and waits for it: {stall.owed[0].text(self._context.now_s)}"
        self._announce(
            f"the job still stands still: {process.name} is replaced", meaning(EventKind.FAILED)
        )
        self._actions.replace(process, why)

    def _end(self, stall: _Stall) -> None:
        stall.rung = Rung.ENDED
        now_s = self._context.now_s
        text = (
            f"the job stood still for {now_s - stall.since_s:.0f} s: waiting for"
            f" {self._told(stall.owed)}"
        )
        self._actions.end(text, not self._context.on_ring or self._obligations.booked_all())

    def _over(self) -> None:
        """Progress was made."""
        stall, self._stall = self._stall, None
        if stall is not None and stall.rung is not Rung.ENDED:
            waited_s = self._context.now_s - stall.since_s
            details = meaning(
                EventKind.ENDED, since_s=stall.since_s, waited_s=waited_s, reason=stall.owed[0].what
            )
            self._announce(
                f"the job goes on, after it stood still for {waited_s:.0f} s", details, level="info"
            )

    def end(self) -> None:
        """The job ends: nothing is waited for any more."""
        self._stall = None

    def _announce(
        self, text: str, details: dict[str, float | int | str], *, level: str = "warning"
    ) -> None:
        self._context.orders.announce("stall", text, level=level, details=details)

    # the debtors' answers

    def _told_state(self, event: events.StateTold) -> None:
        """Its stacks are shown.

        Leases that it and the master see differently are voided, so that they are given out again.
        """
        asked_s = self._asked.pop(event.process, None)
        process = self._context.processes.going.get(event.process)
        if asked_s is None or process is None or not process.heard:
            return
        if event.stacks:
            text = f"{event.process} is {event.doing or 'at these places'}:\n{event.stacks}"
            details: dict[str, float | int | str] = {"asked_s": round(asked_s, 3)}
            level = "warning" if self._stall is not None else "info"
            self._context.orders.announce(
                "stall", text, process=event.process, level=level, details=details
            )
        if self._stall is not None and event.process.role is Role.WORKER and self._acts:
            self._reconcile(process, {(one.shard, one.attempt) for one in event.held}, asked_s)

    def _reconcile(self, process: Process, told: set[tuple[ShardId, int]], asked_s: float) -> None:
        name, work, current = process.name, self._context.work, self._books.evaluation.round
        ledgers = [
            ledger for ledger in (work, current.ledger if current else None) if ledger is not None
        ]
        known = [
            (ledger, held)
            for ledger in ledgers
            for held in ledger.held_by(name)
            if held.stage is Stage.LEASED
        ]
        missing = [
            (ledger, held)
            for ledger, held in known
            if _key(held) not in told and held.since_s < asked_s
        ]
        # On a ring a member that reports names the ring's shard, which is no lease of its own.
        extra = told - {_key(held) for _, held in known} if not self._context.on_ring else set()
        if missing:
            shards = ", ".join(str(held.piece.shard.id) for _, held in missing)
            self._announce(
                f"{name} does not have shard {shards}, which it was leased: given out again",
                meaning(EventKind.FAILED),
            )
        if extra:
            shards = ", ".join(str(shard) for shard, _ in sorted(extra))
            self._announce(
                f"{name} works on shard {shards}, which it does not hold: its leases are voided",
                meaning(EventKind.FAILED),
            )
            self._books.leasing.revoke(name, "the master does not know of all of these leases")
        for ledger, held in missing:
            if ledger is work and self._context.spec.action is Action.TRAIN:
                # It may have trained some of it: only the servers know, and they tell when its
                # successor is started.
                self._actions.replace(process, "it does not know of a shard that it was leased")
                return
            if held.stage is Stage.LEASED:
                ledger.give_back(held)

    # for people

    def waits(self) -> list[str]:
        """What is waited for, in words: a stall, or what may become one; and long activities."""
        long = self.long_activities()
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return long
        if self._stall is not None:
            found = self._told(self._stall.owed)
            return [
                (
                    f"the job stands still for {self._context.now_s - self._stall.since_s:.0f} s:"
                    f" waiting for {found}"
                ),
                *long,
            ]
        if self.quiet_s < self._least_s / 2:
            return long
        owed = [one for one in self._obligations.now() if not self._accounted_for(one)]
        return (
            [f"nothing has moved for {self.quiet_s:.0f} s: waiting for {self._told(owed)}", *long]
            if owed
            else long
        )

    def status(self) -> StallStatus | None:
        """None while the job does not stand still."""
        stall = self._stall
        if stall is None:
            return None
        owed = stall.owed[0]
        return StallStatus(
            since_s=stall.since_s,
            bound_s=self.bound_s,
            waits_for=owed.what,
            debtors=tuple(map(str, owed.debtors)),
            owed_since_s=owed.since_s,
            numbers=owed.numbers,
            step=str(stall.rung),
        )


def _changes_processes(commands: Sequence[Command]) -> bool:
    return any(isinstance(command, (StartProcess, StopProcess)) for command in commands)


def _key(held: HeldShard) -> tuple[ShardId, int]:
    return held.piece.shard.id, held.piece.attempt
