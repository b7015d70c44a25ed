"""Who gets which lease, what counts of what they say, and what becomes of the work of those who are
gone.
"""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, ShardId, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

USER_ERROR = ExitStatus(exit_code=64, log_tail="ValueError: no")


def test_nothing_is_leased_before_every_server_is_there() -> None:
    job = Bench(num_ps_pods=2)
    job.start()
    job.attach(job.ps(0), job.worker(0))
    assert "ps-1" in job.refused()
    job.attach(job.ps(1))
    assert job.lease().task is Task.TRAINING


def test_a_worker_has_two_leases_at_most() -> None:
    job = Bench.running()
    first = job.lease()
    job.lease()
    assert "2 leases" in job.refused()
    job.finish(0, first)
    job.lease()


def test_a_worker_that_nobody_knows_or_that_was_given_up_is_told_so() -> None:
    job = Bench.running()
    lease = job.lease()
    job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    for name in (job.worker(0), job.worker(7), job.ps(0)):
        (command,) = job.put(e.LeaseRequested(0, name))
        assert isinstance(command, c.RevokeLeases)
    job.progress(0, lease, 8)
    assert job.total["trained"] == 0
    assert not job.state.may_attach(job.worker(0))
    assert not job.state.may_attach(job.worker(7))


def test_a_late_or_repeated_report_counts_nothing() -> None:
    job = Bench.running(2, num_workers=2)
    lease = job.lease(0)
    for _ in range(3):
        job.progress(0, lease, 8)
    job.progress(1, lease, 16)
    assert job.total["trained"] == 8
    job.finish(0, lease)
    job.finish(0, lease)
    assert job.total["trained"] == 16


def test_the_rest_of_a_killed_workers_shard_is_leased_at_the_offset_that_all_servers_have() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=2)
    lease = job.lease(0)
    job.progress(0, lease, 4)
    commands = job.die(job.worker(0))
    assert job.of(c.FenceWorker, commands) == [c.FenceWorker(job.worker(0))]
    assert job.of(c.StartProcess, commands) == [c.StartProcess(job.worker(2), 0.0)]
    assert any("reconciling" in reason for reason in job.state.status().waiting)
    applied = Applied(present(lease.shard).id, 0, 8)
    job.fenced(0, applied, Applied(present(lease.shard).id, 0, 4))
    again = job.lease(1)
    assert (again.shard, again.attempt, again.offset) == (lease.shard, 1, 4)
    assert (job.total["trained"], job.total["repeated"]) == (4, 4)
    job.fenced(0, applied, applied)
    assert (job.total["trained"], job.total["repeated"]) == (4, 4)


def test_an_unanswered_fence_is_asked_for_again() -> None:
    job = Bench.running()
    job.lease()
    job.die(job.worker(0))
    assert job.of(c.FenceWorker, job.tick(29)) == []
    assert job.of(c.FenceWorker, job.tick(2)) == [c.FenceWorker(job.worker(0))]


def test_a_draining_worker_gives_back_its_leases_and_is_settled_by_one_fence() -> None:
    job = Bench.running(2, num_workers=2)
    first, second = job.lease(0), job.lease(0)
    returned = [Applied(present(first.shard).id, 0, 8), Applied(present(second.shard).id, 0, 0)]
    assert job.of(c.FenceWorker, job.put(e.LeaseReturned(0, job.worker(0), returned[0]))) == []
    assert job.of(c.FenceWorker, job.put(e.LeaseReturned(0, job.worker(0), returned[1]))) == [
        c.FenceWorker(job.worker(0))
    ]
    assert "draining" in job.refused(0)
    job.fenced(0, returned[0])
    job.die(job.worker(0), ExitStatus(exit_code=66))
    again = job.lease(1)
    assert (again.shard, again.offset, again.attempt) == (first.shard, 8, 1)
    assert job.total["repeated"] == 0
    assert next(p for p in job.state.status().processes if p.name == "worker-0").cause == "drained"


def test_a_lease_that_never_reached_its_worker_goes_back_and_the_worker_continues() -> None:
    job = Bench.running()
    lease = job.lease()
    commands = job.put(
        e.LeaseReturned(0, job.worker(0), Applied(present(lease.shard).id, 0, 0), taken=False)
    )
    assert job.of(c.FenceWorker, commands) == []
    again = job.lease()
    assert (again.shard, again.attempt) == (lease.shard, 1)


