"""What a master orders that continues the job of another one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from elasticdl.cluster.base import ProcessName, ProcessObserved
from elasticdl.dropped import DropCause
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.data.pieces import Stage
from elasticdl.master.core.presence import presence_of
from elasticdl.master.core.state import JobState
from elasticdl.shard import Applied, ReceivedLease, Task
from tests.core.conftest import Bench, ps, worker
from tests.core.random_history import SPEC, Script, canonical
from tests.present import present

pytestmark = pytest.mark.core


def taken_over(job: Bench) -> list[c.Command]:
    return job.put(e.MasterTookOver(0, 2, 1.5))


def test_it_says_how_many_processes_kept_running() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1)
    job.die(worker(1))
    [said] = [one for one in job.of(c.Announce, taken_over(job)) if one.kind == "job"]
    assert said.text == "another master continues the job after 1.5 s; 2 processes kept running"
    assert said.details["term"] == 2 and said.details["away_s"] == 1.5


def test_servers_are_asked_again_about_a_lost_worker_and_not_so_soon_after() -> None:
    job = Bench.running(num_ps_pods=1)
    job.lease()
    job.die(worker(0))
    job.tick(20)
    assert c.FenceWorker(worker(0)) in taken_over(job)
    assert not job.of(c.FenceWorker, job.tick(20)), "30 s after the newest order, not before"
    assert job.of(c.FenceWorker, job.tick(11)) == [c.FenceWorker(worker(0))]
    job.fenced(0, None)
    assert not job.of(c.FenceWorker, taken_over(job))


def test_who_has_ended_is_gone_for_the_next_master_and_nobody_else() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1)
    job.die(worker(1))
    parts = job.state._parts
    found = presence_of(parts.context, parts.coordination, parts.checkpointing)
    assert (found.gone, found.fenced) == ((worker(1),), (worker(1),))
    assert {one.name for one in found.attached} == {ps(0), worker(0)}


def test_the_next_master_knows_who_still_starts() -> None:
    job = Bench.running(num_workers=2, num_ps_pods=1)
    late = worker(1)
    job.put(e.ProcessAttached(0, late, starting=True))

    def starting() -> set[ProcessName]:
        return {one.name for one in job.state.presence().attached if one.starting}

    assert starting() == {late}
    job.put(e.StartWentOn(0, late, "build"))
    assert starting() == {late}
    job.put(e.StartWentOn(0, late, ""))
    assert not starting()


def test_a_worker_that_comes_back_has_time_from_now_on() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1)
    job.tick(50)
    taken_over(job)
    context = job.state._parts.context
    process = present(context.worker(worker(0)))
    process.busy_since_s = 1.0
    job.put(e.ProcessReturned(0, worker(0)))
    assert process.busy_since_s == 50.0 and not context.dropped
    job.put(e.ProcessReturned(0, worker(7)))
    assert context.dropped == {DropCause.ENDED_PROCESS: 1}


def test_another_range_of_workers_is_kept_again_and_only_then() -> None:
    job = Bench.running(num_workers="1:3", num_ps_pods=1)
    assert not job.of(c.KeepScale, taken_over(job))
    job.put(e.ScaleRequested(0, 2, 2))
    assert job.of(c.KeepScale, taken_over(job)) == [c.KeepScale(2, 2)]


def test_a_job_that_is_ending_ends_only_once_its_processes_have_left() -> None:
    job = Bench.running(num_ps_pods=1)
    job.put(e.StopRequested(0, "Ctrl-C"))
    while job.state.status().phase != "ending":
        job.tick(30)
    assert not job.of(c.FinishJob, taken_over(job))
    for name in (worker(0), ps(0)):
        job.die(name)
    assert job.end
    assert job.of(c.FinishJob, taken_over(job)) == [job.end]


def test_leases_that_reached_a_worker_stay_and_the_others_go_to_anybody() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1, records_per_task=32)
    first, second = job.lease(), job.lease()
    taken_over(job)
    job.put(e.ProcessReturned(0, worker(0), (ReceivedLease.of(first),)))
    again = job.lease(1)
    assert (again.shard, again.attempt) == (second.shard, 1)
    job.finish(0, first)
    assert job.total["trained"] == 32


def test_what_servers_are_asked_about_is_not_taken_back() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1)
    lease = job.lease()
    job.put(e.LeaseReturned(0, worker(0), Applied(present(lease.shard).id, 0, 8)))
    taken_over(job)
    job.put(e.ProcessReturned(0, worker(0)))
    [held] = present(job.state._parts.context.work).held_by(worker(0))
    assert held.stage is Stage.SETTLING
    job.fenced(0, Applied(present(lease.shard).id, 0, 16))
    assert job.total["trained"] == 16


def test_a_summary_that_did_not_reach_its_worker_is_asked_of_another() -> None:
    job = Bench.running(2, num_workers=2, validation_data="v", evaluation_steps=10, num_epochs=9)
    job.put(e.VersionAdvanced(0, 10))
    job.cut(11)
    evaluated = job.lease()
    current = present(job.state._parts.evaluation.round)
    for received, holder in (((ReceivedLease.of(evaluated),), worker(0)), ((), None)):
        taken_over(job)
        job.put(e.ProcessReturned(0, worker(0), received))
        assert [one.worker for one in current.ledger.held.values()] == [holder] * bool(holder)
    job.finish(1, job.lease(1), metrics={"auc": ((1.0, 2.0), (0.5,))})
    summary = job.lease()
    assert summary.task is Task.SUMMARY
    for name, received, holder in (
        (worker(1), (), worker(0)),
        (worker(0), (ReceivedLease.of(summary),), worker(0)),
        (worker(0), (), None),
    ):
        taken_over(job)
        job.put(e.ProcessReturned(0, name, received))
        assert current.summary.holder == holder


def test_a_worker_with_revoked_shards_is_told_so_by_the_next_master() -> None:
    job = Bench.running(2, num_workers=2, num_ps_pods=1)
    lease = job.lease()
    job.state._parts.leasing.revocation.revoke(worker(0), "slow")
    taken_over(job)
    given = job.put(e.ProcessReturned(0, worker(0), (ReceivedLease.of(lease),)))
    assert [one for one in given if isinstance(one, c.RevokeLeases | c.AskState)] == [
        c.RevokeLeases(worker(0), "they were revoked meanwhile"),
        c.AskState(worker(0)),
    ]
    assert not job.put(e.ProcessReturned(0, worker(1)))
    assert not job.put(e.ProcessReturned(0, ps(0)))


def test_what_the_cluster_shows_again_is_no_news() -> None:
    """A master that takes over is shown all processes, and drops what would change nothing."""
    job = Bench(num_workers=1, num_ps_pods=1)
    job.start()
    shown = ProcessObserved(worker(0), running=True, where="node")
    assert job.state.is_news(shown)
    job.attach(ps(0), worker(0))
    assert job.state.is_news(shown), "it attached sooner than it was seen"
    job.put(e.ProcessSeen(0, worker(0), True, "node"))
    assert not job.state.is_news(shown)
    before = canonical(job.state)
    job.put(e.ProcessSeen(0, worker(0), shown.running, shown.where))
    assert canonical(job.state) == before
    assert job.state.is_news(replace(shown, where="another"))
    assert job.state.is_news(replace(shown, place=worker(5)))
    assert job.state.is_news(replace(shown, name=worker(7)))


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_what_is_no_news_changes_nothing_at_any_time(seed: int) -> None:
    choose = random.Random(seed)
    script, state, known = Script(choose), JobState(SPEC), 0
    for _ in range(250):
        script.heard(state.handle(script.next()))
        going = sorted(state.going)
        name = choose.choice([*going, worker(9)])
        where = choose.choice(["n", "n", "", "another"])
        shown = ProcessObserved(name, choose.random() < 0.8, where)
        if not state.is_news(shown):
            known += 1
            # It is made when it is needed.
            state._context.processes.live_workers()
            before = canonical(state)
            state.handle(e.ProcessSeen(state.now_s, name, shown.running, where))
            assert canonical(state) == before
    assert known > 3


def test_what_a_worker_does_has_not_ended_because_another_master_hears_of_it() -> None:
    """Its limit follows from the longest that came to an end."""
    job = Bench.running()
    job.lease()
    job.put(e.ActivityReported(0, worker(0), "feed", 5.0))
    job.t += 100.0
    job.put(e.MasterTookOver(0, 2, 1.0))
    job.put(e.ActivityReported(0, worker(0), "feed", 99.0))
    activities = job.state._parts.stragglers._activities
    activity = present(activities.of(job.state._context.processes.all[worker(0)]))
    assert activity.since_s == -5.0 and not activities._longest_s
    job.put(e.ActivityReported(0, worker(0), "feed", 1.0))
    assert activities._longest_s == {"feed": 105.0}
