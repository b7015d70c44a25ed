"""Shards as people page through them: each in one state, whatever happened to it; and workers
replaced as asked.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.job_choices import Shuffle
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.data.counts import ShardIds
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.pieces import Blame, Stage
from elasticdl.master.core.data.shard_list import (
    MOST_ROWS,
    ShardPage,
    ShardQuery,
    ShardState,
    shard_page,
)
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.shard import Applied, Source, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core
WORKERS = [ProcessName(Role.WORKER, index) for index in range(3)]


def make(shards: int, epochs: int = 1) -> Ledger:
    return Ledger(
        ShardPlan((Source("a", shards * 10),), 10, epochs, Shuffle.SHARDS, 5),
        ShardIds(),
        task=Task.TRAINING,
    )


def listed(ledger: Ledger, **wish: Any) -> ShardPage:
    return shard_page([ledger], ShardQuery(limit=MOST_ROWS, **wish), now_s=100.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "finish", "back", "fail", "settle", "close", "stop"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_shard_of_the_epoch_is_in_exactly_one_state(steps: list[tuple[str, int]]) -> None:
    ledger = make(8, epochs=2)
    for what, number in steps:
        held = list(ledger.held.values())
        match what:
            case "take":
                ledger.take(WORKERS[number % 3], 1.0)
            case "stop" if number == 0:
                ledger.stop()
            case _ if not held:
                continue
            case "finish":
                ledger.advance(held[number % len(held)], 10, 0)
                ledger.finish(held[number % len(held)])
            case "back":
                ledger.give_back(held[number % len(held)])
            case "fail":
                ledger.fail(held[number % len(held)], f"reason {number}")
            case "settle":
                ledger.settle(
                    WORKERS[number % 3], (None,), Blame("it died") if number % 2 else None
                )
            case "close":
                held[number % len(held)].stage = Stage.CLOSING
    page = listed(ledger)
    assert page.total == len(page.rows)
    here = [row.id for row in page.rows if row.epoch == ledger.epoch]
    assert len(here) == len(set(here))
    if ledger.counts and not ledger.stopped:
        assert set(here) == set(range(ledger.first_id, ledger.first_id + 8))
    by_state = [listed(ledger, state=state) for state in ShardState]
    assert tuple(row for state in by_state for row in state.rows) == page.rows
    assert sum(state.total for state in by_state) == page.total
    paged = [
        row
        for begin in range(0, page.total, 3)
        for row in shard_page([ledger], ShardQuery(None, begin, 3), 100.0).rows
    ]
    assert tuple(paged) == page.rows
    if not ledger.stopped:
        unfinished = sum(count.unfinished for count in ledger.counts)
        parked = len(ledger.parked)
        done = sum(row.state == "done" for row in page.rows)
        assert len([row for row in page.rows if row.state not in ("done", "parked")]) == unfinished
        assert done + parked + unfinished >= (8 if ledger.counts else 0)


def test_a_row_shows_owner_attempt_offset_age_and_the_last_problem() -> None:
    ledger = make(3)
    held = present(ledger.take(WORKERS[1], 40.0))
    ledger.advance(held, 4, 0)
    (row,) = listed(ledger, state=ShardState.LEASED).rows
    assert (row.owner, row.attempt, row.offset, row.age_s, row.problem) == (
        "worker-1",
        0,
        4,
        60.0,
        "",
    )
    ledger.fail(held, "<script>" + "x" * 9000)
    (row,) = listed(ledger, state=ShardState.RETRIED).rows
    assert (row.owner, row.attempt, row.offset, row.age_s) == ("", 1, 4, None)
    assert row.problem.startswith("<script>") and len(row.problem) == 500


def test_a_page_of_a_hundred_thousand_shards_costs_no_walk_through_all_of_them() -> None:
    ledger = make(100_000)
    for _ in range(2000):
        ledger.take(WORKERS[0], 0.0)
    begin_s = time.process_time()
    for offset in (0, 1000, 50_000, 97_000):
        page = shard_page([ledger], ShardQuery(ShardState.TODO, offset, 100), 1.0)
        assert page.total == 98_000 and len(page.rows) == 100
    # Each walk takes 0.2 s, the pages 0.01 s; more while lines are traced.
    assert time.process_time() - begin_s < 0.6


# a worker is replaced


def test_a_replaced_worker_drains_and_another_is_ordered_with_the_same_event() -> None:
    job = Bench.running(2, num_workers="1:2")
    lease = job.lease(0)
    commands = job.put(e.ReplaceRequested(0, job.worker(0)))
    (stop,) = job.of(c.StopProcess, commands)
    assert (stop.name, stop.reason) == (job.worker(0), "replaced on request") and stop.grace_s > 0
    assert [start.name for start in job.of(c.StartProcess, commands)] == [job.worker(2)]
    job.put(e.LeaseReturned(0, job.worker(0), Applied(present(lease.shard).id, lease.attempt, 8)))
    job.fenced(0, Applied(present(lease.shard).id, lease.attempt, 8))
    job.die(job.worker(0))
    job.attach(job.worker(2))
    again = job.lease(2)
    assert (present(again.shard).id, again.offset) == (present(lease.shard).id, 8)
    job.finish(2, again)
    job.train_all(2)
    assert job.total["lost"] == 0 and job.total["repeated"] == 0


def test_what_cannot_be_replaced_is_said_and_nothing_is_stopped() -> None:
    job = Bench.running(2, num_workers="1:2")
    job.put(e.ReplaceRequested(0, job.worker(0)))
    job.die(job.worker(0))
    for name, why in (
        (job.worker(0), "is already ended"),
        (job.worker(9), "is not a process of this job"),
        (job.ps(0), "is a parameter server"),
    ):
        assert why in present(job.state.why_not_replace(name))
        commands = job.put(e.ReplaceRequested(0, name))
        assert not job.of(c.StopProcess, commands) and why in job.of(c.Announce, commands)[0].text
    job.put(e.StopRequested(0, "enough"))
    why_not = present(job.state.why_not_replace(job.worker(2)))
    assert "would have no successor" in why_not or "already stopping" in why_not


def test_a_replacement_is_in_the_journal() -> None:
    event = e.ReplaceRequested(4.5, WORKERS[2])
    assert event_of(event_plain(event)) == event
