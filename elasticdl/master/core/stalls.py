"""Detects when nothing in the job moves, says what it waits for and from whom, and acts.

A *movement* is anything that changes the job's state: records booked, a lease taken, a process that
changes. *Progress* is a movement that cannot be undone without loss: more records booked than ever,
a round, a checkpoint, a phase. A stall begins when nothing has moved for the bound and no process
accounts for it; the next progress ends it. Its steps, each done once:

1. name what the job waits for; ask the debtors for state and stacks, and void leases on which
   worker and master disagree
2. on a ring: form a new generation of the same workers
3. replace the debtor that is most likely to blame
4. end the job with exit code STALLED, after a last checkpoint if possible

Long user code is no stall, because workers report what they are doing: see `stragglers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_status import StallStatus
from elasticdl.master.core import events
from elasticdl.master.core.activities import Activities
from elasticdl.master.core.commands import (
    Command,
    GrantItem,
    GrantLease,
    StartProcess,
    StopProcess,
)
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import Obligation, listed
from elasticdl.master.core.obligations import Obligations
from elasticdl.master.core.processes.causes import Cause, Verdict
from elasticdl.master.core.progress_marks import Mark, ProgressMarks
from elasticdl.master.core.remedies import Remedies
from elasticdl.master.core.stall import Stall, StallStep
from elasticdl.master.core.state_questions import StateQuestions

_TIMES_LONGEST = 5.0
_WITHOUT_PROGRESS_TIMES = 10.0
"""Bounds that a moving job without progress gets, such as a ring that forms again and again."""
_MOST_TOLD = 3
_DIAGNOSIS_CHARS = 2_000


@dataclass(slots=True)
class _Clock:
    """Times of the last movement and progress.

    `longest_s` is the longest unexplained quiet time in this phase.
    """

    moved_s: float = 0.0
    progress_s: float = 0.0
    able_s: float = 0.0
    """When a worker last came up or left long code: earlier time without progress is excused."""
    longest_s: float = 0.0
    phase: Phase = Phase.STARTING
    mark: Mark = ()
    best: list[tuple[int, int]] = field(default_factory=list)
    newest_item: int = 0


@final
class Stalls:
    """Watches every event after it was handled.

    Its memory follows from events alone, so a replay reaches the same decisions.
    """

    def __init__(
        self,
        context: JobContext,
        marks: ProgressMarks,
        activities: Activities,
        obligations: Obligations,
        remedies: Remedies,
        questions: StateQuestions,
    ) -> None:
        self._context = context
        self._marks = marks
        self._activities = activities
        self._obligations = obligations
        self._remedies = remedies
        self._questions = questions
        self._least_s = activities.bound_s
        self._clock = _Clock()
        self._stall: Stall | None = None
        self._words: dict[ProcessName, tuple[bool, int, int, bool]] = {}
        """What each ring member last reported about itself."""

    # what happens

    def saw(self, event: events.Event, commands: Sequence[Command]) -> None:
        """Take in an event that was handled, with the commands that it yielded."""
        self._learn(event)
        if self._context.phase in (Phase.ENDING, Phase.ENDED):
            self._stall = None  # An ending job waits for nothing.
        if isinstance(event, (events.ProcessAttached, events.StartWentOn, events.ActivityReported)):
            # The workers could not make progress before: time without progress counts from here.
            self._clock.able_s = event.at_s
        clock, context = self._clock, self._context
        if context.phase is not clock.phase:
            clock.phase, clock.longest_s = context.phase, 0.0
            self._moved()
        elif self._is_movement(event, commands):
            self._moved()

    def _learn(self, event: events.Event) -> None:
        match event:
            case events.ActivityReported():
                self._activities.reported(event)
            case events.StateReported():
                self._state_reported(event)
            case events.ProcessEnded() | events.ProcessSilent():
                self._activities.forget(event.name)
                self._words.pop(event.name, None)
                self._questions.forget(event.name)
            case _:
                pass

    def _is_movement(self, event: events.Event, commands: Sequence[Command]) -> bool:
        match event:
            case events.Tick():
                return _changes_processes(commands)
            case (
                events.StateReported()
                | events.ConnectionLost()
                | events.MessagesDropped()
                | events.TimeReported()
                | events.StalenessChosen()
                | events.StepsWaited()
                | events.ServerDelayed()
                | events.CpuShareReported()
            ):
                return False
            case events.LeaseRequested():
                return self._granted(commands)
            case events.ProgressReported():
                return self._marks.now() != self._clock.mark
            case events.ProcessSeen(name=name):
                process = self._context.processes.all.get(name)
                return process is not None and process.since_s == event.at_s
            case events.RingReported():
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
            # A shorter quiet time cannot raise the bound.
            quiet_s * _TIMES_LONGEST > self._least_s
            and self._stall is None
            and not self._someone_accounts()
        ):
            clock.longest_s = max(clock.longest_s, quiet_s)
        clock.moved_s = now_s
        clock.mark = self._marks.now()
        # The first mark is the empty tuple.
        if len(clock.best) != len(clock.mark):
            clock.best = [(-1, -1)] * len(clock.mark)
        # Compare with the best of each part, not with the last mark: after a rollback, records that
        # are trained again are movement, but not progress. Otherwise a ring that loses its weights
        # again and again would never count as stalled.
        better = [now > best for now, best in zip(clock.mark, clock.best, strict=True)]
        if any(better):
            clock.best = [max(now, best) for now, best in zip(clock.mark, clock.best, strict=True)]
            clock.progress_s = now_s
            self._over()

    def _someone_accounts(self) -> bool:
        """Whether some process is busy, starting or away.

        Quiet time with an explanation must not raise the bound.
        """
        workers = self._context.processes.live_workers()
        return (
            bool(self._activities)
            or not all(worker.up for worker in workers)
            or bool(self._context.servers_away())
        )

    # time

    @property
    def quiet_s(self) -> float:
        """Seconds since the last movement."""
        return max(0.0, self._context.now_s - self._clock.moved_s)

    @property
    def moved_s(self) -> float:
        """When anything last moved."""
        return self._clock.moved_s

    @property
    def progress_s(self) -> float:
        """When the job last made progress."""
        return self._clock.progress_s

    @property
    def bound_s(self) -> float:
        """How long the job may be quiet, learned from its own quiet times."""
        return max(self._least_s, _TIMES_LONGEST * self._clock.longest_s)

    def forgive(self) -> None:
        """Restart the clocks: the master did not run and may have missed movements."""
        # Movements of that time may still wait in the queue, unread.
        self._clock.moved_s = self._clock.able_s = self._context.now_s
        if self._stall is not None:
            self._stall.acted_s = self._context.now_s

    def tick(self) -> None:
        """Check whether the job stands still, and take the next step if so."""
        if self._context.phase in (Phase.STARTING, Phase.ENDING, Phase.ENDED):
            return
        if _changes_processes(self._context.orders.given):
            # A process is being replaced right now, which changes who owes what.
            return
        if self._stall is None and self._context.now_s < self._due_s():
            return
        owed = [
            obligation
            for obligation in self._obligations.now()
            if not self._accounted_for(obligation)
        ]
        if not owed:
            return
        if self._stall is None:
            self._begin(owed)
            return
        # The debtors may have changed, and the time until the next step depends on them.
        self._stall.owed = owed
        if self._context.now_s >= self._due_s():
            self._next(self._stall)

    def _due_s(self) -> float:
        """When the next step is due without movement, or after far longer without progress."""
        clock, stall = self._clock, self._stall
        if stall is None:
            bound_s = self.bound_s
            # Two ways to stall: nothing moves at all, or everything moves in circles.
            return min(clock.moved_s + bound_s, self._able_s() + _WITHOUT_PROGRESS_TIMES * bound_s)
        moved_s = min(clock.moved_s, self._able_s() + _WITHOUT_PROGRESS_TIMES * self.bound_s)
        return max(stall.acted_s, moved_s) + self._pause_s(stall)

    def _able_s(self) -> float:
        return max(self._clock.progress_s, self._clock.able_s)

    def _pause_s(self, stall: Stall) -> float:
        """How long the last step has to take effect."""
        if stall.step is not StallStep.ASKED:
            return self._least_s
        servers = any(name.role is Role.PS for name in stall.owed[0].debtors)
        # Replacing a server costs updates, so wait until a failed cut has been retried.
        return 2.0 * self._least_s if servers else 0.5 * self._least_s

    def _accounted_for(self, owed: Obligation) -> bool:
        """Whether the wait is limited elsewhere, or a debtor is busy, starting or stopping."""
        if owed.limited:
            return True
        processes = [
            process for name in owed.debtors if (process := self._context.processes.going.get(name))
        ]
        return any(not process.up or self._activities.busy(process) for process in processes)

    # the steps

    def _begin(self, owed: list[Obligation]) -> None:
        clock, now_s = self._clock, self._context.now_s
        moves = self.quiet_s < self.bound_s
        since_s = self._able_s() if moves else clock.moved_s
        stall = self._stall = Stall(since_s, now_s, owed)
        still = f"no {'progress' if moves else 'activity'} for {now_s - since_s:.0f} s"
        diagnosis = f"{still}, waiting for {self._described(owed)}"
        details = meaning(
            EventStep.BEGUN,
            since_s=since_s,
            quiet_s=self.quiet_s,
            bound_s=self.bound_s,
            waits_for=owed[0].what,
            debtors=listed(owed[0].debtors),
            numbers=owed[0].numbers,
        )
        self._announce(f"the job is stalled: {diagnosis}", details)
        self._next(stall)

    def _described(self, owed: list[Obligation]) -> str:
        more = f"; and {len(owed) - _MOST_TOLD} more" if len(owed) > _MOST_TOLD else ""
        texts = (obligation.text(self._context.now_s) for obligation in owed[:_MOST_TOLD])
        return "; ".join(texts)[:_DIAGNOSIS_CHARS] + more

    def _next(self, stall: Stall) -> None:
        """Take the next step that applies to this job."""
        # Slow workers within their own limits are no stall; straggler bounds deal with them.
        if stall.step in (StallStep.ASKED, StallStep.FORMED) and self._remedies.paced(
            stall.owed[0].debtors
        ):
            return
        # Every step gets its full pause, whatever came before.
        stall.acted_s = self._context.now_s
        match stall.step:
            case StallStep.NAMED:
                self._ask_debtors(stall)
            case _ if not self._activities.acts:
                return
            case StallStep.ASKED if self._remedies.can_form_again:
                stall.step = StallStep.FORMED
                self._announce(
                    "still stalled: forming a new generation of the ring", meaning(EventStep.FAILED)
                )
                self._remedies.form_again()
            case StallStep.ASKED | StallStep.FORMED:
                self._replace(stall)
            case StallStep.REPLACED:
                self._end(stall)
            case StallStep.ENDED:
                return

    def _ask_debtors(self, stall: Stall) -> None:
        stall.step = StallStep.ASKED
        debtors = dict.fromkeys(
            name for obligation in stall.owed[:_MOST_TOLD] for name in obligation.debtors
        )
        for name in list(debtors)[: 2 * _MOST_TOLD]:
            self._questions.ask(name)

    def _replace(self, stall: Stall) -> None:
        candidates = [
            process
            for name in stall.owed[0].debtors
            if (process := self._context.processes.going.get(name)) and process.live
        ]
        if not candidates:
            self._end(stall)
            return
        stall.step = StallStep.REPLACED
        process = self._remedies.spare(candidates)
        why = f"the job is stalled, waiting for {stall.owed[0].text(self._context.now_s)}"
        self._announce(f"still stalled: replacing {process.name}", meaning(EventStep.FAILED))
        self._remedies.replace(process, Verdict(Cause.STALLED, why))

    def _end(self, stall: Stall) -> None:
        stall.step = StallStep.ENDED
        now_s = self._context.now_s
        text = (
            f"the job was stalled for {now_s - stall.since_s:.0f} s, waiting for"
            f" {self._described(stall.owed)}"
        )
        self._remedies.end(text)

    def _over(self) -> None:
        """End the stall after progress."""
        stall, self._stall = self._stall, None
        if stall is not None and stall.step is not StallStep.ENDED:
            waited_s = self._context.now_s - stall.since_s
            details = meaning(
                EventStep.ENDED, since_s=stall.since_s, waited_s=waited_s, reason=stall.owed[0].what
            )
            self._announce(
                f"the job continues after a stall of {waited_s:.0f} s", details, level="info"
            )

    def _announce(
        self, text: str, details: dict[str, float | int | str], *, level: str = "warning"
    ) -> None:
        self._context.orders.announce("stall", text, level=level, details=details)

    # the debtors' answers

    def _state_reported(self, event: events.StateReported) -> None:
        """Show the stacks of a process that was asked for them.

        Void leases on which worker and master disagree, so that they are leased again.
        """
        level = "warning" if self._stall is not None else "info"
        asked_s = self._questions.answered(event, level)
        process = self._context.processes.going.get(event.process)
        if asked_s is None or process is None:
            return
        if self._stall is not None and event.process.role is Role.WORKER and self._activities.acts:
            held = {(lease.shard, lease.attempt) for lease in event.held}
            self._remedies.reconcile(process, held, asked_s)

    # for people

    def waits(self) -> list[str]:
        """What the job waits for, in words: a stall, a quiet time, and long activities."""
        if self._context.phase is Phase.ENDED:
            return []  # It may have ended without a worker in such an activity.
        long = self._activities.long_words()
        if self._context.phase in (Phase.STARTING, Phase.ENDING):
            return long
        if self._stall is not None:
            described = self._described(self._stall.owed)
            return [
                (
                    f"stalled for {self._context.now_s - self._stall.since_s:.0f} s, waiting for"
                    f" {described}"
                ),
                *long,
            ]
        if self.quiet_s < self._least_s / 2:
            return long
        owed = [
            obligation
            for obligation in self._obligations.now()
            if not self._accounted_for(obligation)
        ]
        if not owed:
            return long
        quiet = f"no activity for {self.quiet_s:.0f} s"
        return [f"{quiet}, waiting for {self._described(owed)}", *long]

    def status(self) -> StallStatus | None:
        """The stall for the status; None without one."""
        return self._stall.status(self.bound_s) if self._stall is not None else None


def _changes_processes(commands: Sequence[Command]) -> bool:
    return any(isinstance(command, (StartProcess, StopProcess)) for command in commands)
