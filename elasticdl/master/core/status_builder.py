"""Builds status and receipt from the facts of the job. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, islice

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.priority_ladder import share_of
from elasticdl.formatting import START_PARTS, amount
from elasticdl.job_choices import Action
from elasticdl.job_status import (
    NO_RECORDS,
    CheckpointStatus,
    ClusterShare,
    JobStatus,
    NotBegun,
    ProcessStatus,
    Receipt,
    ReceiptEpoch,
    ReceiptTotal,
    RecordCounts,
    RoundStatus,
    ScaleStatus,
    ShardCounts,
    StepsStatus,
)
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.coordination import Coordination
from elasticdl.master.core.data.counts import EpochCount
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import HeldShard, Stage
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.goodput import goodput
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.processes.pending_processes import PendingProcesses
from elasticdl.master.core.processes.table import Life, Process

MOST_LISTED = 1_000
"""Running processes in a status: a master sends and draws it every second."""
_MOST_REASONS = 50
"""Single processes that the job waits for, in words."""
_SHOWN_ROUNDS = 50
_SHOWN_EPOCHS = 200


def receipt(context: JobContext, ledger: Ledger | None, newest: int | None = None) -> Receipt:
    """The account of all records: expected = trained + bad + lost + left, and `repeated` besides.

    The equation holds for each epoch and in total. `epochs` lists the epochs that began, only the
    last `newest` of them if given. `total` covers all planned epochs, including those `not_begun`.
    """
    counts = ledger.counts if ledger else []
    waiting, records = (ledger.epochs_not_begun, ledger.plan.records) if ledger else (0, 0)
    to_come = waiting * records
    total = ReceiptTotal(
        expected=sum(count.planned for count in counts) + to_come,
        trained=sum(count.trained for count in counts),
        repeated=sum(count.repeated for count in counts),
        bad=sum(count.bad for count in counts),
        lost=sum(count.lost for count in counts),
        left=sum(count.left for count in counts) + to_come,
    )
    left_out = 0 if newest is None else max(0, len(counts) - newest)
    return Receipt(
        epochs=tuple(_row(epoch, counts[epoch]) for epoch in range(left_out, len(counts))),
        epochs_left_out=left_out,
        not_begun=NotBegun(waiting, to_come),
        total=total,
        repeated_at_least=bool(ledger and ledger.repeated_at_least),
        why_left=_why_left(context) if total.left else None,
        counted=None,
        updates=context.update_counts(context.version),
        goodput=goodput(context.processes.times, ledger, context.spec.action),
    )


def _row(epoch: int, count: EpochCount) -> ReceiptEpoch:
    return ReceiptEpoch(
        epoch, count.planned, count.trained, count.repeated, count.bad, count.lost, count.left
    )


def _why_left(context: JobContext) -> str | None:
    if context.ended_early:
        return f"training ended early: {context.ended_early}"
    if context.work is not None and context.work.stopped:
        return "training ended early in a previous run"
    return context.outcome.message if context.outcome else None


def status(
    context: JobContext,
    coordination: Coordination,
    pending: PendingProcesses,
    evaluation: Evaluation,
    checkpointing: Checkpointing,
) -> JobStatus:
    """The current status of the job, without what `Stalls` knows."""
    main = main_ledger(context, evaluation)
    account, outcome = receipt(context, main, _SHOWN_EPOCHS), context.outcome
    return JobStatus(
        action=context.spec.action,
        phase=context.phase,
        message=_message(context, evaluation),
        at_s=context.now_s,
        epoch=main.epoch if main else 0,
        epochs=main.plan.epochs if main else 0,
        version=context.version,
        records=_records(main, account.total),
        records_per_s=0.0,
        shards=_shards(context, evaluation),
        scale=_scale(context),
        processes=tuple(
            _process(context, evaluation, process, main) for process in _listed(context)
        ),
        loss=context.loss,
        metrics=dict(context.metrics),
        rounds=_rounds(evaluation),
        checkpoints=_checkpoints(checkpointing),
        ring=coordination.status(),
        waiting=(*pending.waits(), *_waiting(context, coordination, checkpointing)),
        parked=tuple(context.given_up),
        bad_examples=tuple(context.bad_examples),
        receipt=account,
        outcome=outcome.message if outcome else None,
        exit_code=int(outcome.exit_code) if outcome else None,
        stall=None,
        moved_s=0.0,
        gauges={},
        dropped={str(cause): count for cause, count in sorted(context.dropped.items())},
        ends=_ends(context),
        states=_states(context),
        cluster_share=_cluster_share(context),
        updates=account.updates,
        steps=_steps(context),
    )


def _checkpoints(checkpointing: Checkpointing) -> tuple[CheckpointStatus, ...]:
    return tuple(
        CheckpointStatus(checkpoint.version, checkpoint.path, checkpoint.bytes, checkpoint.at_s)
        for checkpoint in checkpointing.complete.listed
    )


def _ends(context: JobContext) -> dict[str, dict[str, int]]:
    """How many processes of each role ended, by cause."""
    return {
        str(role): {str(cause): count for cause, count in ends.items()}
        for role, ends in context.processes.ends.items()
    }


def _listed(context: JobContext) -> Iterable[Process]:
    """The processes of a status, in the order of their starts.

    Of more running ones than it lists, those that are not simply at work come first.
    """
    shown, going = context.processes.shown, context.processes.going
    if len(going) <= MOST_LISTED:
        return shown.values()
    apart, others = list[Process](), list[Process]()
    all_up = context.processes.all_up
    for process in going.values():
        (apart if _is_apart(process, all_up=all_up) else others).append(process)
    # By identity: of ten thousand processes, names would take ten times as long.
    listed = set(map(id, chain(islice(apart, MOST_LISTED), others[: MOST_LISTED - len(apart)])))
    return (
        process for process in shown.values() if id(process) in listed or process.life is Life.ENDED
    )


def _is_apart(process: Process, *, all_up: bool) -> bool:
    if process.slow_times or process.name.role is Role.PS:
        return True
    return not all_up and not process.up


def _state(process: Process) -> Life:
    """Its state as people see it."""
    return process.life if process.life is not Life.READY or process.up else Life.STARTING


def _states(context: JobContext) -> dict[str, dict[str, int]]:
    processes = context.processes
    if context.phase is Phase.ENDED:
        return {}
    at_work = processes.up_workers()
    # Ten thousand workers, when all are at work, are not looked at one by one.
    others = processes.servers if processes.all_up else processes.going.values()
    counts = Counter(
        (process.name.role, _state(process))
        for process in others
        if process.life is not Life.ENDED and not (process.up and process.name.role is Role.WORKER)
    )
    if at_work:
        # Most processes: to count each by its role and state would take ten times as long.
        counts[Role.WORKER, Life.READY] += at_work
    states: dict[str, dict[str, int]] = {}
    for (role, state), count in sorted(counts.items()):
        states.setdefault(str(role), {})[str(state)] = count
    return states


def records_done(context: JobContext, evaluation: Evaluation) -> int:
    """Records of all epochs that are trained or bad."""
    main = main_ledger(context, evaluation)
    if main is None:
        return 0
    total = main.totals()
    return total.trained + total.bad


def ledgers(context: JobContext, evaluation: Evaluation) -> list[Ledger]:
    """The ledgers in use: of the job's work, and of an evaluation beside it."""
    current = evaluation.round
    candidates = (context.work, current.ledger if current else None)
    return [ledger for ledger in candidates if ledger is not None]


