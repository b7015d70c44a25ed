"""Replaces the job's ledger by an earlier one after the weights were lost."""

from __future__ import annotations

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.resuming import resume
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.shard import Task


def restore_ledger(
    context: JobContext, evaluation: Evaluation, ledger: str, holder: ProcessName
) -> int:
    """Train from a checkpoint's ledger (JSON; '' for the beginning); return records to repeat.

    `holder` is credited with what the checkpoint has beyond the reports.
    """
    before = context.work
    assert before is not None
    if ledger:
        epochs = context.spec.data.num_epochs
        again = resume(ledger, before.plan.sources, epochs, context.ids).ledger
    else:
        again = Ledger(before.plan, context.ids, task=Task.TRAINING)
    repeated = again.replaces(before, holder)
    context.work = again
    context.went_back(before, again)
    late = context.phase in (Phase.EVALUATING, Phase.CHECKPOINTING, Phase.EXPORTING)
    if late and context.outcome is None and not again.finished:
        # Results of the lost weights no longer count.
        # The job is past training and returns to it, so its final round must happen again.
        evaluation.reopen()
        context.export = None
        context.enter(Phase.WORKING, "the weights were lost: training resumes")
    return repeated
