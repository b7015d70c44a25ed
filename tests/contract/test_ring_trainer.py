"""The trainer of a ring, whose other member is played by the test: what it has, and what it says it has, after the ring broke."""

from __future__ import annotations

from collections import deque

import keras
import numpy as np
import pytest

from elasticdl.clock import SystemClock
from elasticdl.model.ring_step import RingOutcome
from elasticdl.rpc.conversation import RingForm, RingWord
from elasticdl.shard import Lease, RingItem, Shard, ShardId, Task
from elasticdl.worker.ending import Ending
from elasticdl.worker.gauges import Gauges
from elasticdl.worker.leases import LeaseKeeper
from elasticdl.worker.outbox import Outbox
from elasticdl.worker.patience import Patience
from elasticdl.worker.ring_forms import Forms
from elasticdl.worker.ring_reading import End, Part
from elasticdl.worker.ring_state import Exchange
from elasticdl.worker.ring_trainer import Parts, Position, RingTrainer
from elasticdl.worker.surroundings import Surroundings
from elasticdl.worker.watch import Watch
from tests.contract.played_ring import PlayedRing

pytestmark = pytest.mark.contract

ME, OTHER = "worker-1", "worker-0"
ITEM = RingItem(1, Lease(Task.TRAINING, Shard(ShardId(0), "data", 0, 80), 0), batch=8)
SHAPES = ((3,), (2, 2), (5,))
OTHERS_VALUE = 1000.0


class Peer(PlayedRing):
    """A ring of two: the other has `numbers` and, of its state, sends as many chunks as it says before its end."""

    def __init__(self) -> None:
        self.numbers = Position().numbers()
        self.chunks = 0
        self.size = 1

    def enter(self, place) -> None:
        self.size = place.size

    def met(self, name, mine):
        if self.size == 1:
            return mine
        if name.startswith("numbers"):
            return np.concatenate([[self.numbers], mine])
        if self.chunks == 0:
            raise ConnectionResetError("the peer is gone")
        self.chunks -= 1
        shape = SHAPES[int(name.partition(".")[2])]
        return np.frombuffer(np.full(shape, OTHERS_VALUE, np.float32).tobytes(), np.uint8)


class Job:
    """Everything around the trainer. `script` is what happens as often as it has nothing left to train on."""

    def __init__(self) -> None:
        self.peer, self.ending, self.outbox = Peer(), Ending(), Outbox()
        self.outbox.say = self.say
        self.variables = [keras.Variable(np.zeros(shape, np.float32), trainable=False) for shape in SHAPES]
        self.forms = Forms(self.ending)
        self.script: deque = deque()
        self.when_broken = lambda: None
        """What the master does when it hears of that."""
        self.steps_left = 0
        self.begun: list[int] = []
        """Where each plan began."""
        clock = SystemClock()
        gauges, watch = Gauges(clock), Watch(clock)
        around = Surroundings(
            LeaseKeeper(None, self.outbox, self.ending),
            self.outbox,
            gauges,
            Patience(self.ending, gauges, clock),
            watch,
            self.ending,
        )
        parts = Parts(self.peer, Exchange(self.peer, self.variables, chunk_bytes=1), self, self, self)
        self.trainer = RingTrainer(ME, "here", parts, around, self.forms)

    def form(self, generation: int, members=(ME,), holders=(), first_number=1) -> None:
        self.forms.put(RingForm(generation, members, holders, first_number))

    def values(self) -> set[float]:
        return {float(value) for one in self.variables for value in one.numpy().ravel()}

    # the way to the master

    def say(self, word: RingWord) -> None:
        if word.broken > word.entered:
            self.when_broken()

    # the reading

    def begin(self, plan) -> None:
        self.begun.append(plan.offset)
        self.offset = plan.offset or 0

    def wake(self) -> None: ...

    def next(self, stop):
        while self.steps_left == 0 and not stop() and self.script:
            self.script.popleft()()
        if stop():
            return None
        if self.steps_left == 0:
            return End()
        self.steps_left -= 1
        self.offset += 8
        return Part(ITEM, self.offset - 8, self.offset, 4, batch=(None, None))

    # the step

    def train(self, part, *, rank, iteration, wish=False) -> RingOutcome:
        """Adds one to all that the model has."""
        for one in self.variables:
            one.assign(one + 1)
        return RingOutcome(0.5, 8, 0)

    def waits(self) -> bool:
        return False

    # the listener

    def before_step(self, item) -> None: ...

    def after_step(self, loss, version) -> None: ...

    def rate(self, version, scale) -> None: ...

    def at_mark(self, item, version, rank, stop) -> bool:
        raise AssertionError("there are no marks")

    def restore(self, directory) -> int:
        for one in self.variables:
            one.assign(one * 0)
        return 0


@pytest.mark.parametrize("chunks", range(len(SHAPES)))
def test_a_member_that_lacks_a_step_goes_on_from_its_own_weights_if_the_ring_breaks_while_it_takes_the_others(chunks):
    """The other had one step more, began to hand its weights over, and died: this one is all that is left."""
    job = Job()
    job.trainer.warm_up(None)

    def train(steps: int) -> None:
        assert job.values() == {float(job.trainer.version)}, "as many steps as it says, and nothing of the other's"
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
