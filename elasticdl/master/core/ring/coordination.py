"""Training on a ring: workers step together on one sequence of items, each with all weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import final

from elasticdl.cluster.base import ProcessName
from elasticdl.dropped import DropCause
from elasticdl.history.awaited import Awaited
from elasticdl.job_status import RingStatus
from elasticdl.master.core.checkpoint.checkpointing import Checkpointing
from elasticdl.master.core.checkpoint.snapshots import OpenCut, Snapshots
from elasticdl.master.core.commands import GrantItem, NoLeaseNow
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.evaluation.rounds import Evaluation
from elasticdl.master.core.events import (
    ConnectionLost,
    LeaseRequested,
    ProgressReported,
    RingReported,
    TaskFailed,
)
from elasticdl.master.core.job_context import JobContext, Phase
from elasticdl.master.core.obligation import MOST_NAMED, LeaseKey, Obligation, booked, since
from elasticdl.master.core.processes.table import Life
from elasticdl.master.core.ring.generation_publisher import GenerationPublisher
from elasticdl.master.core.ring.work import RingWork
from elasticdl.shard import ShardId, SnapshotId, Task

_HALT_LIMIT_S = 25.0
"""With `END_GRACE_S` for members that hang it is the grace of a stop: `DRAIN_GRACE_S`."""


@final
class RingCoordination:
    """The workers have the weights, and the ring as a whole holds the training leases."""

    weights_outlive_workers = False

    def __init__(
        self,
        context: JobContext,
        leasing: Leasing,
        evaluation: Evaluation,
        checkpointing: Checkpointing,
        snapshots: Snapshots,
    ) -> None:
        self._context = context
        self._leasing = leasing
        self._evaluation = evaluation
        self._checkpointing = checkpointing
        self._work = RingWork(context, evaluation, checkpointing, snapshots)
        self._generations = GenerationPublisher(context, leasing, self._work)

    # leases and reports

    def requested(self, event: LeaseRequested) -> None:
        context, worker, work = self._context, event.worker, self._work
        process = context.worker(worker)
        ending = context.phase in (Phase.ENDING, Phase.ENDED)
        if ending or process is None or process.life is not Life.READY:
            self._leasing.requested(event)
            return
        if worker not in self._generations.members:
            item = work.present(event.ring_number)
            waits = f"not in the ring: {self._generations.reason}"
        elif event.at_mark and work.standing and self._leasing.apart(event):
            return
        else:
            item = work.item(event.ring_number)
            waits = f"the ring waits: {work.halting or self._leasing.idle_reason()}"
        context.orders.give(GrantItem(worker, item) if item else NoLeaseNow(worker, waits))

    def progressed(self, event: ProgressReported) -> None:
        """Book progress: rank 0 reports the steps of all, each worker its own evaluation."""
        process = self._context.worker(event.worker)
        if event.task is not Task.TRAINING:
            self._leasing.progressed(event)
        elif process is None:
            self._context.drop(DropCause.ENDED_PROCESS, event.worker, event)
        elif gained := self._work.progressed(event):
            self._leasing.gained(event, process, gained, (*self._work.names, event.worker))

    def failed(self, event: TaskFailed) -> None:
        """Handle an error of user code without blaming the shard that the ring trains on.

        No single member holds that shard, and a successor would work on the same records.
        """
        in_common = event.task is Task.TRAINING
        self._leasing.failed(replace(event, shard=None) if in_common else event)

    def recall(self, why: str) -> None:
        self._work.halt(why)

    def unknown_leases(self, reported: set[LeaseKey], held: set[LeaseKey]) -> set[LeaseKey]:
        """Always empty: a member reports the ring's shard, which is not its own lease."""
        return set()

    # the course of the job

    def begin(self, ledger: str, version: int) -> None:
        self._work.begin(ledger, version)

    def taken_over(self) -> None:
        """Form a new generation if the present one is not complete: its rendezvous is gone."""
        self._generations.taken_over()
        # A copy of the weights that is due comes with rank 0's next report.
        self._checkpointing.save_again()

    def decide_cuts(self) -> None:
        """Begin a round at a pause, where weights are equal; checkpoints are items of the ring."""
        if self._evaluation.wanted() and self._work.standing:
            self._evaluation.begin_live()

    def decide_members(self) -> None:
        self._generations.decide()

    def halt(self, why: str) -> str:
        if self._context.work is None:
            return ""
        self._work.halt(why)
        return "the ring stops after its current step"

    def drained(self) -> str:
        waited_s = self._context.now_s - self._context.phase_since_s
        if self._work.idle:
            return "the ring has stopped"
        return (
            f"the ring has not stopped within {waited_s:.0f} s" if waited_s >= _HALT_LIMIT_S else ""
        )

    def not_halted(self) -> tuple[ProcessName, ...]:
        return self._generations.members if self._work.halting else ()

    def weights_away(self) -> str:
        if self._checkpointing.saving is not None:
            return ""  # A member has copied them, and writes the copy.
        return "the ring's members are gone or do not answer"

    # checkpoints

    def offsets_at(self, snapshot: SnapshotId | None) -> Mapping[ShardId, int] | None:
        # Not None, which would mean that workers report positions themselves.
        return {} if snapshot is None else self._work.offsets_at(snapshot)

    def unanswered_cut(self) -> SnapshotId | None:
        """Always None: the ring fails a cut itself when it has passed the mark."""
        return None

    # processes

    @property
    def limited_by_shards(self) -> bool:
        """Not while training: all workers take part in each step. In a pause each leases shards."""
        return self._context.phase is not Phase.WORKING

    @property
    def at_work(self) -> tuple[int, int]:
        return self._generations.at_work

    def why_not_replace(self, name: ProcessName) -> str | None:
        return self._generations.why_not_replace(name)

    def gave_initial_values(self, worker: ProcessName) -> None:
        """Nothing to do: the first generation begins with the values of its rank 0."""

    def member_reported(self, event: RingReported) -> None:
        self._generations.reported(event)

    def lost_connection(self, event: ConnectionLost) -> None:
        self._generations.lost_connection(event)

    # waits

    def status(self) -> RingStatus | None:
        return self._generations.status()

    def waits_for(self) -> Mapping[Awaited, str]:
        reason = self._generations.waits_for()
        return {Awaited.RING: reason} if reason else {}

    def idle(self) -> Iterator[str]:
        """Always empty: members are never idle individually."""
        return iter(())

    def owed(self) -> Iterator[Obligation]:
        work, context, generation = self._work, self._context, self._generations.present
        if reason := self._generations.waits_for():
            absent = self._generations.absent()
            numbers = f"generation {generation.number}" if generation else ""
            yield Obligation(f"a complete ring: {reason}", absent, since(context, absent), numbers)
            return
        members, numbers = self._slowest_first(), self._numbers()
        since_s = max(
            (member.busy_since_s for member in map(context.worker, members) if member),
            default=context.phase_since_s,
        )
        if work.halting:
            what = f"the ring to stop ({work.halting})"
            yield Obligation(what, members, since_s, numbers, limited=True)
            return
        item = next((item for item in work.items if item.steps_left), None)
        if item is not None and item.held is not None:
            begin = max(item.begin, item.held.offset)
            what = (
                f"records {begin:,} to {item.end:,} of shard {item.held.piece.shard.id} (item"
                f" {item.number})"
            )
            yield Obligation(what, members, since_s, numbers)
        elif self._members_ask():
            what = f"the ring's members to request item {work.next_number}"
            yield Obligation(what, members, since_s, numbers)

    def _members_ask(self) -> bool:
        """Whether there is work that only the ring as a whole can take."""
        if self._context.phase is Phase.CHECKPOINTING:
            return not self._checkpointing.under_way
        evaluating = self._evaluation.round is not None
        return self._context.phase in (Phase.WORKING, Phase.EVALUATING) and not evaluating

    def _numbers(self) -> str:
        """`booked 18,880 of 20,000 records, step 944; worker-0 is at step 1,000, item 9`."""
        context = self._context
        parts = (
            [f"{booked(context.work)}, step {context.acknowledged_version:,}"]
            if context.work
            else []
        )
        for name in self._generations.members[: MOST_NAMED + 1 - len(parts)]:
            position = self._generations.position(name)
            if position is None:
                parts.append(f"{name} has not reported its position")
            else:
                parts.append(f"{name} is at step {position.version:,}, item {position.number}")
        return "; ".join(parts)

    def _slowest_first(self) -> tuple[ProcessName, ...]:
        """Members in the order of their steps, the slowest first; at the same step by rank."""

        def place(name: ProcessName) -> tuple[int, int]:
            position = self._generations.position(name)
            return (position.version, position.number) if position else (0, 0)

        return tuple(sorted(self._generations.members, key=place))

    def owed_cut(self, open_cut: OpenCut | None) -> Obligation:
        first, problem = self.weight_holders(), self._checkpointing.last_problem
        if open_cut is not None:
            return Obligation("the copy of the weights for a checkpoint", first, open_cut.since_s)
        numbers = f"the last attempt failed: {problem}" if problem else ""
        since_s = self._context.phase_since_s
        return Obligation("the last checkpoint to begin", first, since_s, numbers)

    def weight_holders(self) -> tuple[ProcessName, ...]:
        return self._generations.members[:1]

    def booked_all(self) -> bool:
        at = [self._generations.position(name) for name in self._generations.members]
        booked_version = self._context.acknowledged_version
        return all(position is not None and position.version == booked_version for position in at)

    @property
    def can_form_again(self) -> bool:
        return self._generations.present is not None

    def form_again(self, why: str) -> None:
        self._generations.form_again(why)
