"""The trainer of a ring, whose other member is played by the test: what it has, and what it says it
has, after the ring broke.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.clock import ManualClock, SystemClock
from elasticdl.master.core.processes.table import LEAVE_LIMIT_S
from elasticdl.model.ring_step import RingOutcome
from elasticdl.rpc.conversation import RingGeneration, RingReport, Wait
from elasticdl.shard import Barrier as Kind
from elasticdl.shard import Lease, Shard, ShardId, Task, WorkItem
from elasticdl.worker.pipeline.context import WorkerContext
from elasticdl.worker.pipeline.leases import LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch, Hung
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.ring.exchange import Exchange
from elasticdl.worker.ring.generations import Generations
from elasticdl.worker.ring.position import EndedShard, Position
from elasticdl.worker.ring.reading import AtBarrier, BatchPart, End
from elasticdl.worker.ring.trainer import LOST_S, RingTrainer
from elasticdl.worker.ring.trainer_deps import RingDeps
from tests.contract.played_ring import PlayedRing
from tests.present import present

pytestmark = pytest.mark.contract

ME, OTHER = "worker-1", "worker-0"
ITEM = WorkItem(1, Lease(Task.TRAINING, Shard(ShardId(0), "data", 0, 80), 0), batch=8)
SHAPES = ((3,), (2, 2), (5,))
OTHERS_VALUE = 1000.0


class Peer(PlayedRing):
    """A ring of two: the other has `numbers` and, of its state, sends as many chunks as it says
    before its end. It is rank 0 unless it is `last`.
    """

    def __init__(self) -> None:
        self.numbers = Position().numbers()
        self.chunks = 0
        self.last = False
        self.size = 1

    def enter(self, place: Any) -> None:
        self.size = place.size

    def met(self, name: str, mine: Any) -> Any:
        if self.size == 1:
            return mine
        if name.startswith("numbers"):
            return np.concatenate([mine, [self.numbers]] if self.last else [[self.numbers], mine])
        if self.chunks == 0:
            raise ConnectionResetError("the peer is gone")
        self.chunks -= 1
        shape = SHAPES[int(name.partition(".")[2])]
        return np.frombuffer(np.full(shape, OTHERS_VALUE, np.float32).tobytes(), np.uint8)


class NoLeases:
    def request_lease(self, wait_s: float) -> Wait:
        raise AssertionError("a ring asks for items")


class Job:
    """Everything around the trainer.

    `script` is what happens as often as it has nothing left to train on.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.peer, self.shutdown, self.outbox = Peer(), Shutdown(), Outbox()
        self.outbox.say = self.say  # type: ignore[method-assign]
        self.variables = [
            keras.Variable(np.zeros(shape, np.float32), trainable=False) for shape in SHAPES
        ]
        self.generations = Generations(self.shutdown, self.clock)
        self.script: deque[Any] = deque()
        self.when_broken: Callable[[], object] = lambda: None
        """What the master does when it hears of that."""
        self.steps_left = 0
        self.begun: list[int] = []
        """Where each plan began."""
        clock = SystemClock()
        gauges, watch = Gauges(clock), HangWatch(self.clock)
        self.watch = watch
        context = WorkerContext(
            LeaseKeeper(NoLeases(), self.outbox, self.shutdown),
            self.outbox,
            gauges,
            ServerRetry(self.shutdown, gauges, clock),
            watch,
            self.shutdown,
        )
        parts = RingDeps(
            self.peer,
            Exchange(self.peer, self.variables, chunk_bytes=1),
            self,
            self,  # type: ignore[arg-type]
            self,
        )
        self.trainer = RingTrainer(ME, "here", parts, context, self.generations)

    def form(
        self, generation: int, members: Any = (ME,), holders: Any = (), first_item: Any = 1
    ) -> None:
        self.generations.put(RingGeneration(generation, members, holders, first_item))

    def values(self) -> set[float]:
        return {float(value) for variable in self.variables for value in variable.numpy().ravel()}

    # the way to the master

    def say(self, report: RingReport, position: object) -> None:
        if report.broken > report.entered:
            self.when_broken()

    # the reading

    def begin(self, plan: Any) -> None:
        self.begun.append(plan.offset)
        self.offset = plan.offset or 0

    def wake(self) -> None: ...

    def next(self, stop: Any) -> Any:
        while self.steps_left == 0 and not stop() and self.script:
            self.script.popleft()()
        if stop():
            return None
        if self.steps_left == 0:
            return End()
        self.steps_left -= 1
        self.offset += 8
        return BatchPart(ITEM, self.offset - 8, self.offset, 4, batches=((None, None),))

    # the step

    def train(
        self, parts: Any, *, rank: int, size: int, iteration: int, wish: bool = False
    ) -> RingOutcome:
        """Adds one to all that the model has."""
        for variable in self.variables:
            variable.assign(variable + 1)
        return RingOutcome(0.5, 8, 0)

    def waits(self) -> bool:
        return False

    # the listener

    def before_step(self, item: Any) -> None: ...

    def after_step(self, loss: Any, version: int) -> None: ...

    def rate(self, version: int, scale: Any) -> None: ...

    def at_mark(self, item: Any, version: int, rank: int, stop: Any) -> bool:
        raise AssertionError("there are no marks")

    def restore(self, directory: str) -> int:
        for variable in self.variables:
            variable.assign(variable * 0)
        return 0


