"""Which gradients make up a synchronous step: alone, and in a world of workers that come and go."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.ps.steps import Contribution, Outlook, Steps, TrainingLease
from elasticdl.shard import ShardId

A, B, C, D = (ProcessName(Role.WORKER, index) for index in range(4))
LIMIT = 100_000
"""Moves after which a world that is not done counts as stuck."""


def outlook(*workers: ProcessName, epoch: int = 0, available: int | None = None) -> Outlook:
    leases = [TrainingLease(name, ShardId(name.index), 0, epoch) for name in workers]
    return Outlook(leases, frozenset((A, B, C, D)), None, available)


def give(steps: Steps, view: Outlook) -> list[str]:
    return [f"{turn.worker}:{turn.number}" for turn in steps.give(view)]


def end(steps: Steps, worker: ProcessName, number: int) -> bool:
    made = Contribution(worker, number, 1.0)
    return steps.end(worker, number, made, (worker, ShardId(worker.index), 0))


def test_a_step_is_complete_with_one_gradient_of_each_worker() -> None:
    steps, view = Steps(3, 0), outlook(A, B, C)
    for worker in (A, B, C):
        steps.ask(worker, 1, 0)
    assert give(steps, view) == ["worker-0:1", "worker-1:1", "worker-2:1"]
    assert end(steps, B, 1) and end(steps, A, 1)
    assert not steps.complete(view)
    assert end(steps, C, 1)
    assert [one.worker for one in steps.complete(view)] == [B, A, C]


def test_a_fast_worker_does_not_take_the_turn_of_one_that_still_reads() -> None:
    steps, view = Steps(2, 0), outlook(A, B)
    steps.ask(A, 1, 0)
    assert give(steps, view) == ["worker-0:1"]
    end(steps, A, 1)
    steps.ask(A, 2, 0)
    assert give(steps, view) == []
    assert not steps.complete(view)
    assert steps.why_open(view) == "step 1 has 1 of 2 gradients: worker-1 reads"
    steps.ask(B, 1, 0)
    assert give(steps, view) == ["worker-1:1"]


def test_one_worker_may_bring_all_gradients() -> None:
    steps, view = Steps(3, 0), outlook(A)
    for number in (1, 2, 3):
        steps.ask(A, number, 0)
        assert give(steps, view) == [f"worker-0:{number}"]
        assert end(steps, A, number)
    assert len(steps.complete(view)) == 3


def test_the_last_step_ends_with_what_there_is() -> None:
    steps, view = Steps(4, 0), outlook(A)
    steps.ask(A, 1, 0)
    give(steps, view)
    end(steps, A, 1)
    assert not steps.complete(view)
    steps.read((A, ShardId(0), 0))
    assert not steps.complete(outlook(A, available=0)), "a free shard may bring one more"
    assert len(steps.complete(view)) == 1


def test_a_step_does_not_mix_epochs() -> None:
    steps = Steps(2, 0)
    view = Outlook(
        [TrainingLease(A, ShardId(0), 0, 0), TrainingLease(B, ShardId(1), 0, 1)], frozenset((A, B))
    )
    steps.ask(B, 1, 1)
    assert give(steps, view) == [], "the rest of epoch 0 comes first"
    steps.ask(A, 1, 0)
    assert give(steps, view) == ["worker-0:1"]
    end(steps, A, 1)
    steps.read((A, ShardId(0), 0))
    assert len(steps.complete(view)) == 1
    steps.applied()
    assert give(steps, view) == ["worker-1:1"]


def test_a_step_does_not_wait_for_a_backup_and_drops_what_comes_late() -> None:
    steps, view = Steps(2, 1), outlook(A, B, C)
    for worker in (A, B, C):
        steps.ask(worker, 1, 0)
    assert len(give(steps, view)) == 3
    assert end(steps, A, 1) and end(steps, C, 1)
    assert [one.worker for one in steps.complete(view)] == [A, C]
    assert not end(steps, B, 1)
    assert not end(steps, B, 1), "a repeated call gets the same answer"
    steps.applied()
    assert not steps.has_turn(B, 1)


def test_no_backup_turn_is_given_where_there_is_no_backup_worker() -> None:
    steps, view = Steps(2, 1), outlook(A, B)
    for number in (1, 2):
        for worker in (A, B):
            steps.ask(worker, number, 0)
        given = give(steps, view)
        assert len(given) == (2 if number == 1 else 0)


def test_a_repeated_end_after_the_step_was_applied_is_accepted() -> None:
    steps, view = Steps(1, 0), outlook(A)
    steps.ask(A, 1, 0)
    give(steps, view)
    assert end(steps, A, 1)
    steps.complete(view)
    steps.applied()
    assert end(steps, A, 1)


def test_a_repeated_end_is_accepted_though_a_later_turn_was_given_up_meanwhile() -> None:
    steps, view = Steps(1, 0), outlook(A)
    steps.ask(A, 1, 0)
    give(steps, view)
    assert end(steps, A, 1)
    steps.complete(view)
    steps.applied()
    steps.ask(A, 2, 0)
    give(steps, view)
    assert steps.end(A, 2, None, (A, ShardId(0), 0))
    assert end(steps, A, 1)


def test_a_lost_worker_leaves_the_open_step_but_not_one_that_is_being_applied() -> None:
    steps, view = Steps(2, 0), outlook(A, B)
    for worker in (A, B):
        steps.ask(worker, 1, 0)
    give(steps, view)
    end(steps, A, 1)
    assert steps.remove(A) == [1]
    steps.ask(B, 2, 0)
    assert give(steps, outlook(B)) == ["worker-1:2"], "another worker takes the turn"
    end(steps, B, 1)
    end(steps, B, 2)
    assert len(steps.complete(outlook(B))) == 2
    assert steps.applying(B) == [1, 2]
    assert steps.remove(B) == []
    assert [one.sequence for one in steps.applied()] == [1, 2]


@dataclass
class Shard:
    """A shard of a world: minibatches `begin` to `end` of an epoch."""

    id: int
    epoch: int
    left: int
    attempt: int = 0


@dataclass
class Worker:
    """One that holds leases in order and computes one gradient at a time, at its own speed."""

    name: ProcessName
    pace: int
    leases: deque[Shard] = field(default_factory=deque)
    given: dict[int, int] = field(default_factory=dict)
    """Minibatches that it has pushed, by shard."""
    unsettled: list[tuple[int, Shard]] = field(default_factory=list)
    turn: int = 0
    number: int = 0
    busy: int = 0


class World:
    """Workers, shards, and `Steps` as the gateway drives it."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.full, self.backups = choose.randint(1, 6), choose.choice((0, 0, 1, 2))
        self.steps = Steps(self.full, self.backups)
        self.epochs, self.shards = choose.randint(1, 3), choose.randint(1, 8)
        self.size = choose.randint(1, 5)
        self.opened, self.returned = 0, deque[Shard]()
        self.fresh = deque[Shard]()
        self.settling: list[Shard] = []
        self.workers: dict[ProcessName, Worker] = {}
        self.trained: Counter[int] = Counter()
        self.sizes: list[tuple[int, int]] = []
        self.names = 0
        for _ in range(choose.randint(1, 5)):
            self.join()

    def join(self) -> None:
        name = ProcessName(Role.WORKER, self.names)
        self.names += 1
        self.workers[name] = Worker(name, self.choose.choice((1, 1, 1, 8)))

    @property
    def done(self) -> bool:
        held = any(worker.leases or worker.unsettled for worker in self.workers.values())
        return self.available is None and not held and not self.settling

    @property
    def available(self) -> int | None:
        epochs = [one.epoch for one in (*self.returned, *self.fresh)]
        if not self.fresh and self.opened < self.epochs:
            epochs.append(self.opened)
        return min(epochs, default=None)

    def outlook(self) -> Outlook:
        leases = [
            TrainingLease(worker.name, ShardId(shard.id), shard.attempt, shard.epoch)
            for worker in self.workers.values()
            for shard in self.held(worker)
        ]
        return Outlook(leases, frozenset(self.workers), self.returning, self.available)

    @property
    def returning(self) -> int | None:
        return min((one.epoch for one in self.settling), default=None)

    def held(self, worker: Worker) -> list[Shard]:
        behind = {shard.id: shard for _, shard in worker.unsettled}
        return [*worker.leases, *(one for one in behind.values() if one not in worker.leases)]

    def take(self, worker: Worker) -> None:
        if len(worker.leases) >= 2:
            return
        if not self.returned and not self.fresh and self.opened < self.epochs:
            base = self.opened * self.shards
            self.fresh.extend(
                Shard(base + number, self.opened, self.size) for number in range(self.shards)
            )
            self.opened += 1
        pool = self.returned or self.fresh
        if pool:
            worker.leases.append(pool.popleft())

    def move(self) -> None:
        """One random move of one worker, and what follows."""
        worker = self.choose.choice(list(self.workers.values()))
        if self.settling and self.choose.random() < 0.1:
            self.returned.append(self.settling.pop())
        self.take(worker)
        if worker.turn:
            worker.busy -= 1
            if worker.busy <= 0:
                self.push(worker)
        elif worker.leases:
            self.steps.ask(worker.name, worker.number + 1, worker.leases[0].epoch)
        self.decide()

    def push(self, worker: Worker) -> None:
        shard, number, worker.turn = worker.leases[0], worker.turn, 0
        lease = worker.name, ShardId(shard.id), shard.attempt
        made = Contribution(worker.name, number, 1.0)
        if not self.steps.end(worker.name, number, made, lease):
            self.give_back(worker)
            return
        worker.unsettled.append((number, shard))
        worker.given[shard.id] = worker.given.get(shard.id, 0) + 1
        if worker.given[shard.id] == shard.left:
            self.steps.read(lease)
            worker.leases.popleft()

    def give_back(self, worker: Worker) -> None:
        """All its leases are void: what is not in the model yet is trained again."""
        self.steps.remove(worker.name)
        for shard in self.held(worker):
            shard.attempt += 1
            self.settling.append(shard)
        worker.leases.clear()
        worker.unsettled.clear()
        worker.given.clear()
        worker.turn = 0

    def kill(self) -> None:
        worker = self.choose.choice(list(self.workers.values()))
        self.give_back(worker)
        self.steps.forget(worker.name)
        del self.workers[worker.name]
        self.join()

    def decide(self) -> None:
        view = self.outlook()
        self.steps.prune(lease.part for lease in view.leases)
        for turn in self.steps.give(view):
            worker = self.workers[turn.worker]
            worker.turn = worker.number = turn.number
            worker.busy = worker.pace
        complete = self.steps.complete(view)
        if not complete:
            return
        epochs = set()
        for one in self.steps.applied():
            worker = self.workers[one.worker]
            shard = next(shard for number, shard in worker.unsettled if number == one.sequence)
            worker.unsettled = [two for two in worker.unsettled if two[0] != one.sequence]
            epochs.add(shard.epoch)
            self.trained[shard.id] += 1
            shard.left -= 1
            worker.given[shard.id] -= 1
        assert len(epochs) == 1, "a step mixes epochs"
        self.sizes.append((epochs.pop(), len(complete)))