def main_ledger(context: JobContext, evaluation: Evaluation) -> Ledger | None:
    """The ledger of the receipt: training, prediction, or the round of `elasticdl evaluate`."""
    if context.spec.action is not Action.EVALUATE:
        return context.work
    return evaluation.round.ledger if evaluation.round else evaluation.last_ledger


def _message(context: JobContext, evaluation: Evaluation) -> str:
    match context.phase:
        case Phase.STARTING:
            return context.preflight or "checking the model and the data"
        case Phase.WORKING if context.spec.action is Action.PREDICT:
            return "predicting"
        case Phase.WORKING:
            work = context.work
            return _training(work) if work else "training"
        case Phase.EVALUATING:
            current = evaluation.round
            what = "final evaluation" if context.spec.action is Action.TRAIN else "evaluating"
            return f"{what}: {current.stage}" if current else what
        case Phase.DRAINING:
            return "stopping: workers return their shards"
        case Phase.CHECKPOINTING:
            return "taking the last checkpoint"
        case Phase.EXPORTING:
            return "exporting the model"
        case Phase.ENDING | Phase.ENDED:
            return context.outcome.message if context.outcome else "over"


def _training(work: Ledger) -> str:
    # An epoch that was begun ends, even if --num-epochs is fewer when the job is resumed.
    epochs = max(len(work.counts), work.plan.epochs)
    return f"training, epoch {work.epoch + 1} of {epochs}"


def _records(ledger: Ledger | None, total: ReceiptTotal) -> RecordCounts:
    if ledger is None:
        return NO_RECORDS
    return RecordCounts(
        total.expected,
        total.trained,
        total.repeated,
        total.bad,
        total.lost,
        total.left,
        resumed=ledger.resumed,
        undone=ledger.undone,
    )


def _shards(context: JobContext, evaluation: Evaluation) -> dict[str, ShardCounts]:
    # `elasticdl evaluate` has only its round, even after it is over.
    ledgers = [
        context.work or main_ledger(context, evaluation),
        evaluation.round.ledger if evaluation.round and context.work else None,
    ]
    return {
        str(ledger.task): ShardCounts(
            ledger.available + ledger.epochs_left * ledger.plan.shards,
            len(ledger.held),
            ledger.done_shards,
            len(ledger.parked),
        )
        for ledger in ledgers
        if ledger is not None
    }


