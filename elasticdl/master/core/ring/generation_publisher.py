"""Follows what workers report of the ring, and publishes its generations.

`next_generation.py` decides who is in the next one.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.history.job_event import EventStep, meaning
from elasticdl.job_status import RingStatus
from elasticdl.master.core.commands import LookAgain, PublishRing, WithdrawRing, WorkFinished
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.events import ConnectionLost, RingReported
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.table import LEAVE_LIMIT_S, Life, Process
from elasticdl.master.core.ring import next_generation
from elasticdl.master.core.ring.work import RingWork

_DOUBT_S = 3.0
_MOST_CHARS = 160
_WORKING = (Phase.WORKING, Phase.EVALUATING, Phase.DRAINING, Phase.CHECKPOINTING, Phase.EXPORTING)


@dataclass(slots=True)
class _Report:
    """The last report of a worker. `free_since_s`: since when it is warm and in no generation."""

    heard_s: float
    entered: int = 0
    broken: int = 0
    free_since_s: float | None = None
    leaving: bool = False
    cut_off: bool = False
    position: RingPosition | None = None


@dataclass(frozen=True, slots=True, order=True)
class RingPosition:
    """The position of a member: steps in its weights, its item, and the offset in that item."""

    version: int
    number: int
    offset: int


@final
class GenerationPublisher:
    """`present` is the newest generation, `formed` the newest that all of its members entered."""

    def __init__(self, context: JobContext, leasing: Leasing, work: RingWork) -> None:
        self._context = context
        self._leasing = leasing
        self._work = work
        self._reports: dict[ProcessName, _Report] = {}
        self._holders: dict[ProcessName, None] = {}
        """Members that have the current weights of the ring, as an ordered set."""
        self._since: dict[ProcessName, int] = {}
        """Since which generation each member has been in every one.

        No generation since then made a step without it.
        """
        self._unheard: set[ProcessName] | None = None
        """Members that have not reported after a takeover; None: none took place, or all have."""
        self._begun = False
        self._looking_s: float | None = None
        self._must_form_again = ""
        """Why a new generation was requested that is not published yet."""
        self._withdrawn = 0
        self._withdrawn_s = 0.0
        self.present: next_generation.Generation | None = None
        self.formed = 0
        self.reason = "no worker is ready yet"
        self.problem = ""
        """Why the present generation broke, in the words of a member."""

    @property
    def members(self) -> tuple[ProcessName, ...]:
        """Members of the newest generation, by rank."""
        return self.present.members if self.present else ()

    def waits_for(self) -> str:
        """Why no ring trains, in words; '' if one does."""
        return (
            "" if self.present is not None and self.formed == self.present.number else self.reason
        )

    def absent(self) -> tuple[ProcessName, ...]:
        """Members that have not entered the newest generation.

        Without a generation, workers that are not ready for one.
        """
        if self.present is None:
            workers = self._context.processes.live_workers()
            unready = (
                worker.name
                for worker in workers
                if (report := self._reports.get(worker.name)) is None or report.free_since_s is None
            )
            return tuple(unready) or tuple(worker.name for worker in workers)
        number = self.present.number
        reports = ((name, self._reports.get(name)) for name in self.present.members)
        return tuple(name for name, report in reports if report is None or report.entered < number)

    @property
    def at_work(self) -> tuple[int, int]:
        """How many members train, and the number of their generation."""
        present = self.present
        if present is None or self.formed != present.number:
            return 0, self.formed
        return len(present.members), present.number

    def position(self, name: ProcessName) -> RingPosition | None:
        """The last reported position of that member; None if unknown, or if the member is gone."""
        report = self._reports.get(name)
        return report.position if report and self._context.worker(name) else None

    def form_again(self, why: str) -> None:
        """Request a new generation even if its members stay the same."""
        self._must_form_again = why

    def taken_over(self) -> None:
        """Wait for reports of all members: an earlier master may have missed some.

        Then form a new generation if the present one is incomplete, whose rendezvous is gone.
        """
        self._unheard = set(self.members)
        for report in self._reports.values():
            report.heard_s = self._context.now_s
        self._looking_s = None

    def status(self) -> RingStatus:
        """The ring's status, for people."""
        number = self.present.number if self.present else 0
        return RingStatus(number, self.formed, tuple(map(str, self.members)), self.reason)

    def reported(self, event: RingReported) -> None:
        """Take in a worker's report of its position on the ring."""
        process = self._context.worker(event.worker)
        if process is None:
            self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
            return
        if max(event.entered, event.broken) > (self.present.number if self.present else 0):
            self._context.drop(DropCause.UNKNOWN_GENERATION, event.worker, event)
            return
        report = self._reports.setdefault(event.worker, _Report(event.at_s))
        if not event.ready or self._inside(event):
            report.free_since_s = None
        elif report.free_since_s is None or event.broken > report.broken:
            report.free_since_s = event.at_s
        if (
            event.broken > report.broken
            and event.problem
            and self.present is not None
            and event.broken >= self.present.number
        ):
            # A problem of an earlier generation is no news: a newer one has replaced that
            # generation.
            self.problem = textwrap.shorten(
                event.problem.splitlines()[0], _MOST_CHARS, placeholder=" …"
            )
        if self._unheard is not None:
            self._unheard.discard(event.worker)
        # A report on a new stream proves that the worker lives.
        report.heard_s, report.cut_off, report.leaving = event.at_s, False, event.leaving
        # Generations only grow: an older report must not take one back.
        report.entered, report.broken = (
            max(report.entered, event.entered),
            max(report.broken, event.broken),
        )
        report.position = RingPosition(event.version, event.number, event.offset)
        if event.leaving and process.life is Life.READY:
            text = f"{event.worker} is draining: the ring continues without it"
            process.enter(
                Life.STOPPING, event.at_s, "draining", deadline_s=event.at_s + LEAVE_LIMIT_S
            )
            details = meaning(EventStep.STOPPING, reason="draining")
            self._context.orders.announce("process", text, process=event.worker, details=details)
        if (
            self._context.phase in (Phase.ENDING, Phase.ENDED)
            and event.broken >= event.entered
            and process.finished
        ):
            # Other members left earlier; this one may be waiting for a ring that will not form.
            self._context.orders.give(WorkFinished(event.worker))
        self._entered(event)

    def _inside(self, event: RingReported) -> bool:
        present = self.present
        here = (
            present is not None
            and event.worker in present.members
            and event.entered == present.number
        )
        return here and event.broken < event.entered

    def why_not_replace(self, name: ProcessName) -> str | None:
        """Why stopping a live worker would lose what the ring learned; None if it would not."""
        others = (
            process for process in self._context.processes.live_workers() if process.name != name
        )
        if name not in self._holders or any(
            other.life is Life.READY and other.name in self._holders for other in others
        ):
            return None
        return (
            f"no other worker has the weights of {name} yet: updates since the newest checkpoint"
            " would be lost"
        )

    def lost_connection(self, event: ConnectionLost) -> None:
        """Note that a worker's order stream broke: it is probably dead.

        Its next report proves that it is not.
        """
        report = self._reports.get(event.name)
        if report is not None:
            report.cut_off = True

    def _entered(self, event: RingReported) -> None:
        present = self.present
        if present is None or event.worker not in present.members:
            return
        # A member that entered a generation got its weights, and keeps them if that generation
        # breaks.
        if event.entered >= max(self._since[event.worker], event.broken):
            self._holders[event.worker] = None
        if event.entered != present.number:
            return
        if self.formed < present.number and all(
            self._reports[name].entered >= present.number for name in present.members
        ):
            self.formed = present.number
            took_s = event.at_s - present.since_s
            text = (
                f"generation {present.number} of the ring is complete after {took_s * 1000:.0f} ms:"
                f" {self._listed()}"
            )
            self._context.orders.announce(
                "ring",
                text,
                details=meaning(EventStep.COMPLETE, generation=present.number, seconds=took_s),
            )
            self._work.formed(present.members)

    def decide(self) -> None:
        """Publish another generation if one is due."""
        if self._context.phase not in _WORKING or self._waits_for_members():
            return
        workers = [
            standing
            for process in self._context.processes.workers()
            if (standing := self._standing(process)) is not None
        ]
        wanted = next_generation.RingTarget(
            self._context.workers.low,
            self._context.most_workers,
            self._coming(),
            self._must_form_again or self._work.halts_anew,
        )
        decision = next_generation.decide(self._context.now_s, self.present, workers, wanted)
        self.reason = decision.reason
        if decision.look_again_s is not None and decision.look_again_s != self._looking_s:
            # Every event calls `decide`; order one timer per point in time.
            self._looking_s = decision.look_again_s
            self._context.orders.give(
                LookAgain(max(0.0, decision.look_again_s - self._context.now_s))
            )
        if decision.generation > (
            self.present.number if self.present else 0
        ) and not self._in_doubt(decision):
            self._publish(decision)

    def _waits_for_members(self) -> bool:
        """Whether members have yet to tell this master how far they came."""
        if self._unheard is None:
            return False
        unheard = sorted(name for name in self._unheard if self._context.worker(name) is not None)
        if unheard:
            listed = ", ".join(map(str, unheard))
            self.reason = f"another master took over and waits for reports of {listed}"
            return True
        self._unheard = None
        if self.present is not None and self.formed != self.present.number:
            self.form_again("another master took over while the generation formed")
        return False

    def _in_doubt(self, decision: next_generation.Decision) -> bool:
        """Whether members of the present generation may have just got weights that seem lost.

        That generation cannot continue. Once it is withdrawn, its members report how far they came.
        """
        present, now_s = self.present, self._context.now_s
        if (
            present is None
            or not self._begun
            or any(name in self._holders for name in decision.members)
        ):
            return False
        unsure = [
            name
            for name in decision.members
            if name in present.members and not self._has_said(name, present.number)
        ]
        if not unsure:
            return False
        if self._withdrawn != present.number:
            self._withdrawn, self._withdrawn_s = present.number, now_s
            self._context.orders.give(WithdrawRing(present.number), LookAgain(_DOUBT_S))
        self.reason = f"{', '.join(map(str, unsure))} may have the weights; asking"
        return now_s - self._withdrawn_s < _DOUBT_S

    def _has_said(self, name: ProcessName, generation: int) -> bool:
        report = self._reports[name]
        return report.entered >= generation or report.broken >= generation or report.cut_off

    def _publish(self, decision: next_generation.Decision) -> None:
        for name in self.members:
            report = self._reports.get(name)
            if name not in decision.members and report is not None:
                # It is out of the ring: only what it reports after learning that counts.
                report.free_since_s = None
                # Its weights are no longer the ring's: others get the leases that use them.
                self._leasing.revocation.revoke(name, "the ring continues without it")
        # The generation continues from the weights of its members. Others fall behind with its
        # first step.
        self._holders = {name: None for name in self._holders if name in decision.members}
        restore_from = ""
        if not self._holders and self._begun:
            restore_from = self._work.roll_back(
                f"all members that had the weights are gone ({decision.reason})"
            )
            self._since.clear()
        self._begun, self._must_form_again = True, ""
        self._since = {
            name: self._since.get(name, decision.generation) for name in decision.members
        }
        self.present = next_generation.Generation(
            decision.generation, decision.members, self._context.now_s
        )
        holders = tuple(rank for rank, name in enumerate(decision.members) if name in self._holders)
        self._work.published(decision.members)
        self._context.orders.give(
            PublishRing(
                decision.generation,
                decision.members,
                holders,
                self._work.first_item,
                restore_from,
            )
        )
        text = f"generation {decision.generation} of the ring: {self._listed()} ({decision.reason})"
        problem, self.problem = self.problem, ""
        reason, members = (
            f"{decision.reason}: {problem}" if problem else decision.reason,
            " ".join(map(str, decision.members)),
        )
        details = meaning(
            EventStep.PUBLISHED, generation=decision.generation, members=members, reason=reason
        )
        self._context.orders.announce(
            "ring", f"{text}: {problem}" if problem else text, details=details
        )

    def _standing(self, process: Process) -> next_generation.MemberState | None:
        """The state of a member; None for a worker that has not attached or is gone."""
        report = self._reports.get(process.name)
        if report is None or process.life not in (Life.READY, Life.STOPPING):
            return None
        return next_generation.MemberState(
            process.name,
            report.heard_s,
            report.entered,
            report.broken,
            report.free_since_s,
            report.leaving or process.life is Life.STOPPING,
            report.cut_off,
            process.name in self._holders,
        )

    def _coming(self) -> int:
        """Workers that are expected to become ready."""
        coming = 0
        for process in self._context.processes.live_workers():
            report = self._reports.get(process.name)
            coming += process.life is not Life.REFUSED and (
                report is None or (report.free_since_s is None and not report.entered)
            )
        return coming

    def _listed(self) -> str:
        return ", ".join(map(str, self.members))