def test_a_worker_without_progress_is_replaced_after_ten_times_the_usual() -> None:
    job = Bench.running(2, num_workers=2, records_per_task=8)
    # The first report of each worker includes its compilation and is no measure.
    for index in (0, 1, 0, 1):
        lease = job.lease(index)
        job.t += 5
        job.finish(index, lease)
    lease = job.lease(0)
    assert job.of(c.StopProcess, job.tick(49)) == []
    commands = job.tick(2)
    (stop,) = job.of(c.StopProcess, commands)
    assert (stop.name, stop.grace_s) == (job.worker(0), 0.0)
    assert "no progress for 51 s" in stop.reason
    assert job.of(c.FenceWorker, commands)
    assert job.of(c.StartProcess, commands)[0].name == job.worker(2)
    job.fenced(0, None)
    assert job.lease(1).shard == lease.shard
    job.progress(0, lease, 8)
    job.die(job.worker(0))
    gone = next(p for p in job.state.status().processes if p.name == "worker-0")
    assert (gone.state, gone.cause) == ("ended", "straggler")


def test_nobody_is_a_straggler_while_a_server_is_away_or_the_master_was_stopped() -> None:
    job = Bench.running()
    job.lease()
    job.die(job.ps(0))
    assert job.of(c.StopProcess, job.tick(1000)) == []
    job.attach(job.ps(0, 1))
    assert job.of(c.StopProcess, job.tick(200)) == []
    job.t += 1000
    assert job.of(c.StopProcess, job.put(e.Tick(0, stalled_s=1000.0))) == []
    assert job.of(c.StopProcess, job.tick(301))


def test_a_shard_whose_code_fails_three_times_fails_the_job_with_all_reasons() -> None:
    job = Bench.running(num_workers=1)
    for attempt in range(3):
        lease = job.lease(attempt)
        assert lease.attempt == attempt
        job.put(
            e.TaskFailed(
                0,
                job.worker(attempt),
                Task.TRAINING,
                present(lease.shard).id,
                attempt,
                f"m.py:7: reason {attempt}",
            )
        )
        job.die(job.worker(attempt), USER_ERROR)
        job.fenced(attempt, None)
        job.attach(job.worker(attempt + 1))
    job.tick(31)
    assert job.end.exit_code == 1
    assert all(f"m.py:7: reason {attempt}" in job.end.message for attempt in range(3))
    assert "--max-failed-shards 0" in job.end.message


def test_a_shard_that_kills_its_workers_is_parked_and_the_rest_is_trained() -> None:
    job = Bench.running(max_failed_shards=1, max_relaunches=0)
    bad = None
    for index in range(30):
        if job.state.status().phase != "working":
            break
        lease = job.lease(index)
        bad = bad or lease.shard
        if lease.shard == bad:
            job.die(job.worker(index), ExitStatus(signal=11))
            job.fenced(index, None)
        else:
            job.finish(index, lease)
            job.die(job.worker(index), ExitStatus(exit_code=66))
        job.attach(job.worker(index + 1))
    assert job.total == {
        "expected": 64,
        "trained": 48,
        "repeated": 0,
        "bad": 0,
        "lost": 16,
        "left": 0,
    }
    (story,) = job.state.status().parked
    assert story.count("SIGSEGV") == 1 and story.count(": the same") == 2


def test_kills_from_outside_never_park_a_shard() -> None:
    job = Bench.running()
    for index in range(10):
        lease = job.lease(index)
        assert lease.attempt == index
        job.die(job.worker(index))
        job.fenced(index, None)
        job.attach(job.worker(index + 1))
    assert job.state.status().parked == ()


def test_a_fatal_failure_ends_the_job_at_once() -> None:
    job = Bench.running()
    job.put(
        e.TaskFailed(0, job.worker(0), None, None, 0, "loss is NaN in layer dense_1", fatal=True)
    )
    assert job.state.status().exit_code == 1
    assert "dense_1" in present(job.state.status().outcome)


