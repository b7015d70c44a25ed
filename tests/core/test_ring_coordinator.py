"""What the master tells workers of the ring, and what becomes of copies of weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import TransientError
from elasticdl.master.core.commands import PublishRing
from elasticdl.master.core.events import ProgressReported, RingReported, SnapshotCut
from elasticdl.master.executor.ring_coordinator import RingCoordinator
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.reports import events_of
from elasticdl.rpc import messages
from elasticdl.rpc.conversation import (
    Order,
    Progress,
    Report,
    RingCut,
    RingDrop,
    RingGeneration,
    RingReport,
    RingSave,
    RingSaved,
    Servers,
    WrittenFile,
)
from elasticdl.shard import Applied, Barrier, Lease, Shard, ShardId, SnapshotId, Task, WorkItem

pytestmark = pytest.mark.core

FIRST, SECOND, THIRD = (ProcessName(Role.WORKER, index) for index in range(3))


async def taken(board: OrderStreams, name: ProcessName, count: int) -> list[Order]:
    """The next orders of a new stream."""
    found = []
    async for order in board.stream(name):
        found.append(order)
        if len(found) == count:
            break
    return found


async def generation_of(board: OrderStreams, name: ProcessName) -> RingGeneration:
    """The generation that a new stream begins with."""
    _, generation = await taken(board, name, 2)
    assert isinstance(generation, RingGeneration)
    return generation


async def test_a_generation_is_told_to_all_and_again_at_every_new_stream() -> None:
    board = OrderStreams(0)
    coordinator = RingCoordinator(board, "old/version-7")
    port = await coordinator.start("127.0.0.1")
    coordinator.publish(PublishRing(1, (FIRST, SECOND), (), 1))
    coordinator.publish(PublishRing(2, (SECOND, THIRD), (0,), 1))
    for name in (FIRST, SECOND, THIRD):
        for _ in range(2):
            servers, generation = await taken(board, name, 2)
            assert servers == Servers(())
            assert isinstance(generation, RingGeneration)
            assert generation.number == 2
            assert generation.members == ("worker-1", "worker-2")
            assert generation.port == port
            assert generation.restore_from == ""
    coordinator.publish(PublishRing(3, (SECOND,), (), 1))
    alone = await generation_of(board, SECOND)
    assert alone.scope == ""
    assert alone.restore_from == "old/version-7"
    coordinator.publish(PublishRing(4, (SECOND,), (), 9, "new/version-9"))
    assert (await generation_of(board, SECOND)).restore_from == "new/version-9"
    await coordinator.close()


async def test_each_generation_has_a_rendezvous_of_its_own_that_ends_with_the_next() -> None:
    async def get(port: int, scope: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /{scope}:0/global_/0 HTTP/1.1\r\n\r\n".encode())
        status = await reader.readline()
        writer.close()
        return status

    board = OrderStreams(0)
    coordinator = RingCoordinator(board, "")
    await coordinator.start("127.0.0.1")
    coordinator.publish(PublishRing(1, (FIRST, SECOND), (), 1))
    first = await generation_of(board, FIRST)
    waiting = asyncio.ensure_future(get(first.port, first.scope))
    await asyncio.sleep(0)
    coordinator.publish(PublishRing(2, (FIRST, SECOND), (0, 1), 1))
    async with asyncio.timeout(5):
        assert b" 410 " in await waiting
    second = await generation_of(board, FIRST)
    assert second.scope != first.scope
    assert len({second.scope, (await generation_of(board, SECOND)).scope, ""}) == 3
    await coordinator.close()


async def test_a_copy_of_the_weights_is_saved_by_whoever_made_it() -> None:
    board = OrderStreams(0)
    coordinator = RingCoordinator(board, "")
    coordinator.cut(FIRST, SnapshotId(4))
    saving = asyncio.ensure_future(coordinator.save(SnapshotId(4), "there"))
    assert (await taken(board, FIRST, 2))[1] == RingSave(SnapshotId(4), "there")
    files = (WrittenFile("a", 3, "crc32c:00000000"),)
    written = RingSaved(SnapshotId(4), "there", 12, files, "{}", 5, paused_s=90.0)
    assert not coordinator.saved(SECOND, RingSaved(SnapshotId(4), "there")), "it has no copy"
    elsewhere = replace(written, directory="elsewhere")
    assert not coordinator.saved(FIRST, elsewhere), "an earlier master asked for that"
    assert coordinator.saved(FIRST, written)
    (saved,) = await saving
    assert saved.paused_s == 90.0
    assert (saved.version, saved.rows, saved.parameters, saved.files[0].name) == (12, 5, "{}", "a")
    coordinator.drop(SnapshotId(4))
    assert (await taken(board, FIRST, 3))[2] == RingDrop(SnapshotId(4))


async def test_only_workers_that_were_rank_0_keep_copies() -> None:
    coordinator = RingCoordinator(OrderStreams(0), "")
    coordinator.publish(PublishRing(1, (FIRST, SECOND), (), 1))
    coordinator.publish(PublishRing(2, (SECOND, THIRD), (0,), 1))
    assert [coordinator.may_copy(name) for name in (FIRST, SECOND, THIRD)] == [True, True, False]
    coordinator.leave(FIRST)
    assert not coordinator.may_copy(FIRST)
    await coordinator.close()


async def test_a_copy_that_went_with_its_worker_is_a_checkpoint_that_failed() -> None:
    coordinator = RingCoordinator(OrderStreams(0), "")
    coordinator.cut(FIRST, SnapshotId(4))
    saving = asyncio.ensure_future(coordinator.save(SnapshotId(4), "there"))
    await asyncio.sleep(0)
    coordinator.leave(FIRST)
    with pytest.raises(TransientError, match="worker-0: it ended"):
        await saving
    with pytest.raises(TransientError, match="is lost"):
        await coordinator.save(SnapshotId(4), "there")


async def test_a_second_copy_does_not_hide_that_the_worker_that_writes_the_first_ended() -> None:
    """A ring that lost a member at a barrier forms anew there, and makes its copy again."""
    board = OrderStreams(0)
    coordinator = RingCoordinator(board, "")
    coordinator.cut(FIRST, SnapshotId(4))
    saving = asyncio.ensure_future(coordinator.save(SnapshotId(4), "there"))
    await asyncio.sleep(0)
    coordinator.cut(SECOND, SnapshotId(4))
    assert (await taken(board, SECOND, 2))[1] == RingDrop(SnapshotId(4))
    coordinator.leave(FIRST)
    with pytest.raises(TransientError, match="worker-0: it ended"):
        await asyncio.wait_for(saving, 10)


def test_what_was_cut_and_trained_is_reported_before_where_the_worker_stands() -> None:
    applied = Applied(ShardId(1), 0, 8)
    report = Report(
        progress=(Progress(Task.TRAINING, applied, version=3),),
        ring=RingReport(entered=2),
        ring_cuts=(RingCut(SnapshotId(5), 3),),
    )
    assert [type(event) for event in events_of(FIRST, report, 1.0)] == [
        SnapshotCut,
        ProgressReported,
        RingReported,
    ]


@pytest.mark.parametrize(
    "report",
    [
        Report(ring=RingReport(True, 3, 4, True, "a peer closed the connection")),
        Report(ring_cuts=(RingCut(SnapshotId(0), 0),)),
        Report(
            ring_saves=(
                RingSaved(
                    SnapshotId(2),
                    "there",
                    7,
                    (WrittenFile("a.bin", 10, "crc32c:0a0b0c0d"),),
                    "{}",
                    3,
                    "no",
                    1.5,
                ),
            )
        ),
    ],
)
def test_reports_of_a_ring_survive_the_wire(report: Report) -> None:
    assert messages.report_from_wire(messages.report_to_wire(report, 1)) == report


@pytest.mark.parametrize(
    "order",
    [
        RingGeneration(3, ("worker-0", "worker-2"), (1,), 7, "", 4711, "g3-abc"),
        RingGeneration(1, ("worker-0",), (), 1, "c/version-3"),
        RingSave(SnapshotId(0), "d"),
        RingDrop(SnapshotId(0)),
    ],
)
def test_orders_of_a_ring_survive_the_wire(order: Order) -> None:
    assert messages.order_from_wire(messages.order_to_wire(order)) == order


@pytest.mark.parametrize(
    "item",
    [
        WorkItem(
            1, Lease(Task.TRAINING, Shard(ShardId(3), "a", 0, 9), 0, order_seed=5, limit=8), 4, 2.0
        ),
        WorkItem(2, None, mark=Barrier.PAUSE),
        WorkItem(3, None, mark=Barrier.CHECKPOINT, snapshot=SnapshotId(0)),
    ],
)
def test_items_of_a_ring_survive_the_wire(item: WorkItem) -> None:
    assert messages.lease_answer_from_wire(messages.lease_answer_to_wire(item)) == item


def test_a_form_that_names_a_holder_beyond_its_members_is_nonsense() -> None:
    with pytest.raises(ValueError, match="take the weights"):
        messages.order_from_wire(messages.order_to_wire(RingGeneration(3, ("worker-0",), (1,), 7)))
