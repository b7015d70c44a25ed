"""Evaluation at one stated version: each validation shard is added exactly once, whatever happens
to workers and servers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Applied, SnapshotId, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

ONE = {"auc": ((1.0, 2.0), (0.5,))}


def training(**flags: Any) -> Bench:
    return Bench.running(
        2, validation_data="v", evaluation_steps=10, num_workers=2, num_epochs=9, **flags
    )


def open_round(job: Bench, version: int = 10) -> SnapshotId:
    job.put(e.VersionAdvanced(0, version))
    snapshot = job.cut(version + 1)
    return snapshot


def test_a_round_begins_when_the_version_crosses_the_steps() -> None:
    job = training()
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 9))) == []
    (take,) = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 13)))
    assert take.purpose is c.Purpose.EVALUATION
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 27))) == []


def test_a_round_begins_when_a_worker_tells_of_the_version_before_a_heartbeat_does() -> None:
    job = training()
    lease = job.lease(0)
    (take,) = job.of(c.TakeSnapshot, job.progress(0, lease, 1, version=12))
    assert take.purpose is c.Purpose.EVALUATION
    assert job.state.status().version == 12


def test_a_round_begins_by_seconds_only_if_something_was_learned() -> None:
    job = Bench.running(validation_data="v", evaluation_seconds=60, num_workers=1)
    assert job.of(c.TakeSnapshot, job.tick(61)) == []
    job.put(e.VersionAdvanced(0, 5))
    assert len(job.of(c.TakeSnapshot)) == 1


def test_the_round_names_its_view_and_version_and_comes_before_training() -> None:
    job = training()
    snapshot = open_round(job)
    lease = job.lease(0)
    assert (lease.task, lease.snapshot, lease.version, lease.round) == (
        Task.EVALUATION,
        snapshot,
        11,
        0,
    )


def test_states_are_added_elementwise_and_once_then_one_worker_sums_up() -> None:
    job = training(records_per_task=8)
    snapshot = open_round(job)
    first, second = job.lease(0), job.lease(1)
    job.finish(0, first, metrics=ONE)
    job.finish(0, first, metrics=ONE)
    job.finish(1, second, metrics={"auc": ((10.0, 20.0), (0.25,))})
    lease = job.lease(1)
    assert lease.task is Task.SUMMARY
    assert json.loads(lease.payload) == {
        "round": 0,
        "version": 11,
        "epoch": 0,
        "metrics": {"auc": [[11.0, 22.0], [0.75]]},
        "history": [],
    }
    assert job.lease(0).task is Task.TRAINING
    job.put(e.SummaryReported(0, job.worker(0), 0, {"auc": 0.1}))
    assert job.of(c.RecordMetrics) == []
    commands = job.put(e.SummaryReported(0, job.worker(1), 0, {"auc": 0.9}))
    assert job.of(c.RecordMetrics, commands) == [c.RecordMetrics("evaluation", 11, 0, {"auc": 0.9})]
    assert c.DropSnapshot(snapshot) in commands
    assert job.state.status().metrics == {"auc": 0.9}


def test_metrics_are_in_one_order_however_they_arrive() -> None:
    job = training(records_per_task=8)
    open_round(job)
    for index in range(2):
        job.finish(index, job.lease(index), metrics=ONE)
    job.lease(1)
    job.put(e.SummaryReported(0, job.worker(1), 0, {"auc": 0.9, "loss": 0.5, "accuracy": 0.8}))
    (row,) = job.of(c.RecordMetrics)
    status = job.state.status()
    assert (
        list(row.values)
        == list(status.metrics)
        == list(status.rounds[0].values)
        == ["loss", "accuracy", "auc"]
    )
    assert job.said("loss 0.5, accuracy 0.8, auc 0.9")


def test_a_dead_workers_validation_shard_is_evaluated_again_from_its_beginning() -> None:
    job = training()
    open_round(job)
    lease = job.lease(0)
    job.progress(0, lease, 8)
    job.die(job.worker(0))
    again = job.lease(1)
    assert (again.shard, again.attempt, again.offset) == (lease.shard, 1, 0)
    job.finish(0, lease, metrics=ONE)
    job.finish(1, again, metrics=ONE)
    assert job.state.status().shards["evaluation"].done == 1


def test_a_dead_workers_summary_is_asked_of_another() -> None:
    job = training()
    open_round(job)
    job.finish(0, job.lease(0), metrics=ONE)
    assert job.lease(0).task is Task.SUMMARY
    job.die(job.worker(0))
    again = job.lease(1)
    assert (again.task, again.attempt) == (Task.SUMMARY, 1)


def one_round(job: Bench, number: int, version: int, by: int) -> dict[str, Any]:
    """A round that this worker sums up; the payload of its lease."""
    open_round(job, version)
    for index in (0, 1):
        while job.state.status().shards["evaluation"].todo:
            job.finish(index, job.lease(index), metrics=ONE)
    lease = job.lease(by)
    assert lease.task is Task.SUMMARY
    job.put(e.SummaryReported(0, job.worker(by), number, {"auc": version / 100}))
    return json.loads(lease.payload)


def test_one_worker_makes_all_summaries_as_long_as_it_lives_and_others_are_told_why() -> None:
    job = training(records_per_task=8)
    assert one_round(job, 0, 10, by=1)["history"] == []
    open_round(job, 20)
    for index in (0, 1):
        job.finish(index, job.lease(index), metrics=ONE)
    assert job.lease(0).task is Task.TRAINING
    assert job.lease(0).task is Task.TRAINING
    assert "2 leases" in job.refused(0)
    assert job.lease(1).task is Task.SUMMARY


def test_who_takes_over_the_summaries_is_told_the_rounds_before() -> None:
    job = training(records_per_task=8)
    lease = job.lease(0)
    job.progress(0, lease, 4, loss=0.5)
    one_round(job, 0, 10, by=1)
    job.die(job.worker(1))
    job.attach(job.worker(2))
    open_round(job, 20)
    for _ in range(2):
        job.finish(0, job.lease(0), metrics=ONE)
    payload = json.loads(job.lease(2).payload)
    assert payload["history"] == [{"round": 0, "epoch": 0, "values": {"auc": 0.1}, "loss": 0.5}]


def test_a_summary_does_not_wait_for_ever_for_a_worker_that_is_busy() -> None:
    job = training(records_per_task=8)
    one_round(job, 0, 10, by=1)
    open_round(job, 20)
    for _ in range(2):
        job.finish(0, job.lease(0), metrics=ONE)
    job.tick(299)
    lease = job.lease(0)
    assert lease.task is Task.TRAINING
    job.put(
        e.LeaseReturned(
            0, job.worker(0), Applied(present(lease.shard).id, lease.attempt, 0), taken=False
        )
    )
    job.tick(2)
    assert job.lease(0).task is Task.SUMMARY


def test_a_summary_that_hangs_is_asked_of_another_worker_after_five_minutes() -> None:
    job = training(stall_seconds=0)
    open_round(job)
    job.finish(0, job.lease(0), metrics=ONE)
    assert job.lease(0).task is Task.SUMMARY
    for _ in range(3):
        assert not job.of(c.StopProcess, job.tick(100))
    (stop,) = job.of(c.StopProcess, job.tick(1))
    assert stop.name == job.worker(0) and "no progress for 301 s" in stop.reason
    assert job.lease(1).task is Task.SUMMARY


def test_states_of_another_shape_fail_the_shard_and_not_the_sum() -> None:
    job = training(records_per_task=8)
    open_round(job)
    first, second = job.lease(0), job.lease(1)
    job.finish(0, first, metrics=ONE)
    job.finish(1, second, metrics={"auc": ((1.0,), (0.5,))})
    again = job.lease(1)
    assert (again.shard, again.attempt) == (second.shard, 1)
    job.finish(1, again, metrics={"other": ((1.0, 2.0), (0.5,))})
    third = job.lease(1)
    job.finish(1, third, metrics=ONE)
    assert json.loads(job.lease(0).payload)["metrics"] == {"auc": [[2.0, 4.0], [1.0]]}


def test_a_round_whose_view_goes_with_a_server_is_begun_again() -> None:
    job = training()
    open_round(job)
    lease = job.lease(0)
    commands = job.die(job.ps(0))
    assert job.of(c.RevokeLeases, commands)[0].worker == job.worker(0)
    job.attach(job.ps(0, 1), restored=None)
    job.finish(0, lease, metrics=ONE)
    commands = job.tick(6)
    (take,) = job.of(c.TakeSnapshot, commands)
    job.put(e.SnapshotCut(0, take.snapshot, 12, {}))
    assert job.lease(1).version == 12


def test_training_leases_of_a_revoked_worker_come_back_when_its_last_reports_are_in() -> None:
    job = training()
    trained = job.lease(0)
    open_round(job)
    job.lease(0)
    job.die(job.ps(0))
    job.progress(0, trained, 8)
    job.tick(10)
    assert job.total["trained"] == 8
    job.attach(job.ps(0, 1))
    job.progress(0, trained, 16)
    job.tick(10)
    assert job.state.status().shards["training"].leased == 1
    job.put(e.StateReported(0, job.worker(0), (), "", ""))
    assert job.state.status().shards["training"].leased == 0
    assert job.total["trained"] == 16


def test_a_cut_that_fails_or_is_never_answered_is_tried_again() -> None:
    job = training()
    job.put(e.VersionAdvanced(0, 10))
    job.put(e.SnapshotFailed(0, SnapshotId(0), "ps-0 did not answer"))
    assert job.said("ps-0 did not answer")
    assert len(job.of(c.TakeSnapshot)) == 1
    job.tick(6)
    assert len(job.of(c.TakeSnapshot)) == 2
    job.tick(121)
    assert job.said("no answer from the servers")
    commands = job.put(e.SnapshotCut(0, SnapshotId(1), 10, {}))
    assert job.of(c.DropSnapshot, commands) == [c.DropSnapshot(SnapshotId(1))]


def test_the_final_round_comes_after_all_training_and_before_the_end() -> None:
    job = Bench.running(validation_data="v", num_workers=1)
    job.train_all()
    assert job.state.status().phase == "evaluating"
    job.cut(8)
    job.finish(0, job.lease(), metrics=ONE)
    job.lease()
    assert not job.of(c.WorkFinished)
    job.put(e.SummaryReported(0, job.worker(0), 0, {"auc": 0.9}))
    assert job.of(c.WorkFinished)
    assert job.state.status().rounds[0].values == {"auc": 0.9}


def test_work_is_not_said_to_be_over_while_a_round_of_before_is_open() -> None:
    job = Bench.running(validation_data="v", evaluation_steps=10, num_workers=1)
    open_round(job)
    assert job.lease().round == 0
    for _ in range(4):
        job.finish(0, job.lease())
    assert job.total["left"] == 0
    assert job.state.status().phase == "working"
    assert not job.said("final evaluation begins")


def test_a_callback_in_the_summary_may_end_training() -> None:
    job = training()
    open_round(job)
    job.finish(0, job.lease(0), metrics=ONE)
    job.lease(0)
    job.put(e.SummaryReported(0, job.worker(0), 0, {"auc": 0.9}, stop_training=True))
    assert job.said("ending training early")
    assert job.state.status().phase == "evaluating"
    assert (job.total["trained"], job.total["left"]) == (0, job.total["expected"])


def test_elasticdl_evaluate_is_one_round_on_the_restored_parameters() -> None:
    job = Bench(Action.EVALUATE, num_ps_pods=2)
    job.start()
    # What they restored is told as they attach: no heartbeat has come yet, and the master read no
    # ledger.
    job.attach(job.ps(0), restored=40)
    job.attach(job.ps(1), restored=41)
    job.attach(job.worker(0))
    lease = job.lease()
    assert (lease.task, lease.snapshot, lease.version) == (Task.EVALUATION, None, 40)
    job.finish(0, lease, metrics=ONE)
    assert job.lease().task is Task.SUMMARY
    job.put(e.SummaryReported(0, job.worker(0), 0, {"auc": 0.9}))
    job.die(job.worker(0), ExitStatus(exit_code=0))
    job.die(job.ps(0), ExitStatus(exit_code=0, asked=True))
    job.die(job.ps(1), ExitStatus(exit_code=0, asked=True))
    assert job.end.exit_code == 0
    assert not job.of(c.TakeSnapshot)
    assert job.said("evaluation round 0 begins at version 40")
    assert job.total == {
        "expected": 16,
        "trained": 16,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 0,
    }


def test_a_job_that_begins_with_others_parameters_counts_steps_from_their_version() -> None:
    job = Bench(validation_data="v", evaluation_steps=100, checkpoint_steps=100, num_workers=1)
    job.start()
    job.attach(job.ps(0), restored=1000)
    job.attach(job.worker(0))
    job.put(e.VersionAdvanced(0, 1001))
    assert not job.of(c.TakeSnapshot)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 1100)))


def test_validation_code_that_always_fails_fails_the_job_with_its_reasons() -> None:
    job = training()
    open_round(job)
    for index, name in enumerate([0, 1, 2]):
        lease = job.lease(name)
        job.put(
            e.TaskFailed(
                0,
                job.worker(name),
                Task.EVALUATION,
                present(lease.shard).id,
                index,
                f"metric broke {index}",
            )
        )
        job.die(job.worker(name), ExitStatus(exit_code=64))
        job.attach(job.worker(index + 2))
    assert "metric broke 0" in present(job.state.status().outcome)
    assert "metric broke 2" in present(job.state.status().outcome)