def test_a_step_waits_for_shards_that_come_back() -> None:
    """The master takes a lost worker's shards back: one of them belongs to this epoch."""
    steps = Steps(2, 0)
    steps.ask(A, 1, 0)
    give(steps, outlook(A))
    end(steps, A, 1)
    steps.read((A, ShardId(0), 0))
    coming = Outlook(outlook(A).leases, frozenset((A, B)), 0, None)
    assert not steps.complete(coming)
    assert steps.why_open(coming).endswith("shards of other workers are being leased again")
    assert steps.complete(outlook(A))


@pytest.mark.parametrize("seed", range(300))
def test_every_minibatch_is_in_exactly_one_step_and_no_step_waits_for_ever(seed: int) -> None:
    world = World(seed)
    kills = world.choose.choice((0, 0, 3))
    for moves in range(LIMIT):
        if world.done:
            break
        if kills and moves % 97 == 96:
            kills -= 1
            world.kill()
        world.move()
    else:
        pytest.fail(f"stuck at {world.steps.why_open(world.outlook())}")
    assert set(world.trained.values()) == {world.size}
    assert len(world.trained) == world.epochs * world.shards
    assert max(size for _, size in world.sizes) <= world.full


@pytest.mark.parametrize("seed", range(100))
def test_without_failures_an_epoch_has_as_many_steps_as_keras_has_batches(seed: int) -> None:
    world = World(seed)
    world.backups = 0
    world.steps = Steps(world.full, 0)
    for _ in range(LIMIT):
        if world.done:
            break
        world.move()
    batches = world.shards * world.size
    full, rest = divmod(batches, world.full)
    expected = [world.full] * full + ([rest] if rest else [])
    for epoch in range(world.epochs):
        assert [size for of, size in world.sizes if of == epoch] == expected