def test_failures_outside_of_shards_spend_max_relaunches() -> None:
    job = Bench.running(max_relaunches=1)
    job.put(e.TaskFailed(0, job.worker(0), None, None, 0, "no module named x"))
    job.die(job.worker(0), USER_ERROR)
    assert job.state.status().exit_code is None
    job.attach(job.worker(1))
    job.die(job.worker(1), USER_ERROR)
    assert "failed 2 times (--max-relaunches 1)" in present(job.state.status().outcome)


def test_an_error_that_a_worker_has_reported_is_said_once() -> None:
    job = Bench.running()
    job.put(e.TaskFailed(0, job.worker(0), None, None, 0, "ValueError: no"))
    job.die(job.worker(0), USER_ERROR)
    job.die(job.worker(1), USER_ERROR)  # It could not report it.
    saying = [line for line in job.of(c.Announce) if "ValueError: no" in line.text]
    assert [str(line.process) for line in saying] == ["worker-0", "worker-1"]
    assert job.said("worker-0 ended: user error")


def test_unreadable_records_are_counted_and_fail_the_job_above_the_limit() -> None:
    job = Bench.running(max_bad_records=2)
    lease = job.lease()
    job.progress(0, lease, 8, bad_records=2, bad_examples=("t.csv:17: expected 5 fields, got 4",))
    assert (job.total["trained"], job.total["bad"]) == (6, 2)
    job.progress(0, lease, 16, bad_records=3, bad_examples=("t.csv:99: x",))
    assert "t.csv:17: expected 5 fields, got 4" in present(job.state.status().outcome)
    assert "3 records" in present(job.state.status().outcome)


def test_unreadable_records_that_are_reported_again_count_once() -> None:
    job = Bench.running(max_bad_records=3)
    lease = job.lease()
    for offset, bad in ((8, 2), (8, 2), (16, 3)):
        job.progress(0, lease, offset, bad_records=bad)
    assert (job.total["trained"], job.total["bad"]) == (13, 3)


@pytest.mark.parametrize(
    ("offsets", "trained", "bad", "repeated"),
    [((8, 8), 7, 1, 0), ((16, 16), 13, 3, 0), ((8, 16), 7, 1, 6)],
)
def test_what_servers_have_of_a_lost_worker_is_not_all_trained_where_it_foretold_bad_records(
    offsets: tuple[int, ...], trained: int, bad: int, repeated: int
) -> None:
    job = Bench.running(num_ps_pods=2, max_bad_records=9)
    lease = job.lease()
    job.progress(0, lease, 8, bad_records=1)
    job.progress(0, lease, 8, bad_records=3, ahead=True)
    job.die(job.worker(0))
    job.fenced(0, *(Applied(present(lease.shard).id, lease.attempt, offset) for offset in offsets))
    total = job.total
    assert (total["trained"], total["bad"], total["repeated"]) == (trained, bad, repeated)


@pytest.mark.parametrize(
    ("offset", "trained", "bad"), [(8, 7, 1), (16, 15, 1), (24, 20, 4), (32, 28, 4)]
)
def test_bad_records_of_several_unfinished_batches_are_told_apart(
    offset: int, trained: int, bad: int
) -> None:
    """In synchronous steps several batches of a worker may wait for their outcome."""
    job = Bench.running(max_bad_records=9, records_per_task=32)
    lease = job.lease()
    job.progress(0, lease, 0, bad_records=1, ahead=True)
    job.progress(0, lease, 16, bad_records=4, ahead=True)
    assert (job.total["trained"], job.total["bad"]) == (0, 0)
    job.die(job.worker(0))
    job.fenced(0, Applied(present(lease.shard).id, lease.attempt, offset))
    assert (job.total["trained"], job.total["bad"]) == (trained, bad)


def test_a_shard_that_ends_short_is_no_success() -> None:
    job = Bench.running()
    lease = job.lease()
    job.progress(0, lease, 8, done=True)
    again = job.lease()
    assert (again.shard, again.offset, again.attempt) == (lease.shard, 8, 1)


def test_losses_are_recorded_about_once_a_second() -> None:
    job = Bench.running(records_per_task=64)
    lease = job.lease()
    for step in range(1, 9):
        job.t += 0.4
        job.progress(0, lease, 8 * step, loss=1.0 / step)
    rows = job.of(c.RecordMetrics)
    assert [row.records for row in rows] == [8, 32, 56]
    assert rows[0].values == {"loss": 1.0}
    assert job.state.status().loss == 1.0 / 8


