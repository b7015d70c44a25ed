"""What a job begins with: a fresh ledger, or that of a checkpoint. What it leaves to the next."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl.formatting import amount
from elasticdl.job_choices import Action
from elasticdl.job_status import UpdateCounts
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.resuming import ledger_json, resume, same_sources
from elasticdl.master.core.data.sharding import shard_plan, training_plan
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import JobStarted
from elasticdl.master.core.job_context import JobContext
from elasticdl.shard import Applied, ShardId, Task


def announce_repeated(context: JobContext, event: JobStarted) -> None:
    """Tell people what is trained again, if an earlier run got further than the job begins."""
    if not event.anew and not event.again:
        return
    beyond = "" if event.anew else " beyond its last checkpoint"
    text = (
        f"the previous run trained at least {amount(event.again, 'record')}{beyond}; they are"
        " repeated"
    )
    if event.anew:
        since = f"; {text}" if event.again else ""
        text = f"no checkpoint yet: starting from the first record{since}"
    context.orders.announce(
        "checkpoint",
        text,
        level="warning" if event.again else "info",
        details={"repeated": event.again},
    )


def first_ledger(context: JobContext, evaluation: Evaluation, event: JobStarted) -> Ledger | None:
    """Return the ledger of the job's work; None for an evaluation.

    Raises UserError if the data is not that of the ledger to resume.
    """
    data, ids = context.spec.data, context.ids
    match context.spec.action:
        case Action.EVALUATE:
            return None
        case Action.PREDICT:
            return Ledger(shard_plan(context.spec, event.prediction), ids, task=Task.PREDICTION)
        case Action.TRAIN if event.ledger:
            resumed = resume(event.ledger, event.training, data.num_epochs, ids)
            context.processes.next_worker = max(context.processes.next_worker, resumed.workers_used)
            # Round and worker numbers continue, so names in logs and callbacks stay unique across
            # runs.
            evaluation.start(event.version, resumed.rounds_used)
            context.updates.before = resumed.updates
            context.loss, context.metrics = resumed.loss, resumed.metrics
            # Its values are those of the weights that the job begins with.
            if (
                event.validation
                and resumed.ledger.finished
                and same_sources(resumed.evaluated, event.validation)
            ):
                evaluation.final_done = True
            return resumed.ledger
        case Action.TRAIN:
            return Ledger(training_plan(context.spec, event.training), ids, task=Task.TRAINING)


def continues(work: Ledger) -> str:
    """What is left of the training that an earlier run began, in words."""
    begun, wanted = len(work.counts), work.plan.epochs
    if work.finished and work.stopped:
        return (
            f"nothing left to train: an earlier run ended training early, in epoch {begun} of"
            f" {max(begun, wanted)}; start a new job with --checkpoint-dir-for-init to train on"
        )
    if work.finished:
        if begun > wanted:
            return (
                f"nothing left to train: {amount(begun, 'epoch')} are done, more than --num-epochs"
                f" {wanted}; raise it above {begun} to train on"
            )
        return (
            f"nothing left to train: {begun} of {wanted} epochs are done; raise --num-epochs to"
            " train on"
        )
    records, shards = work.plan.records, work.plan.shards
    total = amount(records * max(begun, wanted), "record")
    # An epoch without available records is done: the next one begins.
    epoch = begun + (not work.available)
    text = (
        f"training continues in epoch {epoch}, {work.resumed:,} of {total} done:"
        f" {amount(records, 'record')} in {amount(shards, 'shard')}, {amount(wanted, 'epoch')}"
    )
    if begun > wanted:
        text += f"; epoch {begun} was begun, so training ends after it in spite of --num-epochs"
    return text


def continued_ledger(
    context: JobContext,
    applied: Mapping[str, Applied],
    ring_at: Mapping[ShardId, int] | None,
    evaluation: Evaluation,
    updates: UpdateCounts | None,
) -> str:
    """The training ledger (JSON) for a job that continues this one; '' if there is none.

    `applied`, `ring_at`: as for `ledger_json`.
    """
    if context.work is None or context.spec.action is not Action.TRAIN:
        return ""
    return ledger_json(
        context.work,
        context.ids,
        applied,
        ring_at=ring_at,
        workers_used=context.processes.next_worker,
        rounds_used=evaluation.rounds,
        updates=updates,
        loss=context.loss,
        metrics=context.metrics,
        evaluated=context.validation if evaluation.final_done else (),
    )
