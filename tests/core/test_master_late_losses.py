"""Parameter servers that die when all records are trained: the round, the export or the checkpoint
is made again, or training is.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import SnapshotId, Task
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

NO_PARAMETERS = "no cut: this server has no parameters yet"
ONE = {"auc": ((1.0,),)}


def trained(**flags: Any) -> Bench:
    """All records are trained by one worker, in 20 steps."""
    usual: dict[str, Any] = {"validation_data": "v", "output": "o", "num_workers": 1}
    job = Bench.running(**usual | flags)
    job.train_all()
    job.pushed(0, 20)
    job.put(e.VersionAdvanced(0, 20))
    return job


def cut(job: Bench, version: int = 20) -> SnapshotId:
    snapshot = job.cut(version)
    return snapshot


def evaluate(job: Bench, index: int = 0) -> None:
    """The round under way, to its end."""
    cut(job)
    while (lease := job.lease(index)).task is Task.EVALUATION:
        job.finish(index, lease, metrics=ONE)
    assert lease.task is Task.SUMMARY
    job.put(e.SummaryReported(0, job.worker(index), present(lease.round), {"auc": 0.9}))


def export(job: Bench, index: int = 0) -> None:
    assert job.lease(index).task is Task.EXPORT
    job.put(e.ExportFinished(0, job.worker(index), "o"))


def revive(job: Bench, *servers: int, after_s: float = 0.0) -> None:
    """These servers come back empty; the next cut fails if nobody has given them weights before."""
    job.tick(after_s)
    job.attach(*(job.ps(index, 1) for index in servers))


def fail_cut(job: Bench) -> None:
    take = job.of(c.TakeSnapshot)[-1]
    job.put(e.SnapshotFailed(0, take.snapshot, NO_PARAMETERS))


def end(job: Bench) -> c.FinishJob:
    """Let all processes end."""
    from elasticdl.cluster.base import ExitStatus, ProcessName

    for process in job.state.status().processes:
        if process.state != "ended":
            job.die(ProcessName.parse(process.name), ExitStatus(exit_code=0, asked=True))
    assert job.finished is not None
    return job.finished


def new_worker(job: Bench, index: int, *, gives: bool) -> None:
    """A worker comes up; it `gives` servers initial values if one of them has none."""
    job.put(e.ProcessAttached(0, job.worker(index), "c", "w", None, starting=True))
    for part in ("build", "weights", *(["initial"] if gives else []), ""):
        job.put(e.StartWentOn(0, job.worker(index), part))


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("stage", ["cutting", "leasing", "summarising"])
def test_the_final_evaluation_is_redone_when_servers_come_back_empty_and_a_worker_has_the_weights(
    stage: str, lost: tuple[int, ...]
) -> None:
    job = trained(num_ps_pods=2)
    if stage != "cutting":
        cut(job)
        lease = job.lease()
        if stage == "summarising":
            job.finish(0, lease, metrics=ONE)
            assert job.lease().task is Task.SUMMARY
    for index in lost:
        job.die(job.ps(index))
    if stage == "cutting":
        fail_cut(job)
    revive(job, *lost)
    job.tick(6.0)
    fail_cut(job)
    job.tick(11.0)
    evaluate(job)
    export(job)
    assert end(job).exit_code == 0
    assert "parameter servers that died lost" in present(job.finished).message
    assert (job.total["trained"], job.total["repeated"], job.total["lost"]) == (64, 0, 0)


def test_whoever_has_no_work_is_told_that_the_evaluation_is_tried_again() -> None:
    job = trained()
    job.die(job.ps(0))
    fail_cut(job)
    revive(job, 0)
    job.tick(6.0)
    fail_cut(job)
    assert NO_PARAMETERS in job.refused()


def test_a_frozen_view_that_a_server_took_with_it_before_the_word_came_is_not_used() -> None:
    job = trained(num_ps_pods=2)
    asked = job.of(c.TakeSnapshot)[-1]
    job.die(job.ps(1))
    job.put(e.SnapshotCut(0, asked.snapshot, 20, {}))
    assert job.of(c.DropSnapshot)[-1].snapshot == asked.snapshot
    revive(job, 1)
    assert "the frozen view was lost with ps-1" in job.refused()
    job.tick(6.0)
    assert job.of(c.TakeSnapshot)[-1].snapshot != asked.snapshot
    cut(job)
    assert job.lease().task is Task.EVALUATION


@pytest.mark.parametrize("lost", [(0,), (0, 1)])
@pytest.mark.parametrize("phase", ["evaluating", "exporting"])
def test_training_begins_again_when_nobody_is_left_who_has_the_weights(
    phase: str, lost: tuple[int, ...]
) -> None:
    job = trained(num_ps_pods=2)
    if phase == "exporting":
        evaluate(job)
        assert job.lease().task is Task.EXPORT
    else:
        cut(job)
        job.lease()
    job.die(job.worker(0))
    for index in lost:
        job.die(job.ps(index))
    revive(job, *lost)
    new_worker(job, 1, gives=True)
    assert job.state.status().phase == "working"
    assert job.said("training 64 records again")
    job.train_all(1)
    evaluate(job, 1)
    export(job, 1)
    assert end(job).exit_code == 0
    assert job.end.message == "done"
    assert (job.total["trained"], job.total["repeated"], job.total["lost"]) == (64, 64, 0)


def test_what_a_worker_holds_is_void_when_training_begins_again() -> None:
    job = trained(num_workers=2)
    job.die(job.ps(0))
    fail_cut(job)
    revive(job, 0, after_s=10.0)
    job.tick(11.0)
    cut(job)
    before = job.lease(0)
    new_worker(job, 1, gives=True)
    assert job.worker(0) in [command.worker for command in job.of(c.RevokeLeases)]
    job.finish(0, before, metrics=ONE)
    again = job.lease(0)
    assert again.task is Task.TRAINING
    assert again.attempt > 0, "what was pushed of the first time is told apart"


def test_a_worker_that_comes_up_while_servers_have_the_weights_changes_nothing() -> None:
    job = trained()
    cut(job)
    job.die(job.worker(0))
    new_worker(job, 1, gives=False)
    assert job.state.status().phase == "evaluating"
    job.finish(1, job.lease(1), metrics=ONE)


def test_the_first_worker_gives_initial_values_and_nothing_is_repeated() -> None:
    job = Bench(num_workers=1)
    job.start()
    job.attach(job.ps(0))
    new_worker(job, 0, gives=True)
    job.train_all()
    assert (job.total["trained"], job.total["repeated"]) == (64, 0)


def test_a_late_report_of_the_initial_values_of_the_job_s_start_repeats_nothing() -> None:
    """A tiny job: one worker trains all of it before another's report of its start arrives."""
    job = trained(num_workers=2)
    job.put(e.StartWentOn(0, job.worker(1), "initial"))
    total = job.state.receipt().total
    assert job.state.status().phase == "evaluating" and (total.repeated, total.left) == (0, 0)


