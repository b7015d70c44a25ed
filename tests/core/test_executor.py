"""Whom the executor asks for each command of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.errors import ExitCode
from elasticdl.master.core import commands as do
from elasticdl.master.core.events import Event, LeaseRequested, ProcessEnded, SnapshotSaved, Tick
from elasticdl.master.driver import Driver
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.checkpoint_archive import SavedCheckpoint
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.rpc.conversation import Drain, Finish, Finished, Load, Restore, TellState, Wait
from elasticdl.shard import Lease, SnapshotId, Task, WorkItem

pytestmark = pytest.mark.core

WORKER, SERVER = ProcessName(Role.WORKER, 0), ProcessName(Role.PS, 0)
LEASE = Lease(Task.SUMMARY, None, 0)
ITEM = WorkItem(1, None)
RING = do.PublishRing(1, (WORKER,), (), 1)


class Asked:
    """Notes what is asked of it, and of its parts, by its dotted name."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, part: str) -> Asked:
        return Asked(f"{self._name}.{part}" if self._name else part, self._calls)

    def __call__(self, *given: Any, **named: Any) -> Asked:
        tasks = [one for one in given if isinstance(one, Coroutine)]
        for task in tasks:
            task.close()
        plain = [one for one in given if one not in tasks and not isinstance(one, Asked)]
        self._calls.append((self._name, *plain, *named.values()))
        return self

    def __contains__(self, name: object) -> bool:
        return name in (WORKER, SERVER)


def asked(command: do.Command) -> list[tuple[Any, ...]]:
    """Calls that carry out a command."""
    calls: list[tuple[Any, ...]] = []
    queue, gateway, deps = (cast("Any", Asked(name, calls)) for name in ("queue", "", "deps"))
    Executor(queue, gateway, cast("ExecutorDeps", deps)).carry_out(command)
    return [call for call in calls if not call[0].startswith("queue.at")]


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        (do.StartProcess(WORKER), [("queue.spawn", "start of worker-0")]),
        (do.FenceWorker(WORKER), [("queue.spawn", "fence of worker-0")]),
        (RING, [("ring.publish", RING)]),
        (do.WithdrawRing(1), [("ring.withdraw",)]),
        (do.LookAgain(2.0), [("queue.spawn", "ring check")]),
        (do.PublishServers(("a", "b"), 2), [("publish", ("a", "b"), 2)]),
        (do.TakeSnapshot(SnapshotId(3), do.Purpose.EXPORT), [("queue.spawn", "cut of view 3")]),
        (do.SaveSnapshot(SnapshotId(3), 4, "{}"), [("queue.spawn", "save of view 3")]),
        (do.DropSnapshot(SnapshotId(3)), [("ring.drop", 3)]),
        (do.KeepScale(1, 2), [("deps.archive.keep_scale", 1, 2)]),
        (do.KeepServers(3), [("deps.archive.keep_servers", 3)]),
        (
            do.PruneCheckpoints(7),
            [("deps.archive.prune", 7, ()), ("queue.spawn", "removal of old checkpoints")],
        ),
        (do.LoadServers((SERVER,), "d"), [("orders.put", SERVER, Load("d"))]),
        (do.RestoreServers((SERVER,), "d"), [("orders.put", SERVER, Restore("d"))]),
        (do.FinishServers((SERVER,)), [("orders.put", SERVER, Finish())]),
        (do.AskState(WORKER), [("orders.put", WORKER, TellState())]),
        (do.AskState(ProcessName(Role.WORKER, 7)), []),
        (
            do.GrantLease(WORKER, LEASE),
            [("throughput.granted", LEASE), ("leases.answer", WORKER, LEASE)],
        ),
        (do.GrantItem(WORKER, ITEM), [("give_item", WORKER, ITEM)]),
        (do.NoLeaseNow(WORKER, "idle"), [("leases.answer", WORKER, Wait("idle"))]),
        (do.WorkFinished(WORKER), [("leases.answer", WORKER, Finished())]),
        (
            do.StopProcess(WORKER, 5.0, "scaled"),
            [
                ("orders.put", WORKER, Drain("scaled", 5.0)),
                ("deps.launcher.stop", WORKER, 5.0, False),
                ("queue.spawn", "stop of worker-0"),
            ],
        ),
        (
            do.StopProcess(SERVER, 5.0, "scaled"),
            [("deps.launcher.stop", SERVER, 5.0, False), ("queue.spawn", "stop of ps-0")],
        ),
        (
            do.StopProcess(WORKER, 0.0, "stopped twice"),
            [
                ("orders.put", WORKER, Drain("stopped twice", 0.0)),
                ("deps.launcher.stop", WORKER, 0.0, False),
                ("queue.spawn", "stop of worker-0"),
            ],
        ),
    ],
)
def test_a_command_goes_to_who_carries_it_out(
    command: do.Command, calls: list[tuple[Any, ...]]
) -> None:
    assert asked(command) == calls


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (do.RunPreflight(), ["deps.preflight", "queue.spawn"]),
        (do.HurrySnapshot(SnapshotId(3)), ["deps.snapshots.hurry", "queue.spawn"]),
        (do.KeepSnapshots((SnapshotId(3),)), ["deps.snapshots.keep", "queue.spawn"]),
        (do.UnsealServers(SnapshotId(3)), ["deps.snapshots.unseal", "queue.spawn"]),
        (do.RevokeLeases(WORKER, "slow"), ["leases.revoked", "turns.revoked", "orders.put"]),
    ],
)
def test_what_takes_time_is_a_task(command: do.Command, names: list[str]) -> None:
    assert [call[0] for call in asked(command)] == names


