"""The faults that the fake cluster can be told to have."""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.event_bus import MOST_TAILS, EventBus
from tests.fake_cluster import FakeCluster

pytestmark = pytest.mark.core
W0, W1 = ProcessName(Role.WORKER, 0), ProcessName(Role.WORKER, 1)


def spec(name: ProcessName) -> ProcessSpec:
    return ProcessSpec(name, ("train",))


async def heard(cluster: FakeCluster) -> list[ProcessObserved | ProcessExited]:
    await cluster.close()
    return [event async for event in cluster.observe()]


async def test_a_refusal_is_given_as_often_as_ordered_and_then_the_process_starts() -> None:
    cluster = FakeCluster()
    cluster.refuse("quota cpu 8/8", retry=True, name=W0, times=2)
    await cluster.create(spec(W1))
    for _ in range(2):
        with pytest.raises(CreateRefused, match="quota cpu 8/8") as refused:
            await cluster.create(spec(W0))
        assert refused.value.retry
    await cluster.create(spec(W0))
    assert cluster.live == (W1, W0)


async def test_a_refusal_without_a_name_hits_whatever_comes_next() -> None:
    cluster = FakeCluster()
    cluster.refuse("forbidden", retry=False)
    with pytest.raises(CreateRefused):
        await cluster.create(spec(W1))
    await cluster.create(spec(W1))


async def test_a_preempted_process_says_so_in_the_platforms_words() -> None:
    cluster = FakeCluster()
    await cluster.create(spec(W0))
    cluster.preempt(W0)
    (event,) = await heard(cluster)
    assert isinstance(event, ProcessExited)
    assert event.exit_status.reason == "Preempted" and not event.exit_status.asked


async def test_a_lost_node_tells_nothing_until_it_is_noticed() -> None:
    cluster = FakeCluster()
    await cluster.create(spec(W0))
    cluster.lose_node(W0)
    await cluster.delete(W0, grace_s=0)
    assert cluster.live == (W0,)
    cluster.notice_loss(W0)
    (event,) = await heard(cluster)
    assert isinstance(event, ProcessExited)
    assert (event.exit_status.exit_code, event.exit_status.signal, event.exit_status.reason) == (
        None,
        None,
        "NodeLost",
    )


async def test_a_held_process_is_there_but_does_not_run_until_it_is_placed() -> None:
    cluster = FakeCluster()
    cluster.hold(W0, "quota cpu 8/8")
    await cluster.create(spec(W0))
    events = cluster.observe()
    assert await anext(events) == ProcessObserved(W0, running=False, waiting_for="quota cpu 8/8")
    cluster.place(W0, "node-1")
    assert await anext(events) == ProcessObserved(W0, running=True, where="node-1")
    await events.aclose()


async def test_an_event_can_come_twice() -> None:
    cluster = FakeCluster()
    await cluster.create(spec(W0))
    events = cluster.observe()
    await anext(events)
    cluster.exit(W0, ExitStatus(exit_code=1))
    cluster.repeat(W0)
    assert await anext(events) == await anext(events) == ProcessExited(W0, ExitStatus(exit_code=1))
    await events.aclose()


def test_a_fault_for_a_process_that_does_not_live_is_a_mistake_of_the_test() -> None:
    with pytest.raises(KeyError, match="worker-0 is not live; live: none"):
        FakeCluster().kill(W0)


async def test_of_many_ended_processes_only_the_last_ones_keep_what_they_printed() -> None:
    bus = EventBus()
    for index in range(3 * MOST_TAILS):
        status = ExitStatus(exit_code=index, log_tail=f"last words of {index}")
        bus.post(ProcessExited(ProcessName(Role.WORKER, index), status))
    bus.close()
    seen = [event async for event in bus.listen()]
    statuses = [event.exit_status for event in seen if isinstance(event, ProcessExited)]
    assert [status.exit_code for status in statuses] == list(range(3 * MOST_TAILS))
    assert [bool(status.log_tail) for status in statuses] == (
        2 * MOST_TAILS * [False] + MOST_TAILS * [True]
    )
