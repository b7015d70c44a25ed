"""Handles the ends of processes: their cause, its budget, and the work that they held."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.formatting import amount
from elasticdl.history.job_event import EventStep, Value, meaning
from elasticdl.master.core.activities import Activities
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import ProcessEnded, ProcessSilent
from elasticdl.master.core.job_context import MORE_MEMORY, JobContext, Phase
from elasticdl.master.core.processes.causes import (
    PLATFORM,
    PROBLEMS,
    Cause,
    Verdict,
    gibibytes,
    silence,
    verdict_of,
)
from elasticdl.master.core.processes.scaling import Scaling
from elasticdl.master.core.processes.table import Life, Process
from elasticdl.master.core.status_builder import main_ledger
from elasticdl.shard import ShardId

_HINTS = {
    Cause.OUT_OF_MEMORY: MORE_MEMORY,
    Cause.IMAGE: (
        "check that the image exists and that the cluster may pull it (--image-name,"
        " --image-pull-secrets)"
    ),
    Cause.START_ERROR: ("build the image with `elasticdl zoo build`, or check what it lacks"),
}


@final
class ProcessEnds:
    """Says why a process ended, and gives its work to others."""

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        scaling: Scaling,
        evaluation: Evaluation,
        activities: Activities,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._scaling = scaling
        self._evaluation = evaluation
        self._activities = activities

    def ended(self, event: ProcessEnded) -> None:
        """Handle the end of a process; a repeated event has no effect."""
        process = self._context.processes.going.get(event.name)
        if process is None:
            return
        worker = event.name.role is Role.WORKER
        verdict = verdict_of(
            event.exit_status,
            finished=process.finished,
            limit_bytes=process.memory_bytes,
            worker=worker,
        )
        if process.life is Life.LOST:
            explained = silence(event.exit_status)
            self._explained(process, explained or verdict, own=explained is not None)
            return
        if verdict.cause not in (Cause.IMAGE, Cause.START_ERROR):
            process.ran = (
                process.ran
                or event.exit_status.exit_code is not None
                or event.exit_status.signal is not None
            )
        if verdict.cause is Cause.FINISHED and self._context.is_spare(process.name):
            verdict = Verdict(Cause.FINISHED, process.message)
        if verdict.cause is Cause.DRAINED and process.message:
            verdict = Verdict(Cause.DRAINED, f"{verdict.text} ({process.message})")
            if process.cause is not None:  # The master had a reason that is no ordinary one.
                verdict = Verdict(process.cause, process.message)
        elif verdict.cause is Cause.HUNG and process.cause is not None:
            # It was to end for that reason, and did not end in time.
            verdict = Verdict(process.cause, f"{process.message}; it {verdict.text}")
        if verdict.cause is Cause.HUNG:
            verdict = self._hung(process, verdict)
        self._context.processes.end(process, verdict.cause, verdict.text, event.at_s)
        self._account(process, verdict, event.exit_status)

    def _hung(self, process: Process, verdict: Verdict) -> Verdict:
        """Note since when a process hung that ended itself by force, and add that to its verdict.

        The process counts from when it was to end.
        """
        activity = self._activities.of(process)
        if activity is None:
            return verdict
        process.hung_since_s = activity.since_s
        if process.finished:
            return verdict  # It says itself how long its `on_train_end` took.
        took_s = self._context.now_s - activity.since_s
        text = f"{verdict.text}; it was in {activity.what} for {took_s:.0f} s"
        return replace(verdict, text=text)

    def _explained(self, process: Process, verdict: Verdict, *, own: bool) -> None:
        """Record the end of a process that was given up.

        The reason for giving it up stays its cause. Only silence is replaced by a later
        explanation: the platform's, or the process's `own`.
        """
        if process.cause is not Cause.SILENT or not (own or verdict.cause in PLATFORM):
            self._context.processes.end(
                process, process.cause or verdict.cause, process.message, self._context.now_s
            )
            return
        self._context.processes.end(process, verdict.cause, verdict.text, self._context.now_s)
        if not own:
            self._context.budgets.explained()
        text = f"cause of the silence of {process.name}: {verdict.text}"
        details = {**meaning(EventStep.EXPLAINED, reason=verdict.text), **_frames(verdict)}
        self._context.orders.announce(
            "process", text, process=process.name, cause=verdict.cause, details=details
        )
        if verdict.cause is Cause.OUT_OF_MEMORY:
            self._give_more(process)
        elif verdict.blames_work and process.lost_shard is not None:
            self._leasing.blame(process, process.lost_shard, f"{process.name}: {verdict.text}")

    def silent(self, event: ProcessSilent) -> None:
        """Give up a process that has sent nothing for too long, whatever it does later."""
        process = self._context.processes.going.get(event.name)
        if process is None or process.life not in (Life.READY, Life.STOPPING):
            return
        if not process.finished:
            self.give_up(process, Verdict(Cause.SILENT, f"no message for {event.silent_s:.0f} s"))
        elif process.life is Life.READY and event.connected:
            # It may be in an `on_train_end` that holds the interpreter's lock. One that has exited
            # is no reason to warn: the platform tells its end late.
            text = (
                f"{process.name} sent nothing for {event.silent_s:.0f} s while the job was ending;"
                " the job does not wait for it"
            )
            self._context.orders.announce("process", text, process=process.name, level="warning")

    def give_up(self, process: Process, verdict: Verdict) -> None:
        """End a process at once and take its work back without waiting for its end."""
        # `_explained` reads these when the process ends at last.
        process.cause = verdict.cause
        process.lost_shard = self._first_shard(process)
        self._scaling.stop(process, 0.0, verdict.text, life=Life.LOST)
        self._account(process, verdict)

    def restart(self, server: Process, why: str) -> None:
        """End a server at once, which has lost nothing: its next process restores a checkpoint."""
        server.cause = Cause.DRAINED
        self._scaling.stop(server, 0.0, why, life=Life.LOST)
        self._announce(server, Verdict(Cause.DRAINED, why))
        self._take_back(server, "")

    def _account(
        self, process: Process, verdict: Verdict, context: ExitStatus | None = None
    ) -> None:
        """Take back what the process held, charge the budget of the cause, and announce the end."""
        name, counted = process.name, self._announce(process, verdict, context)
        if self._expected:
            return
        more = verdict.cause is Cause.OUT_OF_MEMORY and self._give_more(process)
        if self._context.is_spare(name):
            # It ends no round, and a change of the number of servers has tries of its own.
            return
        blame = (
            f"{name}: {verdict.text}"
            if verdict.blames_work and not process.failure_reported and not more
            else ""
        )
        stranded = verdict.cause is Cause.STRANDED and bool(self._context.servers_away())
        answered = self._take_back(process, blame) or more or counted or stranded
        ran, life = self._context.processes.ran(name.role), (process.ordered_s, self._context.now_s)
        if reason := self._context.budgets.died(
            str(name), verdict, answered=answered, role_ran=ran, life=life
        ):
            self._context.fail(reason, hint=self._hint(name, verdict.cause))

    def _hint(self, name: ProcessName, cause: Cause) -> str:
        if cause in _HINTS:
            return _HINTS[cause]
        back = self._context.roll_back if name.role is Role.PS else None
        return (
            f"check its log; if it cannot read its checkpoint, {back.hint}"
            if back
            else "check its log"
        )

    @property
    def _expected(self) -> bool:
        """Whether processes end because the job does."""
        return self._context.phase in (Phase.ENDING, Phase.ENDED)

    def _announce(
        self, process: Process, verdict: Verdict, context: ExitStatus | None = None
    ) -> bool:
        """Announce an end. True if the user's error behind it was reported and counted before."""
        name = process.name
        problem = verdict.cause in PROBLEMS and not self._expected
        # Also at the end of a job somebody may want to know whose `on_train_end` did not return.
        cut_off = verdict.cause is Cause.HUNG and process.finished
        level = "warning" if problem or cut_off else "info"
        records = self._done(process)
        done = f"; {amount(records, 'record')} done" if records else ""
        ended = "" if verdict.text.startswith("ended ") else "ended: "
        counted = process.failure_reported and verdict.cause is Cause.USER_ERROR
        # An event has the worker's report of its error already.
        reason = "user error" if counted else verdict.text
        text = f"{name} {ended}{reason}{done}"
        details = {
            **_ended(process, verdict, self._context.now_s),
            "records": records,
            **_how(context),
            **self._held(process),
            **_frames(verdict),
        }
        self._context.orders.announce(
            "process", text, process=name, cause=verdict.cause, level=level, details=details
        )
        return counted

    def _done(self, process: Process) -> int:
        """Records in the receipt that are known to be the work of this process so far.

        Settling may later add records that only the servers know of.
        """
        main = main_ledger(self._context, self._evaluation)
        return main.done_by[process.name] if main else 0

    def _held(self, process: Process) -> dict[str, Value]:
        """What it worked on: `shard`, the attempt, and `offset`, the records done of it."""
        work = self._context.work
        for held in work.held_by(process.name) if work and process.name.role is Role.WORKER else ():
            return {
                "shard": int(held.piece.shard.id),
                "attempt": held.piece.attempt,
                "offset": held.offset,
            }
        return {}

    def _first_shard(self, process: Process) -> ShardId | None:
        """The training shard that a worker worked on, if any."""
        held = self._context.work.held_by(process.name) if self._context.work else []
        return held[0].piece.shard.id if held else None

    def _take_back(self, process: Process, blame: str) -> bool:
        """Give the work of the process to others. True if `blame` was counted against some work."""
        if process.name.role is Role.WORKER:
            return self._leasing.lost(process, blame)
        for holder in self._evaluation.server_lost(process.name):
            self._leasing.revocation.revoke(
                holder, f"the view that it evaluates was lost with {process.name}"
            )
        for holder in self._leasing.exporting.server_lost(process.name):
            self._leasing.revocation.revoke(
                holder, f"the view that it exports was lost with {process.name}"
            )
        return False

    def _give_more(self, process: Process) -> bool:
        """Raise the memory of its role after it ran out of memory, within the job's limit."""
        role, memory = process.name.role, self._context.memory
        more_bytes, limit_bytes = memory.answer(role, process.memory_bytes), memory.limit(role)
        if more_bytes is None or limit_bytes is None:
            return False
        text = (
            f"the next {role} gets {gibibytes(more_bytes)} (--oom-memory-limit"
            f" {gibibytes(limit_bytes)})"
        )
        details = {"next_bytes": more_bytes, "limit_bytes": limit_bytes}
        self._context.orders.announce(
            "memory", text, process=process.name, cause=Cause.OUT_OF_MEMORY, details=details
        )
        return True


def _ended(process: Process, verdict: Verdict, now_s: float) -> dict[str, Value]:
    step = EventStep.LOST if process.life is Life.LOST else EventStep.ENDED
    details = meaning(step, reason=verdict.text)
    if process.ready_s is not None:
        details["ready_for_s"] = round(now_s - process.ready_s, 3)
    if process.memory_bytes is not None:
        details["memory_bytes"] = process.memory_bytes
    return details


def _frames(verdict: Verdict) -> dict[str, Value]:
    """Where it was in the user's code, if that is known."""
    return {"frames": "\n".join(verdict.frames)} if verdict.frames else {}


def _how(context: ExitStatus | None) -> dict[str, Value]:
    if context is None:
        return {}
    details = {
        "exit_code": context.exit_code,
        "signal": context.signal,
        "peak_bytes": context.memory_peak_bytes,
    }
    return {key: value for key, value in details.items() if value is not None}