def test_the_loss_that_training_ends_with_is_recorded_however_soon_it_came_after_another() -> None:
    job = Bench.running(records_per_task=64)
    lease = job.lease()
    for step in range(1, 5):
        job.t += 0.3
        job.progress(0, lease, 16 * step, loss=1.0 / step, done=step == 4)
    assert job.state.status().phase != "working"
    rows = job.of(c.RecordMetrics)
    assert [(row.records, row.values) for row in rows] == [
        (16, {"loss": 1.0}),
        (64, {"loss": 0.25}),
    ]
    job.put(e.StopRequested(job.t, "enough"))
    assert len(job.of(c.RecordMetrics)) == 2, "once"


def test_prediction_counts_what_was_reported_without_asking_servers() -> None:
    job = Bench.running(2, action=Action.PREDICT, num_workers=2)
    lease = job.lease(0)
    assert lease.task is Task.PREDICTION
    job.progress(0, lease, 8)
    assert job.of(c.FenceWorker, job.die(job.worker(0))) == []
    again = job.lease(1)
    assert (again.shard, again.offset) == (lease.shard, 8)
    job.finish(1, again)
    job.finish(1, job.lease(1))
    assert job.of(c.WorkFinished)
    assert (job.total["trained"], job.total["lost"]) == (32, 0)


def test_stop_asked_by_a_callback_leaves_what_nobody_has_begun() -> None:
    job = Bench.running(2, num_workers=2, num_epochs=3)
    mine, other = job.lease(0), job.lease(1)
    job.finish(0, mine)
    job.progress(1, other, 8)
    job.tick(5)
    commands = job.put(e.WorkerStopRequested(0, job.worker(0), "16 steps are done"))
    assert job.of(c.RevokeLeases, commands) == [
        c.RevokeLeases(job.worker(1), "ending training early")
    ]
    assert job.of(c.AskState, commands) == [c.AskState(job.worker(1))]
    still = Applied(present(other.shard).id, other.attempt, 8)
    job.put(e.StateReported(0, job.worker(1), (still,), "", ""))
    job.progress(1, other, 16)
    assert not job.of(c.AskState, job.tick(2))
    assert c.AskState(job.worker(1)) in job.tick(1), "it held its shard yet"
    assert not job.said("revoked shard")
    job.put(e.StateReported(0, job.worker(1), (), "", ""))
    assert job.said("1 revoked shard returned")
    assert job.total == {
        "expected": 192,
        "trained": 32,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 160,
    }
    assert job.of(c.WorkFinished)
    job.put(e.WorkerStopRequested(0, job.worker(1), "again"))


def test_a_report_for_another_task_or_shard_changes_nothing() -> None:
    job = Bench.running()
    lease = job.lease()
    for task in (Task.PREDICTION, Task.EVALUATION):
        job.put(e.ProgressReported(0, job.worker(0), task, Applied(present(lease.shard).id, 0, 8)))
    job.put(e.ProgressReported(0, job.worker(0), Task.TRAINING, Applied(ShardId(999), 0, 8)))
    job.put(e.LeaseReturned(0, job.worker(3), Applied(present(lease.shard).id, 0, 8)))
    job.put(e.ExportFinished(0, job.worker(0), "x"))
    job.put(e.SummaryReported(0, job.worker(0), 0, {}))
    assert job.total["trained"] == 0


def test_a_few_finished_shards_of_a_few_epochs_are_events_with_their_times() -> None:
    job = Bench.running(num_epochs=4)
    done = set()
    while job.state.status().phase == "working":
        lease = job.lease(0)
        job.t += 3
        job.finish(0, lease)
        done.add((lease.epoch, present(lease.shard).id))
    assert done == {(number // 4, number) for number in range(16)}
    told = [one.details for one in job.of(c.Announce) if one.kind == "shard"]
    samples = [(epoch, 4 * epoch + number) for epoch in (0, 1, 2) for number in (0, 1, 2)]
    assert sorted((one["epoch"], one["shard"]) for one in told) == samples
    assert {(one["step"], one["seconds"]) for one in told} == {("ended", 3.0)}
