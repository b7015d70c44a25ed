"""The keeper of a worker's leases: what is void takes nobody's place."""

from __future__ import annotations

import pytest

from elasticdl.rpc.conversation import Finished, LeaseAnswer
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.leases import AHEAD, LeaseKeeper
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.process.channel import Ended
from elasticdl.worker.process.shutdown import Done, Shutdown
from tests.present import present

pytestmark = pytest.mark.core


def lease(number: int, revocation: int) -> Lease:
    return Lease(Task.TRAINING, Shard(ShardId(number), "a", 0, 8), 0, revocation=revocation)


class Source:
    """Grants these, then says that there is no more work."""

    def __init__(self, *answers: Lease) -> None:
        self.left: list[LeaseAnswer] = [*answers]

    def request_lease(self, wait_s: float) -> LeaseAnswer:
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


def test_an_order_that_is_told_again_does_not_bring_an_earlier_era_back() -> None:
    keeper = LeaseKeeper(Source(), Outbox(), Shutdown())
    keeper.revoke(2)
    keeper.revoke(1)
    assert keeper.revocation == 2
