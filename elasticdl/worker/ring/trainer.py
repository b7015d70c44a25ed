"""Synchronous training on the ring: form it, train in it, and form it again when members change.

The ring's sequence of items alone decides the records of each step, and every member applies the
same update. A change of members therefore changes only who does which part. A step is *safe* once a
later reduction is complete: then every member has it. When a ring breaks, some members may have a
step that others lack. All take the most advanced state, and the minibatch in flight is trained
again. Only rank 0 reports progress, and only of safe steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, final

from elasticdl.rpc.conversation import RingGeneration
from elasticdl.shard import Lease, Shard, ShardId, Task, WorkItem
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.outbox import Advance
from elasticdl.worker.process.shutdown import Draining, NonFinite
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S
from elasticdl.worker.ring.base import RingBroken, RingMembership
from elasticdl.worker.ring.generations import Generations, MemberReporter
from elasticdl.worker.ring.pause import Pause
from elasticdl.worker.ring.position import AT_BEGIN, Position
from elasticdl.worker.ring.reading import AtBarrier, BatchPart, End, ReadPlan
from elasticdl.worker.ring.trainer_deps import RingDeps

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.contribution import Part
    from elasticdl.model.ring_step import RingOutcome
    from elasticdl.model.structure import Structure

_log = logging.getLogger(__name__)

LOST_S = 90.0
"""How long a member waits in a step for one that the master's ring no longer has.