@pytest.mark.parametrize("chunks", range(len(SHAPES)))
def test_a_member_that_lacks_a_step_keeps_its_weights_if_the_ring_breaks_while_it_takes_the_others(
    chunks: Any,
) -> None:
    """The other had one step more, began to hand its weights over, and died: this one is all that
    is left.
    """
    job = Job()
    job.trainer.warm_up(None)

    def train(steps: int) -> None:
        assert job.values() == {float(job.trainer.version)}, (
            "as many steps as it says, and nothing of the other's"
        )
        job.steps_left = steps

    def meet_the_other() -> None:
        job.peer.numbers, job.peer.chunks = Position(4, 1, 32, 0, 0, 32).numbers(), chunks
        job.form(2, (OTHER, ME), (0, 1))

    job.script.extend([lambda: train(3), meet_the_other, lambda: train(2)])
    job.when_broken = lambda: job.form(3, (ME,), (0,))
    job.form(1)
    job.trainer.run()
    assert job.begun[-1] == 24, "it goes on after its third window"
    assert (job.trainer.version, job.values()) == (5, {5.0})


class Waiting(Job):
    """A ring of two in whose step this member has done its part."""

    happens: Callable[[], object]

    def waits(self) -> bool:
        return True

    def train(self, parts: Any, **how: Any) -> RingOutcome:
        self.happens()
        return super().train(parts, **how)

    def step(self, happens: Callable[[], object]) -> None:
        self.happens, self.steps_left = happens, 1
        self.form(1, (OTHER, ME), (0, 1))
        self.trainer.run()


def test_a_member_whose_step_waits_for_a_lost_one_without_end_is_hung() -> None:
    """As on NCCL, where the end of a peer does not end an operation."""
    job = Waiting()

    def happens() -> None:
        job.clock.advance(1000.0)
        job.watch.check()
        job.form(2, (OTHER, ME, "worker-2"), (0, 1))
        job.clock.advance(1000.0)
        job.watch.check()
        job.form(3, (ME,), (0,))
        job.clock.advance(LOST_S + 1.0)
        words = "waited 2091 s in a step for worker-0, which the ring no longer has"
        with pytest.raises(Hung, match=words):
            job.watch.check()
        assert job.watch.activity() is None, "its own part is done"

    job.step(happens)
    assert job.trainer.version == 1


def test_a_member_that_leaves_has_its_time_while_another_still_works_on_the_step() -> None:
    job = Waiting()

    def happens() -> None:
        job.clock.advance(1000.0)
        job.form(2, (ME,), (0,))
        job.clock.advance(LEAVE_LIMIT_S + 20.0)
        job.watch.check()

    job.step(happens)
    assert job.trainer.version == 1


BATCH = 8
SHARD = Shard(ShardId(0), "data", 0, 80)
NEXT_SHARD = Shard(ShardId(1), "data", 80, 120)


