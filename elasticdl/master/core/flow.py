"""What comes after what: train → evaluate → checkpoint → export → end; or drain → checkpoint → end, when stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.errors import ExitCode
from elasticdl.job import Action
from elasticdl.master.core.checkpointing import Checkpointing
from elasticdl.master.core.commands import FinishJob, StopProcess, WorkFinished
from elasticdl.master.core.errands import Errand
from elasticdl.master.core.evaluation import Evaluation
from elasticdl.master.core.events import ExportFinished, StopRequested
from elasticdl.master.core.leasing import Leasing
from elasticdl.master.core.parts import Facts, Outcome, Phase
from elasticdl.master.core.processes import Life
from elasticdl.master.core.scaling import DRAIN_GRACE_S, Scaling
from elasticdl.shard import Task
from elasticdl.words import amount

_END_LIMIT_S = 30.0
_SERVERS_LIMIT_S = 15.0
_NO_SERVERS_LIMIT_S = 30.0
_HALT_LIMIT_S = 30.0


@final
class Flow:
    """Moves the job from phase to phase."""

    def __init__(
        self, facts: Facts, scaling: Scaling, leasing: Leasing, evaluation: Evaluation, checkpointing: Checkpointing
    ) -> None:
        self._facts = facts
        self._scaling = scaling
        self._leasing = leasing
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._exported = False
        self._ending = False
        self._servers_stopped = False
        self._stopped_for = ""
        self.ring_idle: Callable[[], bool] = lambda: True
        """On a ring: whether nothing is in its hands."""
        self.end_waits: Callable[[], None] = lambda: None
        """Tells that nothing is waited for any more."""

    def begin(self) -> None:
        """The data was counted."""
        action = self._facts.spec.action
        if action is Action.EVALUATE:
            self._facts.enter(Phase.EVALUATING, "evaluation begins")
            return
        work = self._facts.work
        assert work is not None
        records, shards, epochs = work.plan.records, work.plan.shards, work.plan.epochs
        text = f"{amount(records, 'record')} in {amount(shards, 'shard')}" + (
            f", {amount(epochs, 'epoch')}" if action is Action.TRAIN else ""
        )
        what = "training" if action is Action.TRAIN else "prediction"
        if work.resumed:
            total = amount(records * epochs, "record")
            self._facts.enter(
                Phase.WORKING, f"{what} goes on in epoch {work.epoch + 1}, {work.resumed:,} of {total} are done: {text}"
            )
        else:
            self._facts.enter(Phase.WORKING, f"{what} begins: {text}")

    def work_again(self, why: str) -> None:
        """Work that was done is not any more: its results are gone."""
        facts = self._facts
        if facts.phase in (Phase.EVALUATING, Phase.CHECKPOINTING, Phase.EXPORTING) and facts.outcome is None:
            self._evaluation.final_done = self._exported = False
            facts.export = None
            facts.enter(Phase.WORKING, why)

    def exported(self, event: ExportFinished) -> None:
        """A worker wrote the export."""
        self._exported = self._exported or self._leasing.exported(event)

    def stop(self, event: StopRequested) -> None:
        """A person wants the job to end; wanted twice, it ends without grace."""
        phase = self._facts.phase
        if phase in (Phase.ENDING, Phase.ENDED):
            return
        hurry = self._facts.outcome is not None
        self._stopped_for = self._stopped_for or event.reason  # the first reason stands: signals may follow
        why = f"the job is stopped: {self._stopped_for}"
        if self._facts.outcome is None:  # else it is being stopped already: any other outcome comes with the end
            self._facts.outcome = Outcome(ExitCode.INTERRUPTED, f"stopped: {self._stopped_for}", "")
        self._evaluation.abandon()
        if self._facts.on_ring and not hurry and self._facts.work is not None:
            # The weights live in the workers: they stop where they are and stay for the last checkpoint.
            self._leasing.halt_ring(why)
            self._facts.enter(Phase.DRAINING, f"{why}; the ring stops at the step that it is at")
            return
        if not hurry:
            self._facts.enter(Phase.DRAINING, f"{why}; workers give their work back")
        grace_s = 0.0 if hurry else DRAIN_GRACE_S
        for process in list(self._facts.processes.workers()):
            if process.live or (hurry and process.life is Life.STOPPING):
                self._scaling.stop(process, grace_s, why)
        if hurry and (phase is Phase.CHECKPOINTING or self._facts.on_ring):
            # The weights of a ring go with its workers: no ring of those who end a moment later is of use.
            self._facts.enter(Phase.ENDING, "stopped twice: the job ends without a last checkpoint")

    def decide(self) -> None:
        """Go as far as the facts allow."""
        before = None
        while before is not self._facts.phase:
            before = self._facts.phase
            self._step()

    def _step(self) -> None:
        match self._facts.phase:
            case Phase.WORKING:
                self._after_work()
            case Phase.EVALUATING if self._evaluation.final_done:
                self._to_checkpoint()
            case Phase.DRAINING:
                self._after_draining()
            case Phase.CHECKPOINTING:
                self._after_checkpoint()
            case Phase.EXPORTING if self._exported:
                self._done()
            case Phase.ENDING:
                self._ending_step()
            case _:
                pass

    def _after_work(self) -> None:
        work, facts = self._facts.work, self._facts
        if work is None or not work.finished or self._evaluation.round is not None:
            return
        lost = sum(count.lost - count.parked for count in work.counts)
        if lost:
            facts.fail(f"{amount(lost, 'record')} neither trained nor given up: the ledger does not add up")
        elif facts.spec.action is Action.PREDICT:
            self._done()
        elif facts.validation:
            facts.enter(Phase.EVALUATING, "training is done; the final evaluation begins")
        else:
            self._to_checkpoint()

    def _to_checkpoint(self) -> None:
        if self._facts.spec.action is not Action.TRAIN:
            self._done()
        elif self._facts.spec.checkpoint.checkpoint_steps:
            self._checkpointing.begin_final()
            self._facts.enter(Phase.CHECKPOINTING, "the last checkpoint is taken")
        else:
            self._to_export()

    def _after_draining(self) -> None:
        work = self._facts.work
        if self._facts.on_ring:
            if not self.ring_idle() and self._facts.now_s - self._facts.phase_since_s < _HALT_LIMIT_S:
                return
        elif any(True for _ in self._facts.processes.workers()) or (work is not None and work.held):
            return
        spec = self._facts.spec
        begun = work is not None and bool(work.totals().trained or self._facts.version)
        if spec.action is Action.TRAIN and begun and spec.keeps_checkpoints:
            self._checkpointing.begin_final()
            text = "the ring stands" if self._facts.on_ring else "workers are gone"
            self._facts.enter(Phase.CHECKPOINTING, f"{text}; the last checkpoint is taken")
        else:
            self._end("")

    def _after_checkpoint(self) -> None:
        facts, checkpointing = self._facts, self._checkpointing
        # Servers that are away hold the last checkpoint up only for a while, if the job was stopped.
        away = facts.servers_away() or facts.on_ring
        hopeless = bool(away) and facts.now_s - facts.phase_since_s > _NO_SERVERS_LIMIT_S and facts.outcome is not None
        if not checkpointing.final_over and not hopeless:
            return
        if not checkpointing.final_saved:
            problem = checkpointing.last_problem or facts.servers_away() or "the members of the ring are gone or do not answer"
            facts.orders.announce("checkpoint", f"there is no last checkpoint: {problem}", level="error")
            if facts.outcome is not None:
                message = f"{facts.outcome.message}; the last checkpoint could not be taken: {problem}"
                facts.outcome = replace(facts.outcome, message=message)
        if facts.outcome is not None:
            self._end("")
        else:
            self._to_export()

    def _to_export(self) -> None:
        if self._facts.spec.checkpoint.output:
            self._facts.export = Errand(Task.EXPORT)
            self._facts.enter(Phase.EXPORTING, "the model is exported")
        else:
            self._done()

    def _done(self) -> None:
        """All that the user asked for is there; what a dead server took with it is said, since the receipt is of records only."""
        if not (updates := self._facts.updates_lost):
            return self._end("done")
        self._facts.outcome = self._facts.outcome or Outcome(
            ExitCode.DONE,
            f"done, but {amount(updates, 'update')} of weights went with parameter servers that died",
            "--checkpoint-steps bounds how many can go: a server comes back with its part of the newest checkpoint",
        )
        return self._end("")

    def _end(self, message: str) -> None:
        self._facts.outcome = self._facts.outcome or Outcome(ExitCode.DONE, message)
        self._facts.enter(Phase.ENDING, f"the job is over: {self._facts.outcome.message}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ending_step(self) -> None:
        facts = self._facts
        if not self._ending:
            self._ending = True
            self.end_waits()
            self._evaluation.abandon()
            self._dismiss_workers()
        workers_left = any(True for _ in facts.processes.workers())
        waited_s = facts.now_s - facts.phase_since_s
        if not self._servers_stopped and (not workers_left or waited_s > _SERVERS_LIMIT_S):
            self._servers_stopped = True
            for process in list(facts.processes.going.values()):
                if process.name.role is Role.PS and process.live:
                    self._scaling.stop(process, 5.0, "the job is over")
        if self._servers_stopped and (not facts.processes.going or waited_s > _END_LIMIT_S):
            assert facts.outcome is not None
            facts.phase, facts.phase_since_s = Phase.ENDED, facts.now_s
            facts.orders.give(FinishJob(facts.outcome.exit_code, facts.outcome.message, facts.outcome.hint))

    def _dismiss_workers(self) -> None:
        outcome = self._facts.outcome
        assert outcome is not None
        for process in list(self._facts.processes.workers()):
            if process.life is Life.READY and outcome.exit_code is ExitCode.DONE:
                process.finished = True
                self._facts.orders.give(WorkFinished(process.name))
            elif process.live:
                self._scaling.stop(process, 5.0, "the job is over")
            elif process.life is Life.STOPPING:
                self._facts.orders.give(StopProcess(process.name, 5.0, "the job is over"))