def test_a_row_of_metrics_has_its_time_and_its_values() -> None:
    calls: list[tuple[Any, ...]] = []
    executor = Executor(
        cast("Any", Clocked()),
        cast("Any", Asked("", calls)),
        cast("ExecutorDeps", Asked("deps", calls)),
    )
    executor.carry_out(do.RecordMetrics("loss", 4, 64, {"loss": 0.5}))
    row = {"kind": "loss", "version": 4, "records": 64, "values": {"loss": 0.5}}
    assert calls == [("deps.metrics.append", {"at": 7.0, "at_s": 2.0, **row})]


def test_the_last_command_is_kept_for_the_driver() -> None:
    calls: list[tuple[Any, ...]] = []
    queue, gateway, deps = (cast("Any", Asked(name, calls)) for name in ("queue", "", "deps"))
    executor, end = Executor(queue, gateway, deps), do.FinishJob(ExitCode.DONE, "done")
    executor.carry_out(end)
    assert executor.finish == end


async def test_a_look_at_the_ring_is_a_tick() -> None:
    queue, nobody = EventQueue(ManualClock()), cast("Any", Asked("", []))
    Executor(queue, nobody, nobody).carry_out(do.LookAgain(0.0))
    async with asyncio.timeout(60):
        (entry,) = await queue.take()
    assert entry.event == Tick(0.0)
    await queue.close()


def test_a_command_that_nobody_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown command"):
        asked(do.Command())


async def test_a_task_that_fails_is_heard_of_before_later_events_and_others_are_not() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async def ends() -> None:
        pass

    queue = EventQueue(ManualClock())
    for work in (ends(), asyncio.sleep(600)):
        queue.spawn("work", work)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(queue._tasks) == 1, "nothing is kept of one that has ended"
    await queue.close()
    queue.post(Tick(1.0))
    (entry,) = await queue.take()
    assert entry.event == Tick(1.0)
    queue.spawn("fence", fails())
    for _ in range(3):
        await asyncio.sleep(0)
    queue.post(Tick(2.0))
    with pytest.raises(RuntimeError, match="fence failed: ValueError"):
        await queue.take()


