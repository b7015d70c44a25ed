"""The keeper of a worker's leases: what is void takes nobody's place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl.rpc.conversation import Finished, LeaseAnswer, Wait
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.leases import AHEAD, LeaseKeeper
from elasticdl.worker.pipeline.outbox import Advance, Outbox
from elasticdl.worker.process.shutdown import Done, Shutdown
from elasticdl.worker.process.thread_queue import Ended
from tests.present import present
from tests.waiting import until

pytestmark = pytest.mark.core


def lease(number: int, revocation: int) -> Lease:
    return Lease(Task.TRAINING, Shard(ShardId(number), "a", 0, 8), 0, revocation=revocation)


class Source:
    """Grants these, then says that there is no more work."""

    def __init__(self, *answers: Lease) -> None:
        self.left: list[LeaseAnswer] = [*answers]
        self.calls = 0

    def request_lease(self, wait_s: float) -> LeaseAnswer:
        self.calls += 1
        return self.left.pop(0) if self.left else Finished()


def test_leases_that_came_after_they_were_voided_are_neither_held_nor_waited_for() -> None:
    """Each would take one of the few places ahead for ever: with the second one the worker would
    never ask again.
    """
    shutdown, outbox = Shutdown(), Outbox()
    source = Source(
        *(lease(number, 0) for number in range(AHEAD)),
        *(lease(10 + number, 1) for number in range(AHEAD + 2)),
    )
    keeper = LeaseKeeper(source, outbox, shutdown)
    keeper.revoke(1)
    keeper.start()
    found = []
    with pytest.raises(Ended):
        while True:
            held = keeper.next()
            found.append(present(held.lease.shard).id)
            keeper.worked_through(held)
    assert found == [10 + number for number in range(AHEAD + 2)]
    assert [present(one.shard).id for one in outbox.held()] == found
    assert outbox.take({}).gauges == {"dropped_voided_lease": AHEAD}
    shutdown.end(Done())


def test_an_order_that_is_sent_again_does_not_bring_an_earlier_era_back() -> None:
    keeper = LeaseKeeper(Source(), Outbox(), Shutdown())
    keeper.revoke(2)
    keeper.revoke(1)
    assert keeper.revocation == 2


@pytest.fixture
def shutdown() -> Iterator[Shutdown]:
    made = Shutdown()
    yield made
    made.end(Done())


def test_the_report_on_a_finished_lease_carries_the_request_for_the_next(
    shutdown: Shutdown,
) -> None:
    outbox, source = Outbox(), Source(lease(0, 0), lease(1, 0))
    keeper = LeaseKeeper(source, outbox, shutdown, lambda lease_s: 30.0)
    keeper.start()
    first, second = keeper.next(), keeper.next()
    assert not outbox.carried.take(), "there is no room yet"
    keeper.worked_through(first)
    until("the next report may carry the request", outbox.carried.take)
    outbox.carried.answered(lease(2, 0))
    assert present(keeper.next().lease.shard).id == 2
    # There is no work now: the next request is a call that waits for some.
    keeper.worked_through(second)
    until("the next report may carry the request", outbox.carried.take)
    source.left.append(lease(3, 0))
    outbox.carried.answered(Wait("all shards are leased"))
    assert present(keeper.next().lease.shard).id == 3
    assert source.calls == 3


def test_a_request_waits_for_no_report_that_is_not_due_soon(shutdown: Shutdown) -> None:
    outbox, source = Outbox(), Source(*(lease(number, 0) for number in range(4)))
    keeper = LeaseKeeper(source, outbox, shutdown, lambda lease_s: 3600.0)
    keeper.start()
    first, second = keeper.next(), keeper.next()
    outbox.advance(first.lease, Advance(8, done=True))
    keeper.worked_through(first)
    assert present(keeper.next().lease.shard).id == 2
    # Nothing is left to work on.
    keeper.revoke(1)
    keeper.worked_through(second)
    with pytest.raises(Ended):
        keeper.next()


def test_a_request_that_no_report_took_along_is_a_call(shutdown: Shutdown) -> None:
    outbox, source = Outbox(), Source(*(lease(number, 0) for number in range(3)))
    keeper = LeaseKeeper(source, outbox, shutdown, lambda lease_s: 0.01)
    keeper.start()
    first, _ = keeper.next(), keeper.next()
    keeper.worked_through(first)
    assert present(keeper.next().lease.shard).id == 2
    assert not outbox.carried.take()