def test_initial_values_while_records_are_left_cost_updates_but_no_records() -> None:
    job = Bench.running(num_workers=1, num_ps_pods=1)
    job.finish(0, job.lease(), pushes=5)
    job.put(e.VersionAdvanced(0, 5))
    job.die(job.worker(0))
    job.die(job.ps(0))
    job.fenced(0)
    revive(job, 0)
    new_worker(job, 1, gives=True)
    job.train_all(1)
    assert (job.total["trained"], job.total["lost"]) == (64, 0)
    assert job.updates.lost == 5


def test_a_job_that_is_being_stopped_does_not_begin_again() -> None:
    job = trained()
    cut(job)
    job.put(e.StopRequested(0, "enough"))
    job.die(job.ps(0))
    revive(job, 0)
    new_worker(job, 1, gives=True)
    assert job.state.status().phase == "draining"


def test_the_final_evaluation_waits_for_what_a_restored_server_gets_again() -> None:
    job = Bench.running(validation_data="v", output="o", num_workers=1, checkpoint_steps=15)
    job.put(e.VersionAdvanced(0, 15))
    snapshot = job.cut(15, {}, {"worker-0": 15})
    job.saved(snapshot, 15)
    job.train_all()
    job.pushed(0, 20)
    job.put(e.VersionAdvanced(0, 20))
    cut(job)
    job.lease()
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=15)
    job.tick(6.0)
    assert job.of(c.TakeSnapshot)[-1].purpose is c.Purpose.EVALUATION
    before = len(job.of(c.TakeSnapshot))
    # The worker has not kept two of the five.
    job.pushed(0, 20, {job.ps(0, 1): 17})
    job.tick(6.0)
    assert job.updates.lost == 2 and len(job.of(c.TakeSnapshot)) == before + 1
    snapshot = job.of(c.TakeSnapshot)[-1]
    assert snapshot.purpose is c.Purpose.EVALUATION


def test_the_final_checkpoint_is_tried_again_when_a_server_comes_back_empty() -> None:
    job = trained(checkpoint_steps=1000, validation_data="")
    assert job.state.status().phase == "checkpointing"
    job.die(job.ps(0))
    fail_cut(job)
    revive(job, 0)
    job.tick(6.0)
    fail_cut(job)
    job.tick(11.0)
    snapshot = cut(job)
    job.put(e.SnapshotSaved(0, snapshot, 20, "checkpoints/version-20", 9))
    export(job)
    assert end(job).exit_code == 0


def test_training_begins_again_in_the_final_checkpoint_when_nobody_has_the_weights() -> None:
    job = trained(checkpoint_steps=1000, validation_data="")
    job.die(job.ps(0))
    job.die(job.worker(0))
    fail_cut(job)
    revive(job, 0)
    new_worker(job, 1, gives=True)
    assert job.state.status().phase == "working"
    job.train_all(1)
    job.put(e.VersionAdvanced(0, 20))
    job.tick(61.0)
    snapshot = cut(job)
    job.put(e.SnapshotSaved(0, snapshot, 20, "checkpoints/version-20", 9))
    export(job, 1)
    assert end(job).message == "done"


@pytest.mark.parametrize("action", [Action.EVALUATE, Action.PREDICT])
def test_a_job_without_training_continues_with_servers_that_restored_its_checkpoint_again(
    action: Action,
) -> None:
    job = Bench(action, num_workers=1, num_ps_pods=2)
    job.start(version=7)
    job.attach(job.ps(0), job.ps(1), restored=7)
    job.attach(job.worker(0))
    lease = job.lease()
    job.die(job.ps(0))
    job.die(job.ps(1))
    job.attach(job.ps(0, 1), job.ps(1, 1), restored=7)
    job.finish(0, lease, metrics=ONE) if action is Action.EVALUATE else job.finish(0, lease)
    if action is Action.EVALUATE:
        summary = job.lease()
        job.put(e.SummaryReported(0, job.worker(0), present(summary.round), {"auc": 0.9}))
    else:
        while job.state.status().phase == "working":
            job.finish(0, job.lease())
    finished = end(job)
    assert (finished.exit_code, finished.message) == (0, "done")
    assert job.state.status().updates is None
