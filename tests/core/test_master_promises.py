"""Nothing but the user's own error or the user's own limit ends a job, and nothing is lost
unsaid.
"""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.errors import ExitCode
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, SnapshotId
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

STRANDED = ExitStatus(
    exit_code=ExitCode.UNAVAILABLE,
    log_tail="TransientError: pull: gave up after 600 s: ps-0 is away",
)


def test_sixty_workers_that_are_killed_at_once_do_not_end_the_job() -> None:
    b = Bench.running(60, num_workers=60)
    b.tick(5.0)
    for index in range(60):
        b.die(b.worker(index))
    assert b.state.status().phase == "working" and b.state.status().exit_code is None
    b.tick(10.0)
    assert sum(process.name == "worker-60" for process in b.state.status().processes) == 1, (
        "others come in their place"
    )


def test_a_server_that_somebody_else_stops_costs_nothing_and_has_left() -> None:
    b = Bench.running(num_workers=1)
    for incarnation in range(20):
        b.die(b.ps(0, incarnation), ExitStatus(exit_code=ExitCode.DRAINED))
        b.tick(30.0)
        b.attach(b.ps(0, incarnation + 1))
    assert b.state.status().exit_code is None
    assert b.said("ps-0 ended: left gracefully") and not b.said("drained")


def test_workers_that_gave_up_waiting_for_a_server_cost_nothing_while_it_is_away() -> None:
    b = Bench.running(2, num_workers=2, num_ps_pods=1)
    lease = b.lease(0)
    b.tick(5.0)
    b.die(b.ps(0))
    dead = 0
    for _ in range(100):
        b.tick(600.0)
        index = max(
            int(process.name.split("-")[1])
            for process in b.state.status().processes
            if process.role == "worker"
        )
        b.attach(b.worker(index))
        b.tick(600.0)
        b.die(b.worker(index), STRANDED)
        dead += 1
    assert dead == 100 and b.state.status().exit_code is None
    assert not b.state.status().parked, f"shard {present(lease.shard).id} is not blamed"
    causes = {command.cause for command in b.of(c.Announce) if command.cause}
    assert "stranded" in causes


def parked_once() -> str:
    """The ledger of a job that has given up its first shard, within its limit."""
    b = Bench.running(max_failed_shards=1, max_relaunches=9)
    for attempt in range(3):
        lease = b.lease(attempt)
        b.put(
            e.TaskFailed(
                0,
                b.worker(attempt),
                lease.task,
                present(lease.shard).id,
                lease.attempt,
                "ValueError: no",
            )
        )
        b.fenced(attempt, None)
        b.die(b.worker(attempt), ExitStatus(exit_code=ExitCode.USER_ERROR))
        b.attach(b.worker(attempt + 1))
    assert len(b.state.status().parked) == 1
    return b.state.ledger_json()


def test_a_shard_that_was_given_up_before_a_resume_still_counts_for_the_limit() -> None:
    ledger = parked_once()
    within = Bench(max_failed_shards=1)
    within.start(ledger=ledger)
    (story,) = within.state.status().parked
    assert "failed 3 times" in story and within.state.status().exit_code is None
    strict = Bench()
    strict.start(ledger=ledger)
    assert strict.state.status().exit_code == ExitCode.JOB_FAILED
    assert "--max-failed-shards 0" in present(strict.state.status().outcome)


def test_time_in_which_the_master_stood_still_does_not_count_as_a_slow_start() -> None:
    b = Bench(num_workers=6)
    b.start()
    for index in range(6):
        b.put(e.ProcessSeen(0, b.worker(index), True, "here", ""))
    b.t += 400.0
    b.put(e.Tick(0, 399.0))
    assert not b.of(c.StopProcess), b.of(c.StopProcess)
    b.attach(b.ps(0), *(b.worker(index) for index in range(6)))
    b.tick(1.0)
    assert b.state.status().scale.observed == 6


def test_a_checkpoint_of_the_version_of_the_last_one_is_a_new_one() -> None:
    """A master that leaves waits for the checkpoint that it asked for, also if nothing was learnt
    since the last.
    """
    b = Bench.running()
    b.progress(0, b.lease(), 8, version=1)
    for round_ in range(2):
        b.tick(10.0)
        b.put(e.CheckpointRequested(0))
        snapshot = b.cut(1)
        b.put(e.SnapshotSaved(0, SnapshotId(snapshot), 1, "version-1", 10 + round_))
    (only,) = b.state.status().checkpoints
    assert (only.at_s, only.bytes) == (20.0, 11)


def test_training_that_was_ended_early_does_not_begin_again_with_a_resume() -> None:
    b = Bench.running(num_epochs=3)
    held = b.lease()
    b.put(e.WorkerStopRequested(0, b.worker(0), "it is good enough"))
    b.finish(0, held)
    again = Bench(num_epochs=3)
    again.start(ledger=b.state.ledger_json())
    again.tick(1.0)
    assert again.state.status().phase != "working", "two more epochs were not wanted"
    assert again.total["lost"] == 0