@pytest.mark.parametrize("ring", [None, "the ring"])
async def test_a_cut_is_saved_from_the_ring_or_from_the_servers(ring: str | None) -> None:
    savers: list[Any] = []

    async def save(command: do.SaveSnapshot, saver: Any) -> SavedCheckpoint:
        savers.append(saver)
        return SavedCheckpoint("version-4", 100, "", 0.5)

    queue = EventQueue(ManualClock())
    parts: list[Any] = [
        queue,
        SimpleNamespace(ring=ring),
        SimpleNamespace(snapshots="the servers", archive=SimpleNamespace(save=save)),
    ]
    await Executor(*parts)._save(do.SaveSnapshot(SnapshotId(3), 4, "{}"))
    (entry,) = await queue.take()
    assert entry.event == SnapshotSaved(0.0, SnapshotId(3), 4, "version-4", 100, "", 0.5)
    assert savers == [ring or "the servers"]


async def test_a_look_at_the_ring_comes_not_before_its_time() -> None:
    queue, nobody = EventQueue(ManualClock()), cast("Any", Asked("", []))
    Executor(queue, nobody, nobody).carry_out(do.LookAgain(600.0))
    for _ in range(3):
        await asyncio.sleep(0)
    queue.post(Tick(9.0))
    assert [one.event for one in await queue.take()] == [Tick(9.0)]
    await queue.close()


ASKS, ENDED = LeaseRequested(1.0, WORKER), ProcessEnded(1.0, WORKER, ExitStatus())


@pytest.mark.parametrize(
    ("events", "appeared"), [([ASKS], False), ([ASKS, ENDED, ASKS], True), ([ENDED], True)]
)
async def test_workers_that_wait_are_asked_for_once_after_events_of_which_any_may_free_work(
    events: list[Event], appeared: bool
) -> None:
    calls: list[tuple[Any, ...]] = []
    queue = EventQueue(ManualClock())

    async def flush() -> None:
        calls.append(("flush",))

    journal = SimpleNamespace(append=lambda event: None, flush=flush)
    executor = SimpleNamespace(carry_out=lambda command: calls.append((command,)))
    core = SimpleNamespace(handle=lambda event: [event.at_s])
    parts: list[Any] = [core, journal, queue, Asked("", calls), executor]
    driver = Driver(*parts)
    handled = [queue.post(event) for event in events]
    await driver._handle(await queue.take())
    assert all(one.done() for one in handled)
    acts = [(1.0,)] * len(events)
    work = [("leases.work_appeared",)] * appeared
    assert calls == [("flush",), *acts, *work, ("decided",)]


async def test_events_are_taken_in_batches_that_are_not_too_long() -> None:
    queue = EventQueue(ManualClock())
    for number in range(501):
        queue.post(Tick(float(number)))
    assert len(await queue.take()) == 500
    assert len(await queue.take()) == 1


@pytest.mark.parametrize(("lasts_s", "stalled_s"), [(5.0, 5.0 - 1 / 64), (1 / 64, 0.0), (0.0, 0.0)])
async def test_ticks_are_numbered_and_say_for_how_long_the_master_stood_still(
    lasts_s: float, stalled_s: float
) -> None:
    clock, nobody, ticks = ManualClock(), cast("Any", None), iter(range(2))

    def tick() -> None:
        clock.advance(lasts_s)
        if next(ticks, None) is None:
            raise InterruptedError

    queue = EventQueue(clock)
    gateway = cast("Any", SimpleNamespace(tick=tick))
    driver = Driver(nobody, nobody, queue, gateway, nobody, tick_s=1 / 64)
    with pytest.raises(InterruptedError):
        await driver._keep_time()
    queue.post(ASKS)
    assert [one.event for one in await queue.take()] == [
        Tick(lasts_s, stalled_s, turn=1),
        Tick(2 * lasts_s, stalled_s, turn=2),
        ASKS,
    ]


class Clocked:
    """A queue's time."""

    def __init__(self) -> None:
        self.at_s: Callable[[], float] = lambda: 2.0
        self.clock = self
        self.wall_s: Callable[[], float] = lambda: 7.0