def _scale(context: JobContext) -> ScaleStatus:
    workers = context.processes.live_workers()
    return ScaleStatus(
        context.workers.low,
        context.workers.high,
        len(workers),
        context.processes.up_workers(),
        None if context.autoscaled is None else context.most_workers,
        context.autoscale_reason or None,
        context.autoscale_holds_back or None,
    )


def _steps(context: JobContext) -> StepsStatus | None:
    spec = context.spec
    if spec.action is not Action.TRAIN or spec.trains_on_ring or context.work is None:
        return None
    return StepsStatus(spec.trains_in_steps, context.why_sync)


def _cluster_share(context: JobContext) -> ClusterShare | None:
    if not context.spec.on_kubernetes or context.phase in (Phase.ENDING, Phase.ENDED):
        return None
    workers = context.processes.live_workers()
    return share_of(context.spec, sum(bool(process.where) for process in workers))


def _process(
    context: JobContext, evaluation: Evaluation, process: Process, main: Ledger | None
) -> ProcessStatus:
    if context.phase is Phase.ENDED and process.life is not Life.ENDED:
        process = replace(
            process, life=Life.ENDED, message="did not end in time: killed with the job"
        )
    at_work = _state(process) is process.life
    return ProcessStatus(
        str(process.name),
        str(process.name.role),
        str(_state(process)),
        max(process.since_s, process.ready_s or 0.0) if process.up else process.since_s,
        process.started_s,
        process.where or None,
        str(process.cause) if process.cause else None,
        process.message if at_work else START_PARTS.get(process.part, process.part),
        _doing(context, evaluation, process.name) if process.life is not Life.ENDED else None,
        main.done_by[process.name] if main else 0,
        process.evaluated_records,
    )


def _doing(context: JobContext, evaluation: Evaluation, name: ProcessName) -> str | None:
    if name.role is not Role.WORKER:
        return None
    current = evaluation.round
    for ledger in (current.ledger if current else None, context.work):
        for held in ledger.held_by(name) if ledger else ():
            shard = held.piece.shard
            where = f"{ledger.task if ledger else ''} shard {shard.id}: {_done(held)}"
            return where + (f" ({held.stage})" if held.stage is not Stage.LEASED else "")
    if current is not None and current.summary.holder == name:
        return f"summary of round {current.number}"
    return "export" if context.export is not None and context.export.task.holder == name else None


def _done(held: HeldShard) -> str:
    """Records done of a held shard, or its size while nothing is reported.

    Workers report every two seconds and at the end of a shard, so short shards report no offset.
    """
    records = held.piece.shard.records
    return f"{held.offset:,} of {records:,}" if held.offset else amount(records, "record")


def _rounds(evaluation: Evaluation) -> tuple[RoundStatus, ...]:
    done = [
        RoundStatus(r.round, r.version, r.epoch, "done", dict(r.values))
        for r in evaluation.results[-_SHOWN_ROUNDS:]
    ]
    current = evaluation.round
    if current is not None:
        done.append(
            RoundStatus(current.number, current.version, current.epoch, str(current.stage), {})
        )
    return tuple(done)


def _waiting(
    context: JobContext, coordination: Coordination, checkpointing: Checkpointing
) -> list[str]:
    if context.phase is Phase.ENDED:
        return []
    reasons: list[str] = []
    more = 0
    processes = context.processes
    for process in () if processes.all_up else processes.going.values():
        if len(reasons) >= _MOST_REASONS:
            more += not process.up
        elif process.life is not Life.READY:
            reasons.append(
                f"{process.name} is {process.life}"
                + (f": {process.message}" if process.message else "")
            )
        elif process.part:
            reasons.append(
                f"{process.name} is {Life.STARTING}: {START_PARTS.get(process.part, process.part)}"
            )
    if more:
        reasons.append(f"{amount(more, 'more process', 'more processes')} starting or stopping")
    if context.phase is Phase.STARTING:
        return [context.preflight] if context.preflight else []
    if context.phase is Phase.ENDING:
        return reasons
    idle = coordination.idle()
    reasons += islice(idle, _MOST_REASONS)
    if more := sum(1 for _ in idle):
        reasons.append(f"{amount(more, 'more worker')} idle")
    if context.step_delay:
        reasons.append(context.step_delay)
    if context.work is not None:
        settling = sum(held.stage is Stage.SETTLING for held in context.work.held.values())
        if settling:
            reasons.append(
                f"reconciling {amount(settling, 'shard')} of lost workers with the parameter"
                " servers"
            )
    if checkpointing.under_way:
        reasons.append("taking a checkpoint")
    return reasons
