"""What comes after the work: checkpoint, export, the end; stopping and going on; and checkpoints on
the way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.errors import ExitCode
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.on_train_end import ON_TRAIN_END, ON_TRAIN_END_S
from elasticdl.shard import Applied, SnapshotId, Source, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def cut(job: Bench, version: int = 5, applied: dict[str, Applied] | None = None) -> c.SaveSnapshot:
    """Answer the last cut that was ordered."""
    snapshot = job.of(c.TakeSnapshot)[-1].snapshot
    (save,) = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, snapshot, version, applied or {})))
    return save


def saved(job: Bench, save: c.SaveSnapshot) -> list[c.Command]:
    return job.put(e.SnapshotSaved(0, save.snapshot, save.version, f"version-{save.version}", 1000))


def all_end(job: Bench) -> None:
    for process in job.state.status().processes:
        if process.state != "ended":
            role, index = process.name.split("-")
            job.die(
                {"worker": job.worker, "ps": job.ps}[role](int(index)),
                ExitStatus(exit_code=0, asked=role == "ps"),
            )


def ending(job: Bench, activity: str, age_s: float) -> None:
    """All is trained, and worker-0 has done this for so long."""
    job.train_all()
    job.pushed(0, 16)
    job.t += age_s
    job.put(e.ActivityReported(0, job.worker(0), activity, age_s))


def waits(job: Bench) -> list[str]:
    return [told.text for told in job.of(c.Announce) if told.kind == "wait"]


def test_a_job_waits_for_what_its_callbacks_do_in_on_train_end_and_says_so() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    for _ in range(int(ON_TRAIN_END_S) - 10):
        job.tick(1.0)
    assert job.finished is None
    (begun,) = waits(job)
    assert begun == (
        "waiting for on_train_end of callbacks: worker-0; at most 600 s,"
        " or until the job is stopped"
    )
    job.die(job.worker(0), ExitStatus(exit_code=0))
    all_end(job)
    assert job.end.exit_code == ExitCode.DONE
    assert not job.said("cut off")
    assert waits(job)[1:] == [begun.replace("waiting", "waited 595 s", 1)]


@pytest.mark.parametrize("activity", ["a training step", ""])
def test_a_worker_that_does_something_else_delays_the_end_of_a_job_for_half_a_minute(
    activity: str,
) -> None:
    job = Bench.running()
    ending(job, activity, 5.0)
    job.tick(16)
    job.tick(11)
    assert job.finished is not None


def test_on_train_end_that_does_not_return_is_cut_off_by_its_worker_which_says_so() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    job.tick(ON_TRAIN_END_S)
    tail = "on_train_end did not return within 600 s and was cut off"
    job.die(job.worker(0), ExitStatus(exit_code=68, log_tail=tail))
    all_end(job)
    assert job.end.exit_code == ExitCode.DONE
    (told,) = [told for told in job.of(c.Announce) if tail in told.text]
    assert (told.process, told.cause, told.level) == ("worker-0", "hung", "warning")


def test_an_end_by_force_in_a_job_that_failed_is_no_warning() -> None:
    """It hid the error: each worker in a step longer than its grace ends like that."""
    job = Bench.running(2, num_workers=2)
    lease = job.lease()
    applied = present(lease.shard).id, lease.attempt
    job.put(e.TaskFailed(0, job.worker(0), lease.task, *applied, "m.py:3: no", fatal=True))
    job.die(job.worker(1), ExitStatus(exit_code=68, log_tail="still running", asked=True))
    (told,) = [told for told in job.of(c.Announce) if "ended by force" in told.text]
    assert (told.process, told.cause, told.level) == ("worker-1", "hung", "info")


def test_a_stop_of_a_job_that_failed_does_not_say_that_its_work_is_done() -> None:
    job = Bench.running(2, num_workers=2)
    lease = job.lease()
    applied = present(lease.shard).id, lease.attempt
    job.put(e.TaskFailed(0, job.worker(0), lease.task, *applied, "m.py:3: no", fatal=True))
    assert job.state.status().phase == "ending"
    job.put(e.StopRequested(0, "`elasticdl stop`"))
    assert not job.said("work is done")


def test_on_train_end_is_cut_off_by_the_master_if_its_worker_does_not_end_itself() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    job.tick(ON_TRAIN_END_S)
    job.tick(31)
    assert job.said("on_train_end of worker-0 was cut off after 636 s: its time is over")
    job.tick(31)
    assert job.end.exit_code == ExitCode.DONE


def test_a_worker_has_time_to_exit_after_a_long_on_train_end() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    job.tick(16)
    job.tick(30)
    job.put(e.ActivityReported(0, job.worker(0), "", 0.0))
    job.tick(29)
    assert job.finished is None
    job.tick(2)
    assert job.end.exit_code == ExitCode.DONE


def test_a_stop_cuts_off_on_train_end() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    job.tick(16)
    job.tick(60)
    assert job.finished is None
    job.put(e.StopRequested(0, "enough"))
    assert job.said("on_train_end of worker-0 was cut off after 81 s: the job was stopped")
    assert present(job.of(c.StopProcess)[-1]).name == job.worker(0)
    job.die(job.worker(0), ExitStatus(signal=9, asked=True))
    all_end(job)
    assert job.end.exit_code == ExitCode.DONE
    (worker,) = [row for row in job.state.status().processes if row.role == "worker"]
    assert worker.cause == "drained"
    assert "on_train_end was cut off: the job was stopped" in worker.message
    assert waits(job)[-1].startswith("waited 81 s for on_train_end")
    assert not job.state.status().waiting


@pytest.mark.parametrize("stopped_first", [True, False])
def test_a_stop_cuts_off_on_train_end_at_once(stopped_first: bool) -> None:
    """It took 30 s if the job had just ended."""
    job = Bench.running()
    job.train_all()
    job.pushed(0, 16)
    if stopped_first:
        job.put(e.StopRequested(0, "enough"))
    job.t += 5.0
    job.put(e.ActivityReported(0, job.worker(0), ON_TRAIN_END, 5.0))
    job.tick() if stopped_first else job.put(e.StopRequested(0, "enough"))
    assert job.said("on_train_end of worker-0 was cut off after 5 s: the job was stopped")
    assert [stop.name for stop in job.of(c.StopProcess)] == [job.worker(0)]


def test_a_stop_before_a_worker_reports_on_train_end_says_that_it_may_cut_it_off() -> None:
    """A worker reports what it does once that has taken 5 s; `stop --now` leaves less."""
    job = Bench.running()
    job.train_all()
    job.pushed(0, 16)
    for _ in range(2):
        job.put(e.StopRequested(0, "`elasticdl stop --now`"))
    (told,) = [told for told in job.of(c.Announce) if "elasticdl stop" in told.text]
    assert told.text == (
        "stopping the job: `elasticdl stop --now`; its work is done, and on_train_end of callbacks"
        " is cut off"
    )
    assert job.state.status().phase == "ending"


def test_a_worker_that_falls_silent_in_on_train_end_is_not_waited_for() -> None:
    job = Bench.running()
    ending(job, ON_TRAIN_END, 5.0)
    job.tick(16)
    job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    (told,) = [told for told in job.of(c.Announce) if "sent nothing for 10 s" in told.text]
    assert (told.process, told.level) == ("worker-0", "warning")
    job.tick(11)
    assert job.finished is not None


def test_a_worker_that_exited_is_not_said_to_be_silent_if_its_end_is_reported_late() -> None:
    """Kubernetes may tell it more than 10 s later, and a warning said that the worker hangs."""
    job = Bench.running()
    job.train_all()
    job.pushed(0, 16)
    job.tick(11)
    job.put(e.ProcessSilent(0, job.worker(0), 10.0, connected=False))
    assert not job.said("sent nothing")
    job.die(job.worker(0), ExitStatus(exit_code=0))
    all_end(job)
    assert job.end.exit_code == ExitCode.DONE
    assert [row.cause for row in job.state.status().processes] == ["drained", "finished"]


def test_training_without_anything_else_ends_when_all_processes_have() -> None:
    job = Bench.running(num_epochs=2)
    job.train_all()
    job.pushed(0, 16)
    assert job.of(c.WorkFinished) == [c.WorkFinished(job.worker(0))]
    assert job.of(c.StopProcess) == []
    job.die(job.worker(0), ExitStatus(exit_code=0))
    assert [stop.name for stop in job.of(c.StopProcess)] == [job.ps(0)]
    assert job.finished is None
    job.die(job.ps(0), ExitStatus(signal=15, asked=True))
    assert (job.end.exit_code, job.given[-1]) == (ExitCode.DONE, job.end)
    assert job.state.over
    assert [p.cause for p in job.state.status().processes] == ["drained", "finished"]
    assert job.state.receipt().to_json() == {
        "epochs": [
            {
                "epoch": epoch,
                "expected": 64,
                "trained": 64,
                "repeated": 0,
                "bad": 0,
                "lost": 0,
                "left": 0,
            }
            for epoch in range(2)
        ],
        "epochs_left_out": 0,
        "not_begun": {"epochs": 0, "records": 0},
        "total": {"expected": 128, "trained": 128, "repeated": 0, "bad": 0, "lost": 0, "left": 0},
        "repeated_at_least": False,
        "why_left": None,
        "counted": None,
        "updates": {"applied": 16, "lost": 0, "repeated": 0, "at_least": False},
        "goodput": None,
    }


def test_processes_that_do_not_end_hold_the_job_up_for_30_s_at_most() -> None:
    job = Bench.running()
    job.train_all()
    job.tick(16)
    assert [stop.name for stop in job.of(c.StopProcess)] == [job.ps(0)]
    job.tick(15)
    assert job.end.exit_code == ExitCode.DONE
    status = job.state.status()
    assert [process.state for process in status.processes] == ["ended", "ended"]
    assert "killed with the job" in status.processes[-1].message
    assert status.states == {}


def test_after_the_end_nothing_changes_any_more() -> None:
    job = Bench.running()
    job.train_all()
    all_end(job)
    for event in (
        e.Tick(0),
        e.StopRequested(0, "x"),
        e.ScaleRequested(0, 1, 9),
        e.ProcessSilent(0, job.ps(0), 10.0),
    ):
        assert not job.of(c.StartProcess, job.put(event)) + job.of(c.FinishJob, job.put(event))
    assert job.of(c.WorkFinished, job.put(e.LeaseRequested(0, job.worker(0))))


def test_the_model_is_exported_by_one_worker_after_the_last_checkpoint() -> None:
    job = Bench.running(2, output="out", checkpoint_steps=100, num_workers=2)
    job.train_all()
    assert job.state.status().phase == "checkpointing"
    saved(job, cut(job))
    lease = job.lease(0)
    assert lease.task is Task.EXPORT
    assert "exporting" in job.refused(1)
    job.put(e.ExportFinished(0, job.worker(1), "out"))
    assert job.of(c.WorkFinished) == []
    job.die(job.worker(0))
    assert job.lease(1).attempt == 1
    job.put(e.ExportFinished(0, job.worker(1), "out"))
    assert job.of(c.WorkFinished) == [c.WorkFinished(job.worker(1))]


def test_an_export_that_fails_three_times_fails_the_job() -> None:
    job = Bench.running(output="out")
    job.train_all()
    for index in range(3):
        job.lease(index)
        job.put(e.TaskFailed(0, job.worker(index), Task.EXPORT, None, index, f"disk full {index}"))
        job.die(job.worker(index), ExitStatus(exit_code=64))
        job.attach(job.worker(index + 1))
    assert "disk full 0" in present(job.state.status().outcome)
    assert job.state.status().exit_code == 1


def test_a_checkpoint_is_taken_each_time_the_version_crosses_the_steps() -> None:
    job = Bench.running(checkpoint_steps=10)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 9))) == []
    job.put(e.VersionAdvanced(0, 12))
    save = cut(job, 13)
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 25))) == []
    commands = saved(job, save)
    assert c.DropSnapshot(save.snapshot, saved=True) in commands
    assert job.of(c.TakeSnapshot, commands)
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [13]


def test_a_heartbeat_that_is_late_makes_no_version_be_crossed_twice() -> None:
    """Workers tell of a version sooner than the servers' heartbeats: these may name an older one
    after the cut.
    """
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 12))
    saved(job, cut(job, 15))
    job.put(e.VersionAdvanced(0, 9))
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 16))) == []
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 20)))


def test_versions_are_crossed_again_after_a_server_came_back_from_an_older_checkpoint() -> None:
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    saved(job, cut(job, 10))
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=0)
    job.put(e.VersionAdvanced(0, 3))
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 10)))


def test_a_failed_checkpoint_is_reported_and_tried_again_and_training_continues() -> None:
    job = Bench.running(checkpoint_steps=10)
    job.put(e.VersionAdvanced(0, 10))
    save = cut(job)
    job.put(e.SnapshotFailed(0, save.snapshot, "no space left on device"))
    assert job.said("no space left on device; earlier ones are kept")
    job.lease()
    assert job.of(c.TakeSnapshot, job.tick(4)) == []
    assert job.of(c.TakeSnapshot, job.tick(2))
    saved(job, cut(job, 11))
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [11]


def test_a_person_gets_a_checkpoint_when_there_is_something_to_keep() -> None:
    job = Bench.running()
    job.put(e.VersionAdvanced(0, 1))
    assert job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    other = Bench.running(action=Action.EVALUATE)
    assert not other.of(c.TakeSnapshot, other.put(e.CheckpointRequested(0)))
    assert other.said("nothing to save")


def test_what_is_asked_for_too_late_is_refused_in_words_and_changes_nothing() -> None:
    job = Bench.running(2, output="out", checkpoint_steps=100, num_workers="1:2")
    assert not job.state.why_not_scale(1, 2) and not job.state.why_not_checkpoint()
    job.train_all()
    for phase, words in (
        ("checkpointing", "the job is taking its last checkpoint"),
        ("exporting", "the job is exporting its model"),
        ("ending", "the job is ending"),
        ("ended", "the job has ended"),
    ):
        assert job.state.status().phase == phase
        assert words in present(job.state.why_not_scale(1, 2))
        assert words in present(job.state.why_not_checkpoint())
        live = [
            row.name
            for row in job.state.status().processes
            if row.state == "ready" and row.role == "worker"
        ]
        assert bool(live) == (phase != "ended")
        for name in map(ProcessName.parse, live):
            assert words in present(job.state.why_not_replace(name))
        job.put(e.ScaleRequested(0, 1, 9))
        job.put(e.CheckpointRequested(0))
        assert job.state.status().scale.high == 2
        if phase == "checkpointing":
            saved(job, cut(job, 9))
        elif phase == "exporting":
            assert job.lease().task is Task.EXPORT
            job.put(e.ExportFinished(0, job.worker(0), "out"))
        elif phase == "ending":
            all_end(job)
    assert job.said("cannot change the number of workers to 1:9: the job is exporting its model")


def test_a_server_that_leaves_has_a_checkpoint_taken_or_the_loss_is_reported() -> None:
    job = Bench.running()
    job.put(e.VersionAdvanced(0, 1))
    assert job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0, ProcessName.parse("ps-0"))))
    assert job.said("ps-0 is leaving; taking a checkpoint first")
    other = Bench.running(action=Action.EVALUATE)
    assert not other.of(
        c.TakeSnapshot, other.put(e.CheckpointRequested(0, ProcessName.parse("ps-0")))
    )
    assert other.said("ps-0 is leaving and loses its updates so far")


def test_a_server_that_leaves_while_a_cut_is_under_way_gets_a_checkpoint_of_its_own() -> None:
    """Its part of that cut may be older than what it has acknowledged since."""
    job = Bench.running()
    job.put(e.VersionAdvanced(0, 1))
    assert job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    assert not job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0, ProcessName.parse("ps-0"))))
    assert job.of(c.TakeSnapshot, saved(job, cut(job)))
    saved(job, cut(job, 6))
    job.tick(61)
    assert len(job.of(c.TakeSnapshot)) == 2


def test_only_the_newest_checkpoints_are_listed() -> None:
    job = Bench.running(keep_checkpoint_max=2)
    job.put(e.VersionAdvanced(0, 1))
    for version in (1, 2, 3):
        job.put(e.CheckpointRequested(0))
        saved(job, cut(job, version))
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [2, 3]


def test_a_last_checkpoint_that_cannot_be_written_does_not_hold_the_end_up_for_ever() -> None:
    job = Bench.running(checkpoint_steps=5)
    job.train_all()
    for _ in range(5):
        job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, "disk full"))
        job.tick(61)
    assert job.said("the last checkpoint failed: disk full")
    assert job.of(c.WorkFinished)


def test_a_last_checkpoint_of_a_version_that_is_saved_is_not_announced_again() -> None:
    job = Bench.running(checkpoint_steps=5)
    job.put(e.VersionAdvanced(0, 5))
    saved(job, cut(job))
    job.train_all()
    assert job.said("checkpoint of version 5 saved")
    last = cut(job)
    job.given.clear()
    saved(job, last)
    assert job.of(c.WorkFinished)
    assert not job.said("version 5")


# Stopping and going on


def test_a_stopped_job_drains_and_takes_a_checkpoint() -> None:
    job = Bench.running(2, num_workers=2, num_epochs=2)
    lease = job.lease(0)
    job.progress(0, lease, 8)
    commands = job.put(e.StopRequested(0, "Ctrl-C"))
    assert [(stop.name, stop.grace_s) for stop in job.of(c.StopProcess, commands)] == [
        (job.worker(0), 30.0),
        (job.worker(1), 30.0),
    ]
    assert "Ctrl-C" in job.refused(0)
    job.put(e.LeaseReturned(0, job.worker(0), Applied(present(lease.shard).id, 0, 8)))
    for index in (0, 1):
        job.die(job.worker(index), ExitStatus(exit_code=66, asked=True))
    assert not job.of(c.TakeSnapshot)
    job.fenced(0, Applied(present(lease.shard).id, 0, 8))
    save = cut(job)
    saved(job, save)
    job.die(job.ps(0), ExitStatus(exit_code=0, asked=True))
    assert job.end.exit_code == ExitCode.INTERRUPTED
    assert job.state.status().processes[-1].cause == "drained"

    again = Bench(num_workers=1, num_epochs=2)
    again.start(ledger=save.ledger, version=5)
    assert [str(start.name) for start in again.of(c.StartProcess)] == ["ps-0", "worker-2"]
    again.attach(again.ps(0), again.worker(2))
    first = again.lease(2)
    assert (first.shard, first.offset, first.attempt) == (lease.shard, 8, 1)
    again.finish(2, first)
    again.train_all(2)
    assert again.total == {
        "expected": 128,
        "trained": 128,
        "repeated": 0,
        "bad": 0,
        "lost": 0,
        "left": 0,
    }


def test_a_job_without_a_shared_directory_stops_without_a_checkpoint_and_promises_none() -> None:
    job = Bench.running(image_name="zoo", job_dir="/tmp/job", num_epochs=2)
    lease = job.lease()
    job.progress(0, lease, 8)
    job.put(e.CheckpointRequested(0))
    assert any("the servers share no storage" in told.text for told in job.of(c.Announce))
    job.put(e.StopRequested(0, "enough"))
    job.put(e.LeaseReturned(0, job.worker(0), Applied(present(lease.shard).id, 0, 8)))
    job.die(job.worker(0), ExitStatus(exit_code=66, asked=True))
    job.fenced(0, Applied(present(lease.shard).id, 0, 8))
    job.die(job.ps(0), ExitStatus(exit_code=0, asked=True))
    assert job.end.exit_code == ExitCode.INTERRUPTED and "--resume" not in job.end.hint
    assert not job.of(c.TakeSnapshot)


def test_stopping_twice_ends_without_grace() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    job.put(e.StopRequested(0, "first"))
    commands = job.put(e.StopRequested(0, "second"))
    (stop,) = job.of(c.StopProcess, commands)
    assert (stop.name, stop.grace_s) == (job.worker(0), 0.0)
    told = {process.name: process.message for process in job.state.status().processes}
    assert stop.reason == "stopping the job: first" == told["worker-0"], "the first reason stands"
    assert sum("stopping worker-0" in told.text for told in job.of(c.Announce)) == 1


def test_a_stop_before_anything_was_trained_ends_at_once() -> None:
    job = Bench()
    job.start()
    job.put(e.StopRequested(0, "no"))
    job.die(job.worker(0), ExitStatus(signal=15, asked=True))
    job.die(job.ps(0), ExitStatus(signal=15, asked=True))
    assert job.end.exit_code == ExitCode.INTERRUPTED
    assert not job.of(c.TakeSnapshot)


@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "AllreduceStrategy"])
def test_training_that_a_callback_ends_before_the_first_step_waits_for_no_checkpoint(
    strategy: str,
) -> None:
    job = Bench(checkpoint_steps=5, distribution_strategy=strategy)
    job.start()
    job.attach(*(job.ps(index) for index in range(job.spec.servers)), job.worker(0))
    job.put(e.WorkerStopRequested(0, job.worker(0), "nothing is to be trained"))
    job.tick(1)
    assert job.state.status().phase == "ending"
    all_end(job)
    assert job.end.exit_code == ExitCode.DONE
    assert not job.of(c.TakeSnapshot)
    assert job.total["left"] == 64


def test_a_stop_before_the_data_was_counted_ends_at_once() -> None:
    job = Bench()
    job.put(e.StopRequested(0, "no"))
    assert job.end.exit_code == ExitCode.INTERRUPTED
    assert job.start() == []


def test_a_stop_does_not_wait_for_servers_that_do_not_come_back() -> None:
    job = Bench.running()
    job.progress(0, job.lease(), 8)
    job.die(job.ps(0))
    job.put(e.StopRequested(0, "Ctrl-C"))
    job.die(job.worker(0), ExitStatus(exit_code=66, asked=True))
    job.fenced(0)
    job.tick(20)
    assert job.state.status().phase == "checkpointing"
    job.tick(11)
    job.tick(31)
    assert present(job.finished).exit_code == ExitCode.INTERRUPTED
    assert "checkpoint failed" in present(job.finished).message
    assert present(job.finished).hint == ""


# The ledger of a checkpoint


def test_a_checkpoints_ledger_is_at_the_cut_and_not_at_the_reports() -> None:
    job = Bench.running(2, num_workers=2)
    first, second, other = job.lease(0), job.lease(0), job.lease(1)
    job.progress(0, first, 8)
    job.put(e.CheckpointRequested(0))
    save = cut(
        job,
        applied={
            "worker-0": Applied(present(second.shard).id, 0, 8),
            "worker-1": Applied(present(other.shard).id, 0, 16),
        },
    )
    assert job.total["trained"] == 8
    again = Bench()
    again.start(ledger=save.ledger)
    assert again.total["trained"] == 16 + 8 + 16
    again.attach(again.ps(0), again.worker(2))
    lease = again.lease(2)
    assert (lease.shard, lease.offset, lease.attempt) == (second.shard, 8, 1)
    again.finish(2, lease)
    again.train_all(2)
    assert again.total["lost"] == 0


def test_a_resumed_job_keeps_cut_and_order_and_may_have_more_epochs() -> None:
    job = Bench.running(shuffle="records", seed=7, records_per_task=8)
    seen = [(present(lease.shard).begin, lease.order_seed) for lease in (job.lease(), job.lease())]
    again = Bench(shuffle="records", seed=8, records_per_task=32, num_epochs=2)
    again.start(ledger=job.state.ledger_json())
    again.attach(again.ps(0), again.worker(1))
    leases = [again.lease(1), again.lease(1)]
    assert [(present(lease.shard).begin, lease.order_seed) for lease in leases] == seen
    for lease in leases:
        again.finish(1, lease)
    again.train_all(1)
    assert [epoch.trained for epoch in again.state.receipt().epochs] == [64, 64]


def test_a_resumed_job_that_was_done_ends_at_once_with_its_last_loss() -> None:
    job = Bench.running(checkpoint_steps=5)
    while job.state.status().phase == "working":
        job.finish(0, job.lease(), loss=0.25)
    save = cut(job)
    again = Bench(checkpoint_steps=5)
    commands = again.start(ledger=save.ledger, version=5, restore_from="version-5")
    assert again.of(c.StartProcess, commands) == again.of(c.TakeSnapshot, commands) == []
    assert again.end.exit_code is ExitCode.DONE
    assert again.state.status().loss == 0.25


def evaluated(job: Bench) -> c.SaveSnapshot:
    """Train and evaluate a job to its last checkpoint."""
    job.train_all()
    job.cut(5)
    while (lease := job.lease()).task is not Task.SUMMARY:
        job.finish(0, lease)
    job.put(e.SummaryReported(0, job.worker(0), present(lease.round), {"loss": 0.5, "auc": 0.75}))
    return cut(job)


def told(commands: list[c.Command]) -> str:
    return "\n".join(command.text for command in commands if isinstance(command, c.Announce))


def test_a_resumed_job_that_was_evaluated_is_not_evaluated_again() -> None:
    save = evaluated(Bench.running(validation_data="v", checkpoint_steps=5, num_epochs=5))
    again = Bench(validation_data="v", checkpoint_steps=5, num_epochs=5)
    commands = again.start(ledger=save.ledger, version=5, restore_from="version-5")
    assert again.of(c.StartProcess, commands) == again.of(c.TakeSnapshot, commands) == []
    assert again.end.exit_code is ExitCode.DONE
    assert again.state.status().metrics == {"loss": 0.5, "auc": 0.75}
    text = told(commands)
    assert "nothing left to train: 5 of 5 epochs are done; raise --num-epochs to train on" in text
    assert "evaluation" not in text


def test_a_resumed_job_is_evaluated_again_on_other_data_and_after_more_epochs() -> None:
    save = evaluated(Bench.running(validation_data="v", checkpoint_steps=5))
    ledger = json.loads(save.ledger)
    ledger["evaluated"][0]["records"] += 1
    other = Bench(validation_data="v", checkpoint_steps=5)
    other.start(ledger=json.dumps(ledger), version=5, restore_from="version-5")
    assert other.state.status().phase == "evaluating"
    assert other.state.status().metrics == {"loss": 0.5, "auc": 0.75}
    other.attach(other.ps(0), other.worker(1), restored=5)
    other.cut(5)
    while (lease := other.lease(1)).task is not Task.SUMMARY:
        other.finish(1, lease)
    other.put(e.SummaryReported(0, other.worker(1), present(lease.round), {"loss": 0.25}))
    kept = json.loads(cut(other).ledger)["evaluated"]
    assert kept == json.loads(save.ledger)["evaluated"], "or each resume would evaluate it again"
    more = Bench(validation_data="v", checkpoint_steps=5, num_epochs=2)
    text = told(more.start(ledger=save.ledger, version=5, restore_from="version-5"))
    assert "training continues in epoch 2, 64 of 128 records done" in text
    more.attach(more.ps(0), more.worker(1), restored=5)
    more.train_all(1)
    assert more.state.status().phase == "evaluating"


def test_a_resumed_job_with_fewer_epochs_than_were_begun_says_when_it_ends() -> None:
    job = Bench.running(num_epochs=3)
    job.train_all()
    done = Bench(num_epochs=2)
    text = told(done.start(ledger=job.state.ledger_json()))
    assert "3 epochs are done, more than --num-epochs 2; raise it above 3 to train on" in text
    assert done.end.exit_code is ExitCode.DONE

    job = Bench.running(num_epochs=3)
    for _ in range(9):
        job.finish(0, job.lease())
    half = Bench(num_epochs=2)
    text = told(half.start(ledger=job.state.ledger_json()))
    assert "continues in epoch 3, 144 of 192 records done" in text
    assert "epoch 3 was begun" in text
    assert half.state.status().message == "training, epoch 3 of 3"
    half.attach(half.ps(0), half.worker(1))
    half.train_all(1)
    assert half.total["trained"] == 192


def test_a_resumed_job_that_ended_early_says_so() -> None:
    job = Bench.running(num_epochs=3)
    lease = job.lease()
    job.put(e.WorkerStopRequested(0, job.worker(0), "loss is low"))
    job.finish(0, lease)
    text = told(Bench(num_epochs=3).start(ledger=job.state.ledger_json()))
    assert "nothing left to train: an earlier run ended training early, in epoch 1 of 3" in text


def test_a_resumed_job_lists_the_checkpoint_that_it_began_with() -> None:
    job = Bench.running(checkpoint_steps=5)
    job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    again = Bench(checkpoint_steps=5, keep_checkpoint_max=2)
    again.start(
        ledger=ledger,
        version=2,
        restore_from="version-2",
        restored_bytes=77,
        restored_age_s=3600.0,
    )
    status = again.state.status()
    (begun,) = status.checkpoints
    assert (begun.version, begun.path, begun.bytes) == (2, "version-2", 77)
    assert status.at_s - begun.at_s == 3600, "or its age would begin anew"
    again.attach(again.ps(0), again.worker(1), restored=2)
    for version in (5, 10):
        again.put(e.VersionAdvanced(0, version))
        saved(again, cut(again, version))
    assert [checkpoint.version for checkpoint in again.state.status().checkpoints] == [5, 10]


def test_a_job_lists_no_checkpoint_of_another_job() -> None:
    job = Bench(checkpoint_dir_for_init="c", checkpoint_steps=5)
    job.start(version=2, restore_from="c/version-2")
    assert job.state.status().checkpoints == ()


def test_shard_ids_are_not_used_again_after_a_resume() -> None:
    job = Bench.running(num_epochs=2)
    job.train_all()
    again = Bench(num_epochs=3)
    again.start(ledger=job.state.ledger_json())
    again.attach(again.ps(0), again.worker(1))
    assert present(again.lease(1).shard).id == 8


@pytest.mark.parametrize(
    "now", [(Source("a", 65),), (Source("a", 64, "other"),), (Source("a", 64), Source("b", 1)), ()]
)
def test_a_resume_on_other_data_is_refused_in_words(now: tuple[Source, ...]) -> None:
    job = Bench.running()
    again = Bench()
    again.start(ledger=job.state.ledger_json(), training=now)
    assert again.end.exit_code == ExitCode.JOB_FAILED
    assert "the training data changed since the checkpoint" in again.end.message


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 9'),
    ],
)
def test_a_ledger_that_cannot_be_read_is_refused_in_words(damage: Callable[..., Any]) -> None:
    job = Bench.running()
    again = Bench()
    again.start(ledger=damage(job.state.ledger_json()))
    assert again.end.exit_code == ExitCode.JOB_FAILED
    assert "ledger" in again.end.message


def test_a_cut_that_nobody_waits_for_is_dropped() -> None:
    job = Bench.running()
    assert c.DropSnapshot(SnapshotId(42)) in job.put(e.SnapshotCut(0, SnapshotId(42), 1, {}))
    job.put(e.SnapshotFailed(0, SnapshotId(42), "x"))
    assert not job.said("no checkpoint")


def test_the_ledger_is_json_of_plain_values() -> None:
    job = Bench.running()
    job.lease()
    assert json.loads(job.state.ledger_json())["counts"][0]["expected"] == 64


def test_a_shard_that_is_whole_within_the_cut_is_done_in_its_ledger() -> None:
    job = Bench.running()
    lease = job.lease()
    job.put(e.VersionAdvanced(0, 1))
    job.put(e.CheckpointRequested(0))
    save = cut(job, applied={"worker-0": Applied(present(lease.shard).id, 0, 16)})
    (count,) = json.loads(save.ledger)["counts"]
    assert (count["trained"], count["unfinished"]) == (16, 3)
    assert job.state.receipt().total.trained == 0
