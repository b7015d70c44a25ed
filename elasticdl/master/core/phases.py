"""The order of a job's phases: train → evaluate → checkpoint → export → end.

A stopped job goes drain → checkpoint → end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.errors import ExitCode
from elasticdl.formatting import amount
from elasticdl.job_choices import Action
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.commands import FinishJob, RunPreflight, StopProcess, WorkFinished
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.beginning import continues
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import (
    MasterStarted,
    PreflightFailed,
    PreflightProgressed,
    StopRequested,
)
from elasticdl.master.core.exporting import Exporting
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.scaling import DRAIN_GRACE_S, END_GRACE_S, Scaling
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.waits import Waits
from elasticdl.on_train_end import ON_TRAIN_END, ON_TRAIN_END_S

_END_LIMIT_S = 30.0
"""Processes of a job that is over may take this long to end, but see `ON_TRAIN_END_S`."""
_HUNG_S = 20.0
"""A worker that has not stopped counts as hung after so long in the same code."""
_SERVERS_LIMIT_S = 15.0
_NO_SERVERS_LIMIT_S = 30.0


@final
class Phases:
    """Moves the job from phase to phase."""

    def __init__(
        self,
        context: JobContext,
        scaling: Scaling,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        exporting: Exporting,
        coordination: Coordination,
        waits: Waits,
    ) -> None:
        self._context = context
        self._scaling = scaling
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._exporting = exporting
        self._coordination = coordination
        self._waits = waits
        self._ending = False
        self._servers_stopped = False
        self._stopped_for = ""
        self._train_end_cut_off = False
        self._train_end_s = 0.0
        """When a worker was last waited for in `on_train_end`; 0: never."""
        self._had_all = False
        """Whether the checkpoint that the job began with has all that it was to train."""

    def preflight(self, event: MasterStarted | PreflightProgressed | PreflightFailed) -> None:
        """Run the preflight and follow its progress; ignored once the job is stopped."""
        if self._context.phase is not Phase.STARTING:
            return
        match event:
            case MasterStarted():
                # The clock of a resumed job does not begin at 0.
                self._context.phase_since_s = event.at_s
                self._context.orders.give(RunPreflight())
            case PreflightProgressed(text=text):
                self._context.preflight = text
                self._context.orders.announce("job", text)
            case PreflightFailed(message=message, hint=hint, exit_code=code):
                self._context.fail(message, hint=hint, exit_code=code)

    def begin(self) -> None:
        """Enter the first phase after the preflight passed."""
        action = self._context.spec.action
        if action is Action.EVALUATE:
            self._context.enter(Phase.EVALUATING, "evaluation begins")
            return
        work = self._context.work
        assert work is not None
        if work.resumed:
            self._had_all = work.finished
            self._context.enter(Phase.WORKING, continues(work))
            return
        records, shards, epochs = work.plan.records, work.plan.shards, work.plan.epochs
        text = f"{amount(records, 'record')} in {amount(shards, 'shard')}" + (
            f", {amount(epochs, 'epoch')}" if action is Action.TRAIN else ""
        )
        what = "training" if action is Action.TRAIN else "prediction"
        self._context.enter(Phase.WORKING, f"{what} begins: {text}")

    def stop(self, event: StopRequested) -> None:
        """Stop the job at a person's request; a second request ends it without grace.

        In a job that is over it cuts off what its callbacks do in `on_train_end`.
        """
        phase = self._context.phase
        if phase in (Phase.ENDING, Phase.ENDED):
            outcome = self._context.outcome
            done = outcome is not None and outcome.exit_code is ExitCode.DONE
            trained = done and self._context.spec.action is Action.TRAIN
            if trained and phase is Phase.ENDING and not self._train_end_cut_off:
                text = f"its work is done, and {ON_TRAIN_END} of callbacks is cut off"
                self._context.orders.announce("job", f"stopping the job: {event.reason}; {text}")
            self._train_end_cut_off = True
            return
        # An earlier stop or failure has set the outcome, so this is a second request.
        hurry = self._context.outcome is not None
        # The first reason stands: signals may follow.
        self._stopped_for = self._stopped_for or event.reason
        why = f"stopping the job: {self._stopped_for}"
        # With an outcome the job is already being stopped: any other outcome comes with the end.
        if self._context.outcome is None:
            self._context.outcome = FinishJob(
                ExitCode.INTERRUPTED, f"stopped: {self._stopped_for}", ""
            )
        if phase is Phase.STARTING:
            # There is no process yet, and no work to give back.
            self._end("")
            return
        self._wind_down(why, hurry=hurry)

    def _wind_down(self, why: str, *, hurry: bool) -> None:
        """Have workers give their work back, or stop the ring where it is.

        The last checkpoint follows.
        """
        phase = self._context.phase
        self._evaluation.abandon()
        self._exporting.abandon()
        if not hurry and (halts := self._coordination.halt(why)):
            self._context.enter(Phase.DRAINING, f"{why}; {halts}")
            return
        if not hurry:
            self._context.enter(Phase.DRAINING, f"{why}; workers return their shards")
        grace_s = 0.0 if hurry else DRAIN_GRACE_S
        for process in list(self._context.processes.workers()):
            if process.live or (hurry and process.life is Life.STOPPING):
                self._scaling.stop(process, grace_s, why)
        kept = self._coordination.weights_outlive_workers
        if hurry and (phase is Phase.CHECKPOINTING or not kept):
            self._context.enter(Phase.ENDING, "ending at once, without a last checkpoint")

    def stalled(self, why: str, exact: bool) -> None:
        """End a job that no remedy helped.

        A training job takes a last checkpoint only if that is `exact`. One with more updates than
        the ledger would make a resumed job train these records again.
        """
        context = self._context
        hint = (
            "events.jsonl has the stacks of its processes; with checkpoints, --resume continues the"
            " job"
        )
        if (
            context.phase not in (Phase.WORKING, Phase.EVALUATING)
            or context.outcome is not None
            or not exact
        ):
            context.fail(why, hint=hint, exit_code=ExitCode.STALLED)
            return
        context.outcome = FinishJob(ExitCode.STALLED, why, hint)
        context.orders.announce("job", f"job failed: {why}", level="error")
        self._wind_down("job failed", hurry=False)

    def taken_over(self) -> None:
        """Dismiss all processes again if the job is ending."""
        self._ending = self._servers_stopped = False

    def decide(self) -> None:
        """Advance through all phases that are complete."""
        before = None
        # One event may complete several phases, for example training without evaluation or export.
        while before is not self._context.phase:
            before = self._context.phase
            self._step()

    def _step(self) -> None:
        match self._context.phase:
            case Phase.WORKING:
                self._after_work()
            case Phase.EVALUATING if self._evaluation.final_done:
                self._to_checkpoint()
            case Phase.DRAINING:
                self._after_draining()
            case Phase.CHECKPOINTING:
                self._after_checkpoint()
            case Phase.EXPORTING if self._context.export and self._context.export.task.done:
                self._done()
            case Phase.ENDING:
                self._ending_step()
            case _:
                pass

    def _after_work(self) -> None:
        work, context = self._context.work, self._context
        # An open round reads the parameters of its version: let it finish before the final one
        # begins.
        if work is None or not work.finished or self._evaluation.round is not None:
            return
        if self._exporting.awaited() or self._context.pushes_awaited():
            return
        # The ledger's own check. A job never ends as done with records that it cannot account for.
        lost = sum(count.lost - count.parked for count in work.counts)
        if lost:
            context.fail(
                f"{amount(lost, 'record')} neither trained nor skipped: the ledger does not add up"
            )
        elif context.spec.action is Action.PREDICT:
            self._done()
        elif context.validation and not self._evaluation.final_done:
            context.enter(Phase.EVALUATING, "training is done; final evaluation begins")
        else:
            self._to_checkpoint()

    def _to_checkpoint(self) -> None:
        if self._context.spec.action is not Action.TRAIN:
            self._done()
        elif self._saved_before():
            self._to_export()
        elif self._checkpointing.ends_with_one and self._checkpointing.begun:
            self._checkpointing.begin_final()
            self._context.enter(Phase.CHECKPOINTING, "taking the last checkpoint")
        else:
            self._to_export()

    def _saved_before(self) -> bool:
        """Whether the checkpoint that the job began with is its last one, too."""
        if self._context.spec.checkpoint_copies:
            return False  # Its copy may be missing, or be at another address.
        if self._evaluation.final_done and self._evaluation.results:
            return False  # Its ledger does not say yet that it was evaluated.
        work = self._context.work
        # Lost weights are trained again.
        return self._had_all and work is not None and not work.done_by.total()

    def _after_draining(self) -> None:
        if not (drained := self._coordination.drained()):
            return
        spec = self._context.spec
        if spec.action is Action.TRAIN and self._checkpointing.begun and spec.keeps_checkpoints:
            self._checkpointing.begin_final()
            self._context.enter(Phase.CHECKPOINTING, f"{drained}; taking the last checkpoint")
        else:
            self._end("")

    def _after_checkpoint(self) -> None:
        context, checkpointing = self._context, self._checkpointing
        # A process that has the weights and is away delays the last checkpoint of a stopped job
        # only for a limited time. The last checkpoint cannot begin before an earlier one ends.
        away = self._coordination.weights_away()
        waited_s = context.now_s - max(context.phase_since_s, checkpointing.delayed_s)
        hopeless = bool(away) and waited_s > _NO_SERVERS_LIMIT_S and context.outcome is not None
        hung = self._hung()
        if not checkpointing.final_over and not hopeless and not hung:
            return
        if context.outcome is None and context.pushes_awaited():
            return
        if not checkpointing.final_saved:
            problem = hung or checkpointing.last_problem or away
            context.orders.announce(
                "checkpoint", f"the last checkpoint failed: {problem}", level="error"
            )
            if context.outcome is not None:
                message = f"{context.outcome.message}; the last checkpoint failed: {problem}"
                context.outcome = replace(context.outcome, message=message)
        if context.outcome is not None:
            self._end("")
        else:
            self._to_export()

    def _hung(self) -> str:
        """Why no checkpoint can come of workers with the weights, in words; '' if one can.

        They were asked to stop and have been in the same code since.
        """
        not_halted = self._coordination.not_halted() if self._context.outcome else ()
        busy = self._waits.busy(not_halted, _HUNG_S)
        return f"the ring has not stopped: {busy}" if busy else ""

    def _to_export(self) -> None:
        if self._context.spec.checkpoint.output:
            self._exporting.begin_final()
            self._context.enter(Phase.EXPORTING, "exporting the model")
        else:
            self._done()

    def _done(self) -> None:
        """End the job with its results, once it is known which updates were lost with servers."""
        if self._context.pushes_awaited():
            return None
        counts = self._context.updates.counts()
        if self._context.spec.action is not Action.TRAIN or not counts.lost:
            return self._end("done")
        lost = f"{'at least ' if counts.at_least else ''}{amount(counts.lost, 'update')}"
        self._context.outcome = self._context.outcome or FinishJob(
            ExitCode.DONE,
            f"done, but parameter servers that died lost {lost}",
            "lower --checkpoint-seconds or --checkpoint-steps to lose fewer: a server restores its"
            " part of the newest checkpoint",
        )
        return self._end("")

    def _end(self, message: str) -> None:
        # The first outcome stands: a stop or failure must not turn into success.
        self._context.outcome = self._context.outcome or FinishJob(ExitCode.DONE, message)
        self._context.enter(Phase.ENDING, f"job over: {self._context.outcome.message}")

    # the end

    def _ending_step(self) -> None:
        context = self._context
        if not self._ending:
            self._ending = True
            self._waits.end()
            self._evaluation.abandon()
            self._dismiss_workers()
        waited_s = context.now_s - context.phase_since_s
        self._cut_off_train_ends(waited_s)
        # Servers stop after the workers: a worker's last push still needs them.
        workers_left = any(True for _ in context.processes.workers())
        if not self._servers_stopped and (not workers_left or waited_s > _SERVERS_LIMIT_S):
            self._servers_stopped = True
            for process in list(context.processes.going.values()):
                if process.name.role is Role.PS and process.live:
                    self._scaling.stop(process, END_GRACE_S, "the job is over")
        # A process whose end is never reported must not keep the job from ending.
        if self._servers_stopped and (not context.processes.going or self._waited_enough(waited_s)):
            assert context.outcome is not None
            self._waits.end()
            context.phase, context.phase_since_s = Phase.ENDED, context.now_s
            context.orders.give(context.outcome)

    def _waited_enough(self, waited_s: float) -> bool:
        """Whether the job ends with processes that have not."""
        if waited_s <= _END_LIMIT_S:
            return False
        if self._waits.train_ends():
            self._train_end_s = self._context.now_s
        # A worker that has returned from it has as much time to exit as any other.
        return self._context.now_s - self._train_end_s > _END_LIMIT_S

    def _cut_off_train_ends(self, waited_s: float) -> None:
        """End workers whose `on_train_end` has taken too long, or whose job was stopped."""
        # Workers end themselves at their limit, and so say where they were.
        late = waited_s > ON_TRAIN_END_S + _END_LIMIT_S
        if not (late or self._train_end_cut_off):
            return
        why = "its time is over" if late else "the job was stopped"
        for process, activity in self._waits.train_ends():
            self._train_end_s = self._context.now_s
            took_s = self._context.now_s - activity.since_s
            text = f"{ON_TRAIN_END} of {process.name} was cut off after {took_s:.0f} s: {why}"
            self._context.orders.announce("job", text, process=process.name, level="warning")
            self._scaling.stop(process, 0.0, f"{ON_TRAIN_END} was cut off: {why}")

    def _dismiss_workers(self) -> None:
        outcome = self._context.outcome
        assert outcome is not None
        for process in list(self._context.processes.workers()):
            if process.life is Life.READY and outcome.exit_code is ExitCode.DONE:
                process.finished = True
                self._context.orders.give(WorkFinished(process.name))
            elif process.live:
                self._scaling.stop(process, END_GRACE_S, "the job is over")
            elif process.life is Life.STOPPING:
                self._context.orders.give(StopProcess(process.name, END_GRACE_S, "the job is over"))