A draining member may still work on the step. The master kills it after 60 s, and Gloo then ends the
step. NCCL may never end it: the worker then counts as hung.
"""
LEAVE_S = 2.5
"""How long a draining worker waits for a generation of the others without itself."""

STEP = "this worker's part of a step of the ring"


@final
class RingTrainer:
    """Belongs to the loop's thread."""

    def __init__(
        self,
        name: str,
        host: str,
        parts: RingDeps,
        context: WorkerContext,
        generations: Generations,
    ) -> None:
        """`name` is this worker's name; `host` is the master's, which serves the rendezvous."""
        self._members: Sequence[str] = ()
        """Of the ring in which this member is."""
        self._name = name
        self._host = host
        self._parts = parts
        self._context = context
        self._times = context.gauges.times
        self._generations = generations
        self._reporter = MemberReporter(context.outbox, lambda: self._position.place)
        self._position = Position()
        self._unsafe: Advance | None = None
        """What to report of the last step, once it is safe."""
        self._reported: Lease | None = None
        """The lease that this member last reported.

        Invariant: the outbox holds it, unless it was reported to its end.
        """
        self._reported_to_end: set[Lease] = set()
        """The last one, and those that the position has.

        A new generation reports the position again, and the outbox may still have their ends.
        """
        self._has_state = False
        """Whether this member has the state of some ring.

        Before, a breaking ring cannot spoil anything.
        """
        self._bad_since_copy = False
        self._tried = 0
        self._rank, self._size = 0, 1
        self._pause: Pause | None = None
        """Since the last step in the previous ring, until the first in this one."""

    @property
    def version(self) -> int:
        """Steps in this member's weights."""
        return self._position.version

    def warm_up(self, batch: tuple[Structure, Structure] | None) -> None:
        """Compile everything that the loop calls, in a ring of one, on a trial batch.

        Raises UserError.

        The state is unchanged afterwards.
        """
        with self._context.watch.doing("compiling the training step"):
            self._parts.ring.enter(RingMembership(0, 0, 1))
            self._parts.exchange.gather(self._position.numbers())
            # The trial steps change weights and optimizer state; put both back afterwards.
            kept = self._parts.exchange.copied()
            if batch is not None:
                empty = (None,) * max(1, self._parts.virtual_workers)
                self._trial((batch, *empty[1:]))
                begin_s = time.monotonic()  # the first call compiled
                self._trial((batch, *empty[1:]))
                self._context.watch.learn(STEP, time.monotonic() - begin_s)
                # An empty part has its own trace, which must not be compiled in the middle of a
                # ring.
                self._trial(empty)
            self._parts.exchange.load(kept)
            self._parts.exchange.hand_over(giving=True)
            self._parts.ring.leave()

    def _trial(self, parts: Sequence[Part]) -> None:
        self._parts.step.train(parts, rank=0, size=1, iteration=0)

    def run(self) -> None:
        """Train until there are no more items.

        Raises Ended if the worker ends before, UserError.
        """
        self._context.shutdown.listen(self._leave_if_draining)
        self._pause = Pause()
        self._times.now(TimeUse.RING)
        self._reporter.ready()
        try:
            while True:
                generation = self._awaited()
                if generation is None:
                    return
                if self._in(generation):
                    return
        finally:
            self._release()
            self._parts.ring.leave()

    def _leave_if_draining(self) -> None:
        if isinstance(self._context.shutdown.reason, Draining):
            self._reporter.leave()
            self._parts.reading.wake()

    def _awaited(self) -> RingGeneration | None:
        """The next ring with this worker in it.

        None if it drains, and the others have a ring without it or need none.
        """
        begin_s = time.monotonic()
        while True:
            generation = self._generations.after(self._tried, LEAVE_S)
            draining = isinstance(self._context.shutdown.reason, Draining)
            if generation is not None:
                # Remember it before joining: a generation that cannot be joined is not tried twice.
                self._tried = generation.number
                if self._name in generation.members:
                    return generation
                _log.info("generation %d of the ring excludes this worker", generation.number)
                begin_s = time.monotonic()
            # The others formed a ring without this worker, or need none.
            if draining and (generation is not None or time.monotonic() - begin_s > LEAVE_S):
                return None

    def _in(self, generation: RingGeneration) -> bool:
        """Join and train; True if all is done, False if there will be a newer ring."""
        try:
            self._enter(generation)
            return self._train(generation)
        except RingBroken as error:
            _log.warning("generation %d of the ring broke: %s", generation.number, error)
            self._reporter.broken(generation.number, error.message)
            return False
        finally:
            self._pause = self._pause or Pause()
            # Always, even after success: only closed connections make the other members' operations
            # fail at once instead of after the silence limit.
            self._parts.ring.leave()
            self._pause.lap("leaving")

    def _enter(self, generation: RingGeneration) -> None:
        rank, size = generation.members.index(self._name), len(generation.members)
        rendezvous = f"{self._host}:{generation.port}/{generation.scope}" if size > 1 else ""
        self._lap("waiting")
        if (
            rank in generation.holders
        ):  # most likely nobody has more: what comes next is read while the members meet
            self._plan(generation, self._position)
        self._parts.ring.enter(RingMembership(generation.number, rank, size, rendezvous))
        self._lap("meeting")
        self._rank, self._size, self._members = rank, size, generation.members
        if not generation.holders and rank == 0:
            with self._context.watch.doing("restoring the weights"):
                self._position = Position(
                    self._parts.listener.restore(generation.restore_from), generation.first_item
                )
        self._elect(generation)
        # Before `from_first` changes the position: the report is about what was trained.
        self._tell_state()
        self._position = self._position.from_first(generation)
        # Only now: from this report on, the master counts this member as having the weights.
        self._reporter.entered(generation.number)
        _log.info(
            "generation %d: rank %d of %d at version %d",
            generation.number,
            rank,
            size,
            self.version,
        )

    def _lap(self, what: str) -> None:
        if self._pause is not None:
            self._pause.lap(what)

    def _elect(self, generation: RingGeneration) -> None:
        """Give all members the most advanced state, unless they have it already."""
        progress = self._parts.exchange.gather(self._position.numbers())
        self._lap("comparing")
        holders = generation.holders or (0,)
        # Every member computes the same result from the same gathered numbers, without asking the
        # master.
        elected = max(holders, key=lambda rank: (*progress[rank], -rank))
        position = Position.of(progress[elected])
        self._plan(generation, position)
        same = all(
            rank in generation.holders and (progress[rank] == progress[elected]).all()
            for rank in range(len(generation.members))
        )
        if not same:
            # A member that lacks a step may be elected next if this fails, so it must keep a
            # consistent state.
            behind = self._has_state and self._position != position
            with self._context.watch.doing("handing the weights over"):
                self._parts.exchange.hand_over(giving=self._rank == elected, whole=behind)
            self._lap("handing over")
        if position.last_window != self._position.last_window:
            # It is about another step than the last one of the elected state.
            self._unsafe = None
        self._position, self._has_state = position, True

    def _train(self, generation: RingGeneration) -> bool:
        self._plan(generation, self._position)

        def newer() -> bool:
            return self._generations.newest > generation.number

        with self._times.spending(TimeUse.BETWEEN):
            return self._train_until(generation, newer)

    def _train_until(self, generation: RingGeneration, newer: Callable[[], bool]) -> bool:
        while True:
            with self._context.gauges.timed("wait_ms"), self._times.spending(None):
                work = self._parts.reading.next(newer)
            match work:
                case None:
                    return False
                case BatchPart():
                    if self._one_step(work, newer()):
                        return False
                case AtBarrier(item):
                    if not self._at_mark(item, newer, generation):
                        return False
                case End():  # the last pause has confirmed everything; others may have left
                    return True

    def _plan(self, generation: RingGeneration, position: Position) -> None:
        """Begin to read this member's part of the ring, unless that has begun already."""
        position = position.from_first(generation)
        offset = None if position.offset == AT_BEGIN else position.offset
        rank, size = generation.members.index(self._name), len(generation.members)
        self._parts.reading.begin(ReadPlan(position.number, offset, rank, size))

    def _one_step(self, part: BatchPart, wish: bool) -> bool:
        """Run one step; True if all members leave the ring after it."""
        lease = part.item.lease
        assert lease is not None and lease.shard is not None
        self._lap("data")
        # `wish`: this member knows of a newer generation. The reduction sums the wishes, so all
        # members leave after the same step.
        outcome = self._guarded_step(part, wish)
        if self._pause is not None:
            self._pause.lap("step")
            _log.info("generation %d trains after %s", self._tried, self._pause)
            self._pause = None
        # This step's reduction is complete, so every member has applied the step before it.
        self._tell_safe()
        shard, attempt, records = lease.shard.id, lease.attempt, lease.shard.records
        version = self.version + int(outcome.applied)
        same = (self._position.shard, self._position.attempt) == (shard, attempt)
        bad = part.bad + (self._position.bad if same else 0)
        ended = self._position.ended if same else self._position.ended_by_now
        self._position = Position(
            version, part.item.number, part.end, shard, attempt, part.end, records, bad, ended
        )
        self._bad_since_copy = self._bad_since_copy or bool(part.bad)
        # An item may end before its shard does, where a checkpoint or an evaluation is due.
        done = part.end == records
        loss = outcome.loss if outcome.applied else None
        self._unsafe = Advance(
            part.end, version, loss, part.bad, part.bad_examples, done, bad_so_far=bad
        )
        self._context.gauges.count_records(part.mine)
        with (
            self._context.shutdown.failing_for(lease),
            self._context.watch.owing("what callbacks do after a step"),
            self._times.spending(TimeUse.CALLBACKS),
        ):
            self._parts.listener.after_step(loss, version)
        return outcome.wishes > 0

    def _guarded_step(self, part: BatchPart, wish: bool) -> RingOutcome:
        assert part.item.lease is not None
        broken: RingBroken | None = None
        with self._context.shutdown.failing_for(part.item.lease):
            with (
                self._context.watch.owing("what callbacks do before a step"),
                self._times.spending(TimeUse.CALLBACKS),
            ):
                self._parts.listener.before_step(part.item)
                self._parts.listener.rate(self.version, part.item.rate_scale)
            try:
                with self._context.watch.owing(STEP, self._parts.step.waits, self._in_vain):
                    return self._computed(part, wish)
            except RingBroken as error:  # not the end of this worker
                # Raised outside of `failing_for`: a broken ring is not an error of the user's
                # shard.
                broken = error
        assert broken is not None
        raise broken

    def _in_vain(self) -> str:
        """See `HangWatch.owing`. From any thread."""
        lost = self._generations.lost(self._members, LOST_S)
        return f"in a step for {', '.join(lost)}, which the ring no longer has" if lost else ""

    def _computed(self, part: BatchPart, wish: bool) -> RingOutcome:
        """Run a step. Raises NonFinite for NaN or infinity, which a repetition would give again."""
        begin_s = time.monotonic()
        with self._context.gauges.timed("step_ms", TimeUse.STEP):
            try:
                outcome = self._parts.step.train(
                    part.batches,
                    rank=self._rank,
                    size=self._size,
                    iteration=self.version,
                    wish=wish,
                )
            except RingBroken:
                # It waited for a lost member, and all that it computed is computed again.
                self._times.move(time.monotonic() - begin_s, TimeUse.STEP, TimeUse.MEMBERS)
                raise
        self._times.move(outcome.waited_s, TimeUse.STEP, TimeUse.MEMBERS)
        if outcome.nonfinite:
            raise NonFinite(
                f"{outcome.nonfinite} is NaN or infinite at {_place_of(part)} (loss"
                f" {outcome.loss!r})",
                hint=(
                    "lower the learning rate, clip gradients, or check these records; this step"
                    " was not applied"
                ),
            )
        return outcome

    def _at_mark(
        self, item: WorkItem, newer: Callable[[], bool], generation: RingGeneration
    ) -> bool:
        copies = item.mark != "pause" and self._rank == 0
        with self._times.spending(TimeUse.COPY if copies else TimeUse.PAUSE):
            return self._worked_at_mark(item, newer, generation)

    def _worked_at_mark(
        self, item: WorkItem, newer: Callable[[], bool], generation: RingGeneration
    ) -> bool:
        if item.mark == "pause":
            self._confirm()
        elif not self._foretell_bad(newer):
            return False
        # If a newer ring interrupts the mark, it is repeated from its beginning.
        self._position = replace(self._position, number=item.number, offset=AT_BEGIN)
        if not self._parts.listener.at_mark(item, self.version, self._rank, newer):
            return False
        self._position = replace(self._position, number=item.number + 1, offset=AT_BEGIN)
        if item.mark == "pause":
            self._plan(generation, self._position)
        return True

    def _confirm(self) -> None:
        """Make sure that all members have the last step: a reduction after it is complete."""
        self._parts.exchange.gather(self._position.numbers())
        self._tell_safe()
        self._context.outbox.urgent.set()

    def _foretell_bad(self, stop: Callable[[], bool]) -> bool:
        """Have rank 0 report all bad records before it copies the weights. False if `stop()` first.

        The copy contains the last step, which is not safe yet, so the master must know its bad
        records.
        """
        if self._rank != 0 or not self._bad_since_copy:
            return True
        lease = self._lease()
        if self._unsafe is not None and self._hold(lease):
            self._context.outbox.foretell_bad(lease, self._unsafe.bad)
        # After `foretell_bad`: wait for the report that carries it.
        known = self._context.outbox.arrival()
        while not known.wait(LOOK_AGAIN_S):
            if stop():
                return False
        self._bad_since_copy = False
        return True

    def _tell_safe(self) -> None:
        """The step before this reduction is in every member's weights: rank 0 reports it."""
        advance, self._unsafe = self._unsafe, None
        if advance is not None and self._rank == 0:
            self._tell(self._lease(), advance)

    def _tell_state(self) -> None:
        """Report what the elected state contains: it is safe now, whoever computed it."""
        position, advance = self._position, self._unsafe
        self._unsafe = None
        self._bad_since_copy = self._bad_since_copy or bool(position.bad or position.ended)
        if self._rank != 0:
            self._release()
            return
        for ended in position.ended:
            # The master ignores what it already knows.
            self._tell(
                _lease_of(ended.shard, ended.attempt, ended.records),
                Advance(ended.records, done=True, bad_so_far=ended.bad),
            )
        if position.shard >= 0:
            done = position.done == position.records
            contained = Advance(position.done, position.version, done=done, bad_so_far=position.bad)
            self._tell(self._lease(), advance or contained)
            self._context.outbox.urgent.set()

    def _lease(self) -> Lease:
        """Return the lease of the shard in the position."""
        return _lease_of(self._position.shard, self._position.attempt, self._position.records)

    def _tell(self, lease: Lease, advance: Advance) -> None:
        """Report progress of a shard, unless this member has reported all of it."""
        if not self._hold(lease):
            return
        self._context.outbox.advance(lease, advance)
        if advance.done:
            may_come = {self._lease(), *(_lease_of(*shard[:3]) for shard in self._position.ended)}
            self._reported_to_end = {lease, *(self._reported_to_end & may_come)}

    def _hold(self, lease: Lease) -> bool:
        """Have the outbox hold that lease alone; False if it has all of it already."""
        if lease in self._reported_to_end:
            return False
        if lease != self._reported:
            self._release()
            self._reported = lease
            self._context.outbox.hold(lease)
        return True

    def _release(self) -> None:
        """Stop reporting the lease: the ring's leases do not belong to one member."""
        if self._reported is not None and self._reported not in self._reported_to_end:
            self._context.outbox.forget([self._reported])
        self._reported = None


def _lease_of(shard: int, attempt: int, records: int) -> Lease:
    """Return the lease as reports name it: they ignore the rest of a lease."""
    return Lease(Task.TRAINING, Shard(ShardId(shard), "", 0, records), attempt)


def _place_of(part: BatchPart) -> str:
    """The records of a global minibatch, for people."""
    lease = part.item.lease
    assert lease is not None and lease.shard is not None
    order = (
        "in file order" if lease.order_seed is None else f"in the order of seed {lease.order_seed}"
    )
    return (
        f"{lease.shard.source}, records {lease.shard.begin}:{lease.shard.end}, "
        f"of these {part.begin}:{part.end} {order} (epoch {lease.epoch + 1})"
    )
