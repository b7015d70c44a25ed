"""Convert protobuf messages to frozen values and back.

Invalid messages raise ValueError, which servicers answer with INVALID_ARGUMENT, so that no code
behind this module checks a number from the wire again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from elasticdl.formatting import START_PARTS
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import ring_messages as ring
from elasticdl.rpc.conversation import (
    Activity,
    Drain,
    Failure,
    Finish,
    Finished,
    LeaseAnswer,
    Load,
    MetricState,
    Order,
    Progress,
    Report,
    Restore,
    Revoke,
    RingDrop,
    RingGeneration,
    RingSave,
    Servers,
    Settled,
    State,
    Summary,
    TellState,
    Wait,
)
from elasticdl.rpc.wire_counts import count_of
from elasticdl.shard import (
    Applied,
    Barrier,
    Lease,
    ReceivedLease,
    Shard,
    ShardId,
    SnapshotId,
    Task,
    WorkItem,
)
from elasticdl.stacks import MOST_FRAMES

_NONE = -1
_MAX_PARTS = 10_000
_MAX_START_PARTS = 16
_MAX_NAMES = 256
_MAX_NAME_CHARS = 200
_MAX_EXAMPLES = 3
_MAX_TEXT_CHARS = 64_000
MOST_STACK_CHARS = 16_000
_MAX_FRAME_CHARS = 400


def _task(name: str) -> Task:
    try:
        return Task(name)
    except ValueError:
        raise ValueError(
            f"task is {name[:_MAX_NAME_CHARS]!r}, expected one of {', '.join(Task)}"
        ) from None


def _snapshot(number: int) -> SnapshotId | None:
    return None if number == _NONE else SnapshotId(count_of(number, "snapshot"))


def _text(text: str) -> str:
    """The end of a long text, where a traceback says what happened."""
    return text if len(text) <= _MAX_TEXT_CHARS else f"…{text[-_MAX_TEXT_CHARS:]}"


def _numbers(values: Mapping[str, float], what: str) -> dict[str, float]:
    lengths = list(map(len, values))
    if lengths and not (
        len(lengths) <= _MAX_NAMES and min(lengths) and max(lengths) <= _MAX_NAME_CHARS
    ):
        raise ValueError(
            f"{what}: expected at most {_MAX_NAMES} names of 1 to {_MAX_NAME_CHARS} characters"
        )
    return dict(values)


def applied_to_wire(applied: Applied) -> pb.Applied:
    """Applied -> message."""
    return pb.Applied(shard=applied.shard, attempt=applied.attempt, offset=applied.offset)


def applied_from_wire(message: pb.Applied) -> Applied:
    """Message -> Applied. Raises ValueError."""
    return Applied(
        shard=ShardId(count_of(message.shard, "shard")),
        attempt=count_of(message.attempt, "attempt"),
        offset=count_of(message.offset, "offset"),
    )


def lease_to_wire(lease: Lease) -> pb.Lease:
    """Lease -> message; None becomes -1."""
    shard = lease.shard
    return pb.Lease(
        task=lease.task,
        shard=_NONE if shard is None else shard.id,
        source="" if shard is None else shard.source,
        begin=0 if shard is None else shard.begin,
        end=0 if shard is None else shard.end,
        attempt=lease.attempt,
        offset=lease.offset,
        epoch=lease.epoch,
        shuffled=lease.order_seed is not None,
        order_seed=lease.order_seed or 0,
        round=_NONE if lease.round is None else lease.round,
        snapshot=_NONE if lease.snapshot is None else lease.snapshot,
        version=lease.version,
        payload=lease.payload,
        revocation=lease.revocation,
        limit=lease.limit,
    )


def received_to_wire(received: ReceivedLease) -> pb.ReceivedLease:
    """ReceivedLease -> message; None becomes -1."""
    return pb.ReceivedLease(
        task=received.task,
        shard=_NONE if received.shard is None else received.shard,
        attempt=received.attempt,
        round=_NONE if received.round is None else received.round,
    )


def received_from_wire(message: pb.ReceivedLease) -> ReceivedLease:
    """Message -> ReceivedLease. Raises ValueError for an unknown task."""
    shard = None if message.shard == _NONE else ShardId(message.shard)
    round_ = None if message.round == _NONE else message.round
    return ReceivedLease(Task(message.task), shard, message.attempt, round_)


def lease_from_wire(message: pb.Lease) -> Lease:
    """Message -> Lease. Raises ValueError."""
    shard = None
    if message.shard != _NONE:
        if not 0 <= message.begin < message.end:
            raise ValueError(f"shard {message.shard} is records [{message.begin}, {message.end})")
        shard = Shard(
            id=ShardId(count_of(message.shard, "shard")),
            source=message.source,
            begin=message.begin,
            end=message.end,
        )
    return Lease(
        task=_task(message.task),
        shard=shard,
        attempt=count_of(message.attempt, "attempt"),
        offset=count_of(message.offset, "offset"),
        epoch=count_of(message.epoch, "epoch"),
        order_seed=message.order_seed if message.shuffled else None,
        round=None if message.round == _NONE else count_of(message.round, "round"),
        snapshot=_snapshot(message.snapshot),
        version=count_of(message.version, "version"),
        payload=message.payload,
        revocation=count_of(message.revocation, "revocation"),
        limit=count_of(message.limit, "limit"),
    )


def _item_to_wire(item: WorkItem) -> pb.RingWorkItem:
    return pb.RingWorkItem(
        number=item.number,
        lease=lease_to_wire(item.lease) if item.lease is not None else None,
        batch=item.batch,
        rate_scale=item.rate_scale,
        mark=item.mark,
        snapshot=_NONE if item.snapshot is None else item.snapshot,
    )


def _item_from_wire(message: pb.RingWorkItem) -> WorkItem:
    mark = Barrier(message.mark)
    if (mark is Barrier.NONE) != message.HasField("lease") or (
        mark is Barrier.NONE and message.batch < 1
    ):
        raise ValueError(
            f"item {message.number} of the ring has mark {message.mark!r}, batch {message.batch}"
            " and the wrong lease"
        )
    return WorkItem(
        number=count_of(message.number, "number"),
        lease=lease_from_wire(message.lease) if message.HasField("lease") else None,
        batch=count_of(message.batch, "batch"),
        rate_scale=message.rate_scale,
        mark=mark,
        snapshot=_snapshot(message.snapshot),
    )


def lease_answer_to_wire(answer: LeaseAnswer) -> pb.LeaseReply:
    """Answer to a request for a lease -> message."""
    match answer:
        case Lease():
            return pb.LeaseReply(lease=lease_to_wire(answer))
        case WorkItem():
            return pb.LeaseReply(item=_item_to_wire(answer))
        case Wait(reason):
            return pb.LeaseReply(wait_reason=reason)
        case Finished():
            return pb.LeaseReply(finished=pb.Done())


def lease_answer_from_wire(message: pb.LeaseReply) -> LeaseAnswer:
    """Message -> answer. Raises ValueError for an empty one: it does not mean "no more work"."""
    match message.WhichOneof("answer"):
        case "lease":
            return lease_from_wire(message.lease)
        case "item":
            return _item_from_wire(message.item)
        case "wait_reason":
            return Wait(message.wait_reason)
        case "finished":
            return Finished()
        case _:
            raise ValueError("an empty answer to a request for a lease")


def order_to_wire(order: Order) -> pb.Order:
    """Order -> message."""
    match order:
        case Drain(reason, grace_s):
            return pb.Order(drain=reason, grace_s=grace_s)
        case Revoke(reason, revocation):
            return pb.Order(revoke=pb.Revoke(reason=reason, revocation=revocation))
        case Servers(addresses, first, tokens):
            servers = pb.Servers(addresses=addresses, first=first, bulk_tokens=tokens)
            return pb.Order(servers=servers)
        case Load(directory):
            return pb.Order(load=directory)
        case Restore(directory):
            return pb.Order(restore=directory)
        case Settled(through, version, dropped):
            return pb.Order(settled=pb.Settled(through=through, version=version, dropped=dropped))
        case Finish():
            return pb.Order(finish=pb.Done())
        case RingGeneration():
            return pb.Order(ring_generation=ring.generation_to_wire(order))
        case RingSave(snapshot, directory):
            return pb.Order(ring_save=pb.RingSave(snapshot=snapshot, directory=directory))
        case RingDrop(snapshot):
            return pb.Order(ring_drop=snapshot)
        case TellState():
            return pb.Order(tell_state=pb.Done())


def order_from_wire(message: pb.Order) -> Order:
    """Message -> order. Raises ValueError for an empty or invalid one."""
    match message.WhichOneof("order"):
        case "drain":
            if not message.grace_s >= 0:
                raise ValueError(f"grace_s is {message.grace_s}, expected at least 0")
            return Drain(message.drain, message.grace_s)
        case "revoke":
            return Revoke(message.revoke.reason, count_of(message.revoke.revocation, "revocation"))
        case "servers":
            servers = message.servers
            first = count_of(servers.first, "first")
            return Servers(tuple(servers.addresses), first, tuple(servers.bulk_tokens))
        case "load":
            return Load(message.load)
        case "restore":
            return Restore(message.restore)
        case "settled":
            settled = message.settled
            return Settled(
                count_of(settled.through, "through"),
                count_of(settled.version, "version"),
                tuple(settled.dropped),
            )
        case "finish":
            return Finish()
        case "ring_generation":
            return ring.generation_from_wire(message.ring_generation)
        case "ring_save":
            return ring.save_from_wire(message.ring_save)
        case "tell_state":
            return TellState()
        case "ring_drop":
            return RingDrop(SnapshotId(count_of(message.ring_drop, "snapshot")))
        case _:
            raise ValueError("an empty order")


def _state_to_wire(state: MetricState) -> pb.MetricState:
    return pb.MetricState(arrays=[pb.NumbersRow(values=array) for array in state])


def _state_from_wire(message: pb.MetricState) -> MetricState:
    return tuple(tuple(row.values) for row in message.arrays)


def _progress_to_wire(progress: Progress) -> pb.Progress:
    return pb.Progress(
        task=progress.task,
        applied=applied_to_wire(progress.applied),
        version=progress.version,
        has_loss=progress.loss is not None,
        loss=progress.loss or 0.0,
        bad_records=progress.bad_records,
        bad_examples=progress.bad_examples,
        ahead=progress.ahead,
        done=progress.done,
        returned=progress.returned,
        metrics={name: _state_to_wire(state) for name, state in progress.metrics.items()},
    )


def _progress_from_wire(message: pb.Progress) -> Progress:
    if message.done and message.returned:
        raise ValueError(f"shard {message.applied.shard} is both done and returned")
    return Progress(
        task=_task(message.task),
        applied=applied_from_wire(message.applied),
        version=count_of(message.version, "version"),
        loss=message.loss if message.has_loss and math.isfinite(message.loss) else None,
        bad_records=count_of(message.bad_records, "bad_records"),
        bad_examples=tuple(_text(example) for example in message.bad_examples[:_MAX_EXAMPLES]),
        ahead=message.ahead,
        done=message.done,
        returned=message.returned,
        metrics={name: _state_from_wire(state) for name, state in message.metrics.items()},
    )


def _failure_from_wire(message: pb.Failure) -> Failure:
    return Failure(
        task=_task(message.task) if message.task else None,
        shard=None if message.shard == _NONE else ShardId(count_of(message.shard, "shard")),
        attempt=count_of(message.attempt, "attempt"),
        error=_text(message.error),
        fatal=message.fatal,
    )


def _failure_to_wire(failure: Failure) -> pb.Failure:
    return pb.Failure(
        task=failure.task or "",
        shard=_NONE if failure.shard is None else failure.shard,
        attempt=failure.attempt,
        error=_text(failure.error),
        fatal=failure.fatal,
    )


def _summary_from_wire(message: pb.Summary) -> Summary:
    return Summary(
        count_of(message.round, "round"), _numbers(message.values, "values"), message.stop_training
    )


def report_to_wire(report: Report, sequence: int) -> pb.ReportRequest:
    """Report -> message number `sequence`."""
    return pb.ReportRequest(
        progress=[_progress_to_wire(progress) for progress in report.progress],
        summaries=[
            pb.Summary(
                round=summary.round, values=summary.values, stop_training=summary.stop_training
            )
            for summary in report.summaries
        ],
        failures=[_failure_to_wire(failure) for failure in report.failures],
        exported=report.exported,
        export_problem=report.export_problem,
        stop_asked=report.stop_asked,
        version=report.version,
        gauges=report.gauges,
        sequence=sequence,
        ring=ring.report_to_wire(report.ring) if report.ring is not None else None,
        ring_cuts=[ring.cut_to_wire(cut) for cut in report.ring_cuts],
        ring_saves=[ring.saved_to_wire(saved) for saved in report.ring_saves],
        starting=report.starting,
        pushes=report.pushes,
        met=report.met,
        crowded=report.crowded,
        activity=(
            pb.Activity(what=report.activity.what, age_s=report.activity.age_s)
            if report.activity
            else None
        ),
        state=_process_state_to_wire(report.state) if report.state is not None else None,
    )


def _process_state_to_wire(state: State) -> pb.State:
    held = [applied_to_wire(applied) for applied in state.held]
    return pb.State(
        held=held,
        stacks=state.stacks[:MOST_STACK_CHARS],
        doing=state.doing[:_MAX_NAME_CHARS],
        frames=_innermost(state.frames),
    )


def _process_state_from_wire(message: pb.State) -> State:
    held = tuple(applied_from_wire(applied) for applied in message.held[:_MAX_PARTS])
    doing = message.doing[:_MAX_NAME_CHARS]
    return State(held, message.stacks[:MOST_STACK_CHARS], doing, _innermost(message.frames))


def _innermost(frames: Sequence[str]) -> tuple[str, ...]:
    """The innermost frames, each bounded: the end of a path says more than its beginning."""
    return tuple(frame[-_MAX_FRAME_CHARS:] for frame in frames[-MOST_FRAMES:])


def _activity_from_wire(message: pb.Activity) -> Activity:
    if not 0 <= message.age_s < math.inf:
        raise ValueError(f"an activity of {message.age_s} s")
    return Activity(message.what[:_MAX_NAME_CHARS], message.age_s)


def report_from_wire(message: pb.ReportRequest) -> Report:
    """Message -> report.

    Gauges that are not finite are left out: JSON has no word for them. Raises ValueError.
    """
    parts = len(message.progress) + len(message.summaries) + len(message.failures)
    parts += len(message.ring_cuts) + len(message.ring_saves) + len(message.met)
    if parts > _MAX_PARTS:
        raise ValueError(f"a report of {parts} parts, expected at most {_MAX_PARTS}")
    return Report(
        progress=tuple(_progress_from_wire(part) for part in message.progress),
        summaries=tuple(_summary_from_wire(part) for part in message.summaries),
        failures=tuple(_failure_from_wire(part) for part in message.failures),
        exported=_text(message.exported),
        export_problem=_text(message.export_problem),
        stop_asked=_text(message.stop_asked),
        version=count_of(message.version, "version"),
        gauges=_gauges(message.gauges),
        ring=ring.report_from_wire(message.ring) if message.HasField("ring") else None,
        ring_cuts=tuple(ring.cut_from_wire(cut) for cut in message.ring_cuts),
        ring_saves=tuple(ring.saved_from_wire(saved) for saved in message.ring_saves),
        starting=_start_parts(message.starting),
        pushes=count_of(message.pushes, "pushes"),
        met={_text(name): count_of(count, "pushes") for name, count in message.met.items()},
        crowded=message.crowded,
        activity=_activity_from_wire(message.activity) if message.HasField("activity") else None,
        state=_process_state_from_wire(message.state) if message.HasField("state") else None,
    )


def _gauges(values: Mapping[str, float]) -> dict[str, float]:
    gauges = _numbers(values, "gauges")
    if all(map(math.isfinite, gauges.values())):
        return gauges
    return {name: value for name, value in gauges.items() if math.isfinite(value)}


def _start_parts(parts: Iterable[str]) -> tuple[str, ...]:
    """The known parts; a worker of another version may have others."""
    return tuple(part for part in parts if part in START_PARTS or not part)[:_MAX_START_PARTS]


def applied_by_worker(parts: Mapping[str, pb.Applied]) -> dict[str, Applied]:
    """Map of messages -> map of values. Raises ValueError."""
    return {worker: applied_from_wire(part) for worker, part in parts.items()}


def sequences(values: Mapping[str, int]) -> dict[str, int]:
    """Each worker's last sequence number. Raises ValueError."""
    return {worker: count_of(value, f"sequence of {worker}") for worker, value in values.items()}


def bounded(names: Iterable[str]) -> tuple[str, ...]:
    """Check the length of addresses and the like. Raises ValueError."""
    checked = tuple(names)
    if any(len(name) > _MAX_NAME_CHARS for name in checked):
        raise ValueError(f"an address of more than {_MAX_NAME_CHARS} characters")
    return checked
