"""What of the ring's work is booked, what comes back, and which checkpoints are tried again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl.errors import ExitCode
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, Barrier, Task, WorkItem
from tests.core.ring_world import TRAIN, VALIDATION, RingWorld, make_spec
from tests.present import present

pytestmark = pytest.mark.core


def started(**flags: Any) -> RingWorld:
    world = RingWorld(make_spec(shuffle="none", evaluation_steps=0, **flags))
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    return world


def turn_to(world: RingWorld, version: int) -> None:
    while world.newest.version < version:
        world.turn()


def until_a_copy_is_made(world: RingWorld) -> None:
    """And not told of yet."""
    for _ in range(1000):
        while world.pending:
            world.deliver()
        for worker in list(world.workers.values()):
            world.act(worker)
            if world.copies:
                return
        world.enter()
        world.step()
        world.tick(0.1)
    raise AssertionError("no checkpoint is made")


def ask(world: RingWorld, number: int) -> WorkItem:
    """The ring's first member asks for an item."""
    (granted,) = world.put(e.LeaseRequested(0, world.ring.members[0], number, False))
    assert isinstance(granted, c.GrantItem)
    return granted.item


def tell(world: RingWorld, item: WorkItem, offset: int) -> int:
    """The ring's first member tells how far it came in an item; returns how many records are
    trained then.
    """
    applied = Applied(present(present(item.lease).shard).id, present(item.lease).attempt, offset)
    world.put(e.ProgressReported(0, world.ring.members[0], Task.TRAINING, applied))
    return trained(world)


def trained(world: RingWorld) -> int:
    return world.state.receipt().total.trained


def marked(world: RingWorld) -> set[int]:
    """Numbers of checkpoint marks that members know of."""
    return {
        item.number
        for worker in world.workers.values()
        for item in worker.items.values()
        if item.mark is Barrier.CHECKPOINT
    }


def saved(world: RingWorld) -> list[int]:
    return [event.version for event in world.handled if isinstance(event, e.SnapshotSaved)]


def kill_all(world: RingWorld) -> None:
    for worker in list(world.workers.values()):
        world.kill(worker)


def test_more_than_was_handed_out_is_not_believed() -> None:
    world = started(num_workers=1, records_per_task=24, checkpoint_steps=2)
    while world.newest_ring is None:
        world.turn()
    item = ask(world, 1)
    assert (present(item.lease).limit, present(present(item.lease).shard).records) == (16, 24)
    assert tell(world, item, 24) == 16


def test_shards_that_a_stopped_ring_gives_back_keep_their_order() -> None:
    world = started(num_workers=2, records_per_task=24)
    turn_to(world, 1)
    first, second = present(ask(world, 1).lease).shard, present(ask(world, 2).lease).shard
    world.put(e.StopRequested(0, "enough"))
    world.run_out()
    pieces = json.loads(world.state.ledger_json())["pieces"]
    assert [piece["id"] for piece in pieces] == [present(first).id, present(second).id]
    assert trained(world) == pieces[0]["offset"] > 0


def test_a_checkpoint_that_went_with_all_members_is_made_at_the_same_step_again() -> None:
    world = started(num_workers=1, checkpoint_steps=4)
    while len(marked(world)) < 2:
        world.turn()
    assert saved(world) == [4]
    kill_all(world)
    while not world.rolled_back:
        world.turn()
    world.tick(6.0)
    world.run_out()
    assert world.rolled_back == 1
    assert saved(world)[:4] == [4, 4, 8, 12], (
        "what failed is tried again, then the steps count from there"
    )
    world.check_truth()


def test_a_copy_that_nobody_reports_is_a_failed_checkpoint_once_the_ring_is_past_it() -> None:
    world = started(num_workers=2, checkpoint_steps=4)
    until_a_copy_is_made(world)
    leader = world.workers[world.ring.members[0]]
    leader.reports = type(leader.reports)(
        told for told in leader.reports if not isinstance(told, e.SnapshotCut)
    )
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    assert saved(world)[-1] == 28, "the next ones are made"
    world.check_truth()


def test_a_last_copy_that_went_with_its_worker_is_made_by_another() -> None:
    world = started(num_workers=2, checkpoint_steps=100)
    until_a_copy_is_made(world)
    assert world.state.status().phase == "checkpointing"
    leader = world.workers[world.ring.members[0]]
    world.kill(leader)
    world.run_out()
    assert (world.finish.exit_code, world.rolled_back, saved(world)) == (ExitCode.DONE, 0, [28])
    world.check_truth()


@pytest.mark.parametrize("records", [40, 16])
def test_a_late_report_on_a_lease_from_before_all_weights_were_lost_is_ignored(
    records: int,
) -> None:
    """The lease was held at the checkpoint, or was fresh then."""
    world = started(num_workers=1, records_per_task=records, checkpoint_steps=2)
    while not saved(world) or world.newest.version < 3:
        world.turn()
    late = []
    for _ in range(2):
        turn_to(world, 3)
        late.append(WorkItem(0, present(world.newest.last)[0]))
        kill_all(world)
        while world.newest.version != 2:
            world.turn()
    again = present(ask(world, world.newest.number).lease)
    for item in late:
        assert (again.shard, again.offset) == (
            present(item.lease).shard,
            present(item.lease).offset,
        )
        assert tell(world, item, 8 + again.offset) == 16
    world.run_out()
    world.check_truth()


@pytest.mark.parametrize("records", [0, 24])
def test_with_virtual_workers_the_records_of_each_step_do_not_depend_on_the_members(
    records: int,
) -> None:
    def windows(workers: str, virtual: int) -> Any:
        flags: dict[str, int | str] = {
            "num_workers": workers,
            "virtual_workers": virtual,
            "records_per_task": records,
        }
        world = RingWorld(make_spec(shuffle="shards", **flags))
        world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
        world.run_out()
        return world.newest.windows

    assert windows("1", 4) == windows("2", 4) == windows("1:4", 4)
    if not records:  # small data is cut by the number of workers
        assert windows("1", 0) != windows("4", 0)
