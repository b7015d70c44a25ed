"""A master of thousands of workers: an event costs what it changes, and a status is bounded."""

from __future__ import annotations

import random

import pytest

from bench.decisions import Decisions
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.job_status import JobStatus
from elasticdl.master.core import events
from elasticdl.master.core.data.leasing import Leasing
from elasticdl.master.core.state import JobState
from elasticdl.master.core.status_builder import MOST_LISTED
from tests.core.conftest import Bench
from tests.core.random_history import SPEC, Script

pytestmark = pytest.mark.core

FEW, MANY = 100, 1_000
GROWTH = 4.0
"""Noise of the machine; a scan of all workers at each event would be near ten times."""
EVENTS = ("start of a process, us", "lease, us", "report of a done shard, us")
LATE = "tick when all are late, maximum, ms"


@pytest.fixture(scope="module")
def growth() -> dict[str, float]:
    """How many times as much each decision costs with ten times the workers."""
    few, many = ([Decisions(workers).run() for _ in range(2)] for workers in (FEW, MANY))
    return {what: min(one[what] for one in many) / min(one[what] for one in few) for what in few[0]}


def test_an_event_costs_as_much_with_ten_times_the_workers(growth: dict[str, float]) -> None:
    assert max(growth[what] for what in EVENTS) < GROWTH


def test_a_tick_that_suspects_every_worker_does_not_compare_each_with_all_others(
    growth: dict[str, float],
) -> None:
    assert growth[LATE] < GROWTH * MANY / FEW


def test_a_status_lists_those_with_trouble_first_and_counts_all() -> None:
    job = Decisions(MOST_LISTED + 500)
    job.run()
    lost = ProcessName(Role.WORKER, MOST_LISTED + 400)
    job.state.handle(events.ProcessSilent(job.at_s + 1.0, lost, 10.0))
    status = job.state.status()
    names = [process.name for process in status.processes]
    assert len(names) == MOST_LISTED
    assert {"ps-0", str(lost)} <= set(names)
    assert names.index("worker-1") < names.index("worker-2"), "in the order of their starts"
    states = status.states["worker"]
    assert (states["lost"], states["ready"]) == (1, MOST_LISTED + 499)
    assert status.processes_left_out == 501 + status.states["worker"].get("requested", 0)
    assert JobStatus.from_json(status.to_json()).states == status.states


def test_a_status_says_once_why_all_idle_workers_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Bench.running(20, num_workers=20)
    for index in range(4):
        job.lease(index)
    reason, asked = Leasing.idle_reason, []

    def counted(leasing: Leasing) -> str:
        asked.append(leasing)
        return reason(leasing)

    monkeypatch.setattr(Leasing, "idle_reason", counted)
    waiting = job.state.status().waiting
    assert sum("is idle: all shards are leased" in why for why in waiting) == 16
    assert len(asked) == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_is_not_counted_one_by_one_is_right_at_every_event(seed: int) -> None:
    """Shortcuts of a status with thousands of workers, in random histories of a small job."""
    script, state = Script(random.Random(seed)), JobState(SPEC)
    processes, leasing = state._context.processes, state._parts.leasing
    idle = coming = 0
    for _ in range(300):
        script.heard(state.handle(script.next()))
        workers = processes.live_workers()
        up = [worker.name for worker in workers if worker.up]
        assert leasing.idle_workers() == [name for name in up if not leasing.leases_of(name)]
        assert processes.up_workers() == len(up)
        assert processes.all_up == all(one.up for one in processes.going.values())
        assert processes.some_coming == any(
            one.live and not one.up for one in processes.going.values()
        )
        idle, coming = idle + bool(leasing.idle_workers()), coming + processes.some_coming
    assert idle and coming