class Sequence(Job):
    """A ring of one that works through items.

    What it tells is taken after every step, as a fast heartbeat would.

    `reports` has (shard, offset, done) of all that was taken, `bad` the bad records that were told
    of.
    """

    def __init__(self, *items: WorkItem) -> None:
        super().__init__()
        self.items = items
        self.at = (0, 0)
        self.reports: list[tuple[int, int, bool]] = []
        self.at_pause: list[dict[int, int]] = []
        """How far each shard was at each pause, as the master knew."""
        self.bad: dict[int, int] = {}
        self.bad_of_step = 0
        self.before: dict[int, Callable[[], object]] = {}
        """What happens before the step of that number."""
        self.outbox.arrival = self.arrival  # type: ignore[method-assign]

    def arrival(self) -> threading.Event:
        """As if a report went at once."""
        known = threading.Event()
        self.take()
        known.set()
        return known

    def take(self) -> None:
        for told in self.outbox.take({}).progress:
            assert not told.returned, "no member gives back what the ring holds"
            self.reports.append((told.applied.shard, told.applied.offset, told.done))
            self.bad[told.applied.shard] = told.bad_records

    def told(self) -> dict[int, int]:
        return {
            shard: max(offset for one, offset, _ in self.reports if one == shard)
            for shard, _, _ in self.reports
        }

    def begin(self, plan: Any) -> None:
        at = next(
            (i for i, item in enumerate(self.items) if item.number == plan.number), len(self.items)
        )
        self.at = (at, plan.offset or 0)
        if (
            at < len(self.items)
            and self.items[at].lease
            and self.at[1] >= present(self.items[at].lease).end
        ):
            self.at = (at + 1, 0)

    def next(self, stop: Any) -> Any:
        happens = self.before.pop(self.trainer.version, None)
        if happens is not None:
            happens()
        if stop():
            return None
        index, offset = self.at
        if index == len(self.items):
            return End()
        item = self.items[index]
        if item.lease is None:
            self.at = (index + 1, 0)
            return AtBarrier(item)
        begin = max(offset, item.lease.offset)
        end = min(begin + BATCH, item.lease.end)
        self.at = (index, end) if end < item.lease.end else (index + 1, 0)
        return BatchPart(item, begin, end, end - begin, self.bad_of_step, batches=((None, None),))

    def after_step(self, loss: Any, version: int) -> None:
        self.take()

    def at_mark(self, item: Any, version: int, rank: int, stop: Any) -> bool:
        if item.mark == "pause":
            self.take()
            self.at_pause.append(self.told())
        return True


def part_of(shard: Shard, number: int, begin: int, end: int) -> WorkItem:
    """Records [begin, end) of a shard, as the master cuts an item where something is due."""
    limit = end if end < shard.records else 0
    return WorkItem(number, Lease(Task.TRAINING, shard, 0, offset=begin, limit=limit), BATCH)


@pytest.mark.parametrize("boundary", [Kind.CHECKPOINT, Kind.PAUSE])
def test_all_of_a_shard_is_told_though_an_item_ended_inside_it(boundary: Any) -> None:
    items = [
        part_of(SHARD, 1, 0, 24),
        WorkItem(2, None, mark=boundary),
        part_of(SHARD, 3, 24, 56),
        WorkItem(4, None, mark=Kind.PAUSE),
    ]
    job = Sequence(*items)
    job.form(1)
    job.trainer.run()
    assert job.at_pause[-1] == {0: 56}, (
        "the ring stands at the pause until the master knows of all before it"
    )
    assert not any(done for _, _, done in job.reports), "the shard is not done"
    assert boundary is not Kind.PAUSE or job.at_pause[0] == {0: 24}


def test_a_shard_is_reported_done_once_at_its_own_end() -> None:
    items = [
        part_of(SHARD, 1, 0, 24),
        WorkItem(2, None, mark=Kind.CHECKPOINT),
        part_of(SHARD, 3, 24, 80),
        part_of(NEXT_SHARD, 4, 0, 16),
        WorkItem(5, None, mark=Kind.PAUSE),
    ]
    job = Sequence(*items)
    job.form(1)
    job.trainer.run()
    assert job.at_pause == [{0: 80, 1: 16}]
    assert [told for told in job.reports if told[2]] == [(0, 80, True)]


