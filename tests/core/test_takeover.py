"""What a master orders that continues the job of another one."""

from __future__ import annotations

import pytest

from elasticdl.dropped import DropCause
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.presence import presence_of
from tests.core.conftest import Bench, ps, worker
from tests.present import present

pytestmark = pytest.mark.core


def taken_over(job: Bench) -> list[c.Command]:
    return job.put(e.MasterTookOver(0, 2, 1.5))


def test_it_says_how_many_processes_kept_running(bench: type[Bench]) -> None:
    job = bench(num_workers=2, num_ps_pods=1)
    job.up(2)
    job.die(worker(1))
    [said] = [one for one in job.of(c.Announce, taken_over(job)) if one.kind == "job"]
    assert said.text == "another master continues the job after 1.5 s; 2 processes kept running"
    assert said.details["term"] == 2 and said.details["away_s"] == 1.5


def test_servers_are_asked_again_about_a_lost_worker_and_not_so_soon_after(
    bench: type[Bench],
) -> None:
    job = bench(num_ps_pods=1)
    job.up()
    job.lease()
    job.die(worker(0))
    job.tick(20)
    assert c.FenceWorker(worker(0)) in taken_over(job)
    assert not job.of(c.FenceWorker, job.tick(20)), "30 s after the newest order, not before"
    assert job.of(c.FenceWorker, job.tick(11)) == [c.FenceWorker(worker(0))]
    job.fenced(0, None)
    assert not job.of(c.FenceWorker, taken_over(job))


def test_who_has_ended_is_gone_for_the_next_master_and_nobody_else(bench: type[Bench]) -> None:
    job = bench(num_workers=2, num_ps_pods=1)
    job.up(2)
    job.die(worker(1))
    parts = job.state._parts
    found = presence_of(parts.context, parts.coordination, parts.checkpointing)
    assert (found.gone, found.fenced) == ((worker(1),), (worker(1),))
    assert {one.name for one in found.attached} == {ps(0), worker(0)}


def test_a_worker_that_comes_back_has_time_from_now_on(bench: type[Bench]) -> None:
    job = bench(num_workers=2, num_ps_pods=1)
    job.up(2)
    job.tick(50)
    taken_over(job)
    context = job.state._parts.context
    process = present(context.worker(worker(0)))
    process.busy_since_s = 1.0
    job.put(e.ProcessReturned(0, worker(0)))
    assert process.busy_since_s == 50.0 and not context.dropped
    job.put(e.ProcessReturned(0, worker(7)))
    assert context.dropped == {DropCause.ENDED_PROCESS: 1}


def test_another_range_of_workers_is_kept_again_and_only_then(bench: type[Bench]) -> None:
    job = bench(num_workers="1:3", num_ps_pods=1)
    job.up()
    assert not job.of(c.KeepScale, taken_over(job))
    job.put(e.ScaleRequested(0, 2, 2))
    assert job.of(c.KeepScale, taken_over(job)) == [c.KeepScale(2, 2)]


def test_a_job_that_is_ending_ends_only_once_its_processes_have_left(bench: type[Bench]) -> None:
    job = bench(num_ps_pods=1)
    job.up()
    job.put(e.StopRequested(0, "Ctrl-C"))
    while job.state.status().phase != "ending":
        job.tick(30)
    assert not job.of(c.FinishJob, taken_over(job))
    for name in (worker(0), ps(0)):
        job.die(name)
    assert job.end
    assert job.of(c.FinishJob, taken_over(job)) == [job.end]