def test_rounds_of_evaluation_continue_counting_after_a_resume() -> None:
    b = Bench.running(validation_data="v", evaluation_steps=1)
    b.progress(0, b.lease(), 8, version=1)
    assert b.of(c.TakeSnapshot), "round 0 is open"
    again = Bench(validation_data="v", evaluation_steps=1)
    again.up(0, ledger=b.state.ledger_json(), version=1)
    again.attach(again.worker(1))
    again.progress(1, again.lease(1), 16, version=2)
    again.cut(2)
    assert again.said("evaluation round 1 begins")


def test_a_silent_worker_that_holds_nothing_is_fenced_all_the_same() -> None:
    """It may wake up with a push of long ago."""
    b = Bench.running(2, num_workers=2)
    b.put(e.ProcessSilent(0, b.worker(1), 10.0))
    assert [fence.worker for fence in b.of(c.FenceWorker)] == [b.worker(1)]


def test_a_worker_whose_leases_were_voided_may_give_them_back_and_continue() -> None:
    b = Bench.running(num_epochs=2)
    held = b.lease()
    b.put(e.WorkerStopRequested(0, b.worker(0), "it is good enough"))
    assert b.of(c.RevokeLeases)
    b.put(e.LeaseReturned(0, b.worker(0), Applied(present(held.shard).id, held.attempt, 8)))
    assert not b.of(c.FenceWorker), "it lives: whatever it pushes next must be taken"
    assert [
        process.state for process in b.state.status().processes if process.role == "worker"
    ] == ["ready"]


def test_a_ledger_that_does_not_add_up_fails_the_job() -> None:
    """A bug of ours must not look like success: what is lost is computed, not assumed."""
    b = Bench.running()
    lease = b.lease()
    present(b.state._context.work).counts[0].expected += 5
    b.finish(0, lease)
    b.train_all()
    assert b.state.status().exit_code == ExitCode.JOB_FAILED
    assert "5 records neither trained nor skipped" in present(b.state.status().outcome)


def test_a_slow_first_batch_gives_the_next_worker_twice_the_time() -> None:
    """Nobody knows yet how long a batch takes: a model that needs ten minutes to compile is not
    relaunched for ever.
    """
    b = Bench.running(stall_seconds=0)
    for index, limit_s in enumerate((300.0, 600.0, 1200.0)):
        b.lease(index)
        b.tick(limit_s - 1.0)
        assert b.state.status().processes[-1].state == "ready", limit_s
        b.tick(2.0)
        assert b.said(f"the limit is {limit_s:.0f} s")
        b.fenced(index, None)
        b.attach(b.worker(index + 1))


def test_a_failure_that_was_reported_is_not_held_against_what_else_the_worker_had() -> None:
    b = Bench.running(
        2,
        validation_data="v",
        evaluation_steps=1,
        records_per_task=8,
        max_relaunches=0,
        num_workers=2,
    )
    b.progress(0, b.lease(0), 8, version=1, done=True)
    b.cut(1)
    first, second = b.lease(0), b.lease(0)
    assert (first.round, second.round) == (0, 0)
    b.put(
        e.TaskFailed(
            0, b.worker(0), first.task, present(first.shard).id, first.attempt, "ValueError: no"
        )
    )
    b.die(b.worker(0), ExitStatus(exit_code=ExitCode.USER_ERROR, log_tail="ValueError: no"))
    b.fenced(0, None)
    assert b.state.status().exit_code is None
    blamed = {
        piece.shard.id: len(piece.failures)
        for piece in present(b.state._evaluation.round).ledger.returned
    }
    assert blamed == {present(first.shard).id: 1, present(second.shard).id: 0}


def test_reports_of_a_failed_worker_do_not_make_its_end_another_failure() -> None:
    """A callback of it raised: that is one failure, and the shard that it was at has nothing to do
    with it.
    """
    b = Bench.running(max_relaunches=1)
    lease = b.lease()
    b.put(e.TaskFailed(0, b.worker(0), None, None, 0, "ValueError: no"))
    b.progress(0, lease, 8)
    b.die(b.worker(0), ExitStatus(exit_code=ExitCode.USER_ERROR, log_tail="ValueError: no"))
    b.fenced(0, Applied(present(lease.shard).id, lease.attempt, 8))
    assert b.state.status().exit_code is None
    assert [
        (piece.offset, piece.failures) for piece in present(b.state._context.work).returned
    ] == [(8, [])]


def test_a_worker_whose_start_hangs_is_replaced_at_last_but_not_while_a_server_is_away() -> None:
    """It tells that it lives, asks for no work and holds none: nothing else would ever end that
    wait.
    """
    b = Bench()
    b.start()
    b.attach(b.ps(0))
    b.put(e.ProcessAttached(0, b.worker(0), "", "", None, starting=True))
    b.die(b.ps(0))
    b.tick(5000.0)
    assert not b.of(c.StopProcess)
    b.attach(b.ps(0, 1))
    b.tick(1790.0)
    assert not b.of(c.StopProcess)
    b.tick(20.0)
    assert [stop.name for stop in b.of(c.StopProcess)] == [b.worker(0)]
    assert b.said("importing TensorFlow has taken 1810 s; the limit is 1800 s")
    assert b.state.status().exit_code is None