@pytest.mark.parametrize("taken", [True, False], ids=["reported", "not reported yet"])
@pytest.mark.parametrize("version", range(1, 6))
def test_what_is_reported_again_in_a_new_generation_loses_nothing_and_counts_nothing_twice(
    version: int, taken: bool
) -> None:
    """The new generation begins inside an item, at the end of one, and at the end of a shard."""
    short = replace(SHARD, end=32)
    items = [
        part_of(short, 1, 0, 16),
        WorkItem(2, None, mark=Kind.CHECKPOINT),
        part_of(short, 3, 16, 32),
        part_of(NEXT_SHARD, 4, 0, 16),
        WorkItem(5, None, mark=Kind.PAUSE),
    ]
    job = Sequence(*items)
    job.bad_of_step = 1
    if not taken:
        job.after_step = lambda loss, version: None  # type: ignore[method-assign]
    job.before[version] = lambda: job.form(2, (ME,), (0,))
    job.form(1)
    job.trainer.run()
    assert job.at_pause == [{0: 32, 1: 16}]
    assert job.bad == {0: 4, 1: 2} and job.trainer.version == 6


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_member_that_becomes_the_first_reports_all_that_the_ring_did_of_a_shard(
    steps: int,
) -> None:
    """Whoever told before is gone, and with it what it had not told."""
    short = replace(SHARD, end=32)
    job = Sequence(
        part_of(short, 1, 0, 32), part_of(NEXT_SHARD, 2, 0, 16), WorkItem(3, None, mark=Kind.PAUSE)
    )
    job.bad_of_step, job.peer.chunks = 1, 99
    job.before[steps] = lambda: job.form(2, (ME,), (0,))
    job.form(1, (OTHER, ME))
    job.trainer.run()
    assert job.at_pause[-1][1 if steps > 4 else 0] == (16 if steps > 4 else 32)
    assert job.bad == {0: 4, 1: 2}
    # The master would take the bad records of a shard that nobody told the end of for trained ones.
    assert job.reports[:2] == [(0, 32, True), (1, 8 * (steps - 4), False)] or steps <= 4
    assert job.reports[0] == (0, min(32, 8 * steps), steps >= 4)


def test_a_member_that_joined_reports_the_bad_records_of_shards_that_ended_before() -> None:
    """Those who trained on them are gone before their reports arrived."""
    short, pause = replace(NEXT_SHARD, end=96), WorkItem(3, None, mark=Kind.PAUSE)
    job = Sequence(part_of(SHARD, 1, 0, 80), part_of(short, 2, 0, 16), pause)
    ended = (EndedShard(0, 0, 80, 7),)
    job.peer.numbers, job.peer.chunks = Position(12, 2, 16, 1, 0, 16, 16, 1, ended).numbers(), 99
    job.before[0] = lambda: job.form(2, (OTHER, ME), (0,))
    job.before[12] = lambda: job.form(3, (ME,), (0,))
    job.form(1)
    job.trainer.run()
    assert job.reports[:2] == [(0, 80, True), (1, 16, True)]
    assert job.bad == {0: 7, 1: 1}


def test_the_last_step_of_another_member_is_not_told_with_the_bad_records_of_ones_own() -> None:
    """The other trained one step more. It had no readable record, so the versions are equal."""
    one, two = replace(SHARD, end=8), replace(NEXT_SHARD, end=88)
    pause = WorkItem(3, None, mark=Kind.PAUSE)
    job = Sequence(part_of(one, 1, 0, 8), part_of(two, 2, 0, 8), pause)
    job.bad_of_step, job.peer.chunks, job.peer.last = 1, 99, True
    ended = (EndedShard(0, 0, 8, 1),)
    job.peer.numbers = Position(1, 2, 8, 1, 0, 8, 8, 8, ended).numbers()
    job.before[1] = lambda: job.form(2, (ME, OTHER), (0, 1))
    job.form(1)
    job.trainer.run()
    assert job.reports[:2] == [(0, 8, True), (1, 8, True)]
    assert job.bad == {0: 1, 1: 8}


def test_a_shard_reported_in_part_is_reported_to_its_end_though_another_member_is_ahead() -> None:
    one, two = replace(SHARD, end=16), replace(NEXT_SHARD, end=88)
    pause = WorkItem(3, None, mark=Kind.PAUSE)
    job = Sequence(part_of(one, 1, 0, 16), part_of(two, 2, 0, 8), pause)
    job.bad_of_step, job.peer.chunks, job.peer.last = 1, 99, True
    job.peer.numbers = Position(3, 2, 8, 1, 0, 8, 8, 1, (EndedShard(0, 0, 16, 2),)).numbers()
    job.before[2] = lambda: job.form(2, (ME, OTHER), (0, 1))
    job.form(1)
    job.trainer.run()
    assert job.reports == [(0, 8, False), (0, 16, True), (1, 8, True)]
    assert job.bad == {0: 2, 1: 1}
