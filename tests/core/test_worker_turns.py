"""A worker's part in synchronous steps: records count in order, as far as steps have them."""

from __future__ import annotations

from functools import partial

import pytest

from elasticdl.rpc.conversation import Finished, LeaseAnswer, Settled
from elasticdl.shard import Applied, Lease, Shard, ShardId, Task
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.leases import HeldLease, LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.trainer import Batch
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.ps.turns import Turns

pytestmark = pytest.mark.core

SHARD_OF_4 = HeldLease(Lease(Task.TRAINING, Shard(ShardId(0), "a", 0, 4), 0))
NEXT_SHARD = HeldLease(Lease(Task.TRAINING, Shard(ShardId(1), "a", 4, 8), 0))


class Master:
    """Gives every turn; the gradients of `late` come too late for their step."""

    def __init__(self, *late: int) -> None:
        self._late = late

    def take_turn(self, number: int, epoch: int, revocation: int, wait_s: float) -> tuple[int, str]:
        return number, ""

    def end_turn(
        self, number: int, sequence: int, examples: float, applied: Applied, *, last: bool
    ) -> bool:
        return sequence not in self._late

    def request_lease(self, wait_s: float) -> LeaseAnswer:
        return Finished()


def push(turns: Turns, told: list[int], sequence: int, held: HeldLease = SHARD_OF_4) -> None:
    batch = Batch(held, end=sequence, records=1, last=False, computes=True)
    turns.end(turns.take(batch), sequence, 1.0, batch, partial(told.append, sequence))


def keeper(master: Master) -> LeaseKeeper:
    return LeaseKeeper(master, Outbox(), Shutdown())


def test_records_before_a_late_gradient_count_when_their_outcome_comes_later() -> None:
    master = Master(2)
    turns, told = Turns(master, keeper(master), Shutdown()), list[int]()
    push(turns, told, 1)
    push(turns, told, 2)
    assert turns.has_failed(SHARD_OF_4)
    assert told == [], "nobody knows yet what became of the first"
    turns.settled(Settled(through=1, version=1))
    assert told == [1]


def test_nothing_of_a_lease_counts_after_its_late_gradient() -> None:
    master = Master(1)
    leases = keeper(master)
    turns, told = Turns(master, leases, Shutdown()), list[int]()
    for sequence, held in ((1, SHARD_OF_4), (2, NEXT_SHARD)):
        push(turns, told, sequence, held)
    behind = Batch(SHARD_OF_4, end=3, records=1, last=False)
    turns.after_all(partial(told.append, 3), behind)
    # What waits must not count, even when the lease is void and forgotten.
    leases.revoke(1)
    turns.settled(Settled(through=2, version=1))
    assert told == [2]


def test_a_worker_without_others_waits_for_its_push_and_not_at_a_barrier() -> None:
    turns = Turns(Master(1), keeper(Master(1)), Shutdown(), alone=True)
    assert turns.waits_for is TimeUse.ACKNOWLEDGEMENT
    assert Turns(Master(1), keeper(Master(1)), Shutdown()).waits_for is TimeUse.TURN
