"""The first phase of a job: model and data are checked, and nothing is started."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.errors import ExitCode
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.shard import Source
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core

RING = {"distribution_strategy": "AllreduceStrategy", "num_ps_pods": 0}


def started(*arguments: Any, **flags: Any) -> Bench:
    job = Bench(*arguments, **flags)
    job.t = 100.0  # A master that goes on with a job does not begin at 0.
    assert job.put(e.MasterStarted(0)) == [c.RunPreflight()]
    return job


@pytest.mark.parametrize("flags", [{}, RING])
def test_nothing_is_started_while_the_preflight_runs(flags: dict[str, Any]) -> None:
    job = started(num_workers=2, **flags)
    for _ in range(700):
        job.tick(1.0)
    assert job.given == [c.RunPreflight()]
    status = job.state.status()
    assert (status.phase, status.message) == ("starting", "checking the model and the data")
    assert (status.processes, status.waiting, status.at_s) == ((), (), 800.0)
    assert not job.state.begun


def test_the_status_and_the_events_say_what_the_preflight_is_at() -> None:
    job = started()
    text = "counting records: 32 of 3,200 files"
    assert job.put(e.PreflightProgressed(0, text)) == [c.Announce("job", text)]
    status = job.state.status()
    assert (status.message, status.waiting) == (text, (text,))
    job.start()
    assert text not in (job.state.status().message, *job.state.status().waiting)


def test_the_time_of_the_preflight_is_that_of_its_phase() -> None:
    job = started()
    job.t = 140.0
    (begins,) = [one for one in job.of(c.Announce, job.start()) if "training begins" in one.text]
    assert (begins.details["before"], begins.details["before_s"]) == ("starting", 40.0)
    assert job.state.begun
    assert job.of(c.StartProcess)


@pytest.mark.parametrize("flags", [{}, RING])
def test_a_preflight_that_fails_ends_the_job_and_nothing_was_started(flags: Any) -> None:
    job = started(**flags)
    commands = job.put(e.PreflightFailed(0, "wrong.py:3: no such layer", "mend it", ExitCode.USAGE))
    assert commands[-1] == c.FinishJob(ExitCode.USAGE, "wrong.py:3: no such layer", "mend it")
    assert job.said("job failed: wrong.py:3: no such layer")
    assert not job.of(c.StartProcess) and not job.state.begun and job.state.over


@pytest.mark.parametrize("action", list(Action))
def test_a_person_may_stop_the_job_during_the_preflight(action: Any) -> None:
    job = started(action)
    commands = job.put(e.StopRequested(0, "not today"))
    assert commands[-1] == c.FinishJob(ExitCode.INTERRUPTED, "stopped: not today")
    assert not job.of(c.StartProcess) and not job.state.begun


def test_what_the_preflight_finds_after_a_stop_changes_nothing() -> None:
    job = started()
    job.put(e.StopRequested(0, "not today"))
    before = job.state.status()
    for late in (
        e.PreflightProgressed(0, "building the model has taken 30 s"),
        e.PreflightFailed(0, "no loss", "", ExitCode.USAGE),
    ):
        assert job.put(late) == []
    assert job.start() == [] and not job.state.begun
    assert job.state.status() == before


def test_another_scale_a_checkpoint_and_a_worker_are_refused_during_the_preflight() -> None:
    job = started(job_dir="j", checkpoint_steps=2)
    assert "model and data are being checked" in present(job.state.why_not_scale(1, 2))
    assert "the job has not begun" in present(job.state.why_not_checkpoint())
    assert "is not a process of this job" in present(job.state.why_not_replace(job.worker(0)))
    assert not job.state.may_attach(job.worker(0))


def test_records_that_an_earlier_run_trained_beyond_its_checkpoint_are_reported() -> None:
    job = started()
    job.put(e.JobStarted(0, (Source("a", 64),), again=16))
    assert job.said("16 records beyond its last checkpoint")
