"""Processes come, end and come back: names, causes, back-off, refusals, scaling, servers."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.errors import ExitCode
from elasticdl.job_status import JobStatus, ProcessStatus, UpdateCounts
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.shard import Source
from tests.core.conftest import Bench
from tests.present import present

pytestmark = pytest.mark.core


def started(job: Bench, commands: list[Any] | None = None) -> list[str]:
    return [str(command.name) for command in job.of(c.StartProcess, commands)]


def entry(job: Bench, name: str) -> ProcessStatus:
    return next(process for process in job.state.status().processes if process.name == name)


def test_a_job_starts_all_its_servers_and_the_most_workers_it_may_have() -> None:
    job = Bench(num_workers="1:3", num_ps_pods=2)
    assert started(job, job.start()) == ["ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert started(job, job.tick(1)) == []
    scale = job.state.status().scale
    assert (scale.low, scale.high, scale.requested, scale.observed) == (1, 3, 3, 0)


def test_nothing_starts_before_the_data_was_counted() -> None:
    job = Bench()
    assert job.tick(1) == []
    assert job.state.status().message == "checking the model and the data"


def test_a_worker_comes_back_under_a_new_index_and_a_server_under_the_next_incarnation() -> None:
    job = Bench.running()
    assert started(job, job.die(job.worker(0))) == ["worker-1"]
    assert started(job, job.die(job.ps(0))) == ["ps-0.1"]
    assert started(job, job.die(job.ps(0))) == []
    job.attach(job.ps(0, 1))
    assert started(job, job.die(job.ps(0, 1))) == ["ps-0.2"]


def test_every_end_is_reported_with_its_cause() -> None:
    job = Bench.running(num_workers=1)
    job.die(
        job.worker(0),
        ExitStatus(exit_code=143, conditions=("DisruptionTarget:PreemptionByScheduler",)),
    )
    told = [command for command in job.of(c.Announce) if command.cause]
    assert [(one.process, one.cause) for one in told] == [("worker-0", "preempted")]
    assert entry(job, "worker-0").cause == "preempted"
    assert "higher priority" in entry(job, "worker-0").message


def test_starts_wait_longer_and_longer_while_nothing_gets_done() -> None:
    job = Bench.running()
    delays = []
    for index in range(7):
        (start,) = job.of(c.StartProcess, job.die(job.worker(index)))
        delays.append(start.delay_s)
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.0, 5.0)


def test_a_process_that_crashes_at_once_again_and_again_fails_the_job() -> None:
    job = Bench.running()
    for index in range(5):
        job.die(job.worker(index), ExitStatus(exit_code=3, log_tail="cannot open display"))
    assert "cannot open display" in present(job.state.status().outcome)


def test_addresses_of_servers_are_published_whenever_one_comes_or_goes() -> None:
    job = Bench(num_ps_pods=2)
    job.start()
    job.attach(job.ps(1), job.ps(0))
    job.die(job.ps(0))
    job.attach(job.ps(0, 1))
    assert [command.addresses for command in job.of(c.PublishServers)] == [
        ("", "at-ps-1"),
        ("at-ps-0", "at-ps-1"),
        ("", "at-ps-1"),
        ("at-ps-0.1", "at-ps-1"),
    ]


def checkpoint(job: Bench, version: int, *, pushes: int) -> None:
    """One is taken of that version, with so many pushes of worker-0."""
    (take,) = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, version)))
    job.put(e.SnapshotCut(0, take.snapshot, version, {}, {"worker-0": pushes}))
    job.put(e.SnapshotSaved(0, take.snapshot, version, f"version-{version}", 1))


def restored(**flags: Any) -> Bench:
    """A job whose ps-1 restored version 100, when worker-0 had made 120 pushes."""
    job = Bench.running(num_ps_pods=2, checkpoint_steps=100, **flags)
    checkpoint(job, 100, pushes=100)
    job.pushed(0, 120)
    job.put(e.VersionAdvanced(0, 120))
    job.die(job.ps(1))
    assert "ps-1" in job.refused()
    job.attach(job.ps(1, 1), restored=100)
    return job


def test_updates_that_workers_push_again_are_not_lost() -> None:
    job = restored()
    assert job.updates == UpdateCounts(120, 0, 0, at_least=False)
    assert job.said("ps-1.1 restored version 100; workers push again what came after it")
    job.pushed(0, 120, {job.ps(1, 1): 0})
    assert job.updates == UpdateCounts(120, 0, 0, at_least=False)
    job.die(job.worker(0))
    assert job.updates == UpdateCounts(120, 0, 0, at_least=False)


def test_updates_that_a_worker_has_not_kept_are_lost_and_shown() -> None:
    job = restored()
    job.pushed(0, 120, {job.ps(0): 0, job.ps(1, 1): 105})
    assert job.updates == UpdateCounts(115, 5, 0, at_least=False)
    assert job.said("ps-1.1 lost 5 updates of worker-0, which has not kept them")
    assert not job.said("ps-0 and"), "that one lacks nothing"
    assert not job.said("in time"), "nothing is known of that"
    job.lease()


def test_updates_of_a_worker_that_ends_before_it_pushes_them_again_are_lost() -> None:
    job = restored()
    job.die(job.worker(0))
    assert job.updates == UpdateCounts(100, 20, 0, at_least=False)
    # It had pushed eight of them again, which the servers tell.
    job.put(e.WorkerFenced(0, job.worker(0), (None, None), (120, 108)))
    assert job.updates == UpdateCounts(108, 12, 0, at_least=True)


def test_a_cut_waits_until_workers_have_pushed_again_but_not_for_long() -> None:
    job = restored()
    assert not job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    assert job.of(c.TakeSnapshot, job.pushed(0, 120, {job.ps(1, 1): 0}))
    job = restored()
    assert not job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    job.tick(1)
    job.tick(5)
    assert job.said("waiting for repeated pushes: worker-0 may push again what a server lost")
    # A server that comes back with its memory does not make it longer.
    job.tick(14)
    job.die(job.ps(0))
    job.put(e.ProcessAttached(0, job.ps(0, 1), "c", "at", 120, kept=True))
    assert job.of(c.TakeSnapshot, job.tick(11))


def test_a_cut_waits_for_a_worker_whose_last_pushes_are_not_reported_yet() -> None:
    job = Bench.running(num_ps_pods=2, checkpoint_steps=100)
    job.pushed(0, 100)
    checkpoint(job, 100, pushes=100)
    job.die(job.ps(1))
    job.attach(job.ps(1, 1), restored=100)
    assert not job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    assert job.of(c.TakeSnapshot, job.pushed(0, 120, {job.ps(1, 1): 0}))


def test_a_cut_for_a_server_that_leaves_does_not_wait_for_repeated_pushes() -> None:
    job = restored()
    assert job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0, job.ps(0))))


def test_a_server_that_ended_before_its_checkpoint_hurries_no_later_one() -> None:
    job = restored()
    (take,) = job.of(c.TakeSnapshot, job.put(e.CheckpointRequested(0, job.ps(0))))[:1]
    job.die(job.ps(0))
    job.put(e.SnapshotFailed(0, take.snapshot, "a server is gone"))
    job.attach(job.ps(0, 1), restored=100)
    job.tick(5)
    before = len(job.of(c.TakeSnapshot))
    job.put(e.CheckpointRequested(0))
    assert len(job.of(c.TakeSnapshot)) == before, "workers have yet to push again"
    job.pushed(0, 120, {job.ps(0, 1): 0, job.ps(1, 1): 0})
    assert len(job.of(c.TakeSnapshot)) == before + 1


def test_a_job_does_not_end_while_workers_are_about_to_push_again() -> None:
    job = restored()
    while leases := job.of(c.GrantLease, job.put(e.LeaseRequested(0, job.worker(0)))):
        job.finish(0, leases[0].lease)
    assert not job.of(c.TakeSnapshot)[1:]
    job.pushed(0, 120, {job.ps(1, 1): 0})
    take = job.of(c.TakeSnapshot)[-1]
    # A server is lost after the last cut, too.
    job.put(e.SnapshotCut(0, take.snapshot, 120, {}, {"worker-0": 120}))
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=100)
    job.put(e.SnapshotSaved(0, take.snapshot, 120, "version-120", 1))
    assert not job.said("job over")
    job.pushed(0, 120, {job.ps(0, 1): 0})
    assert job.said("job over: done") and not job.said("that died lost")


def test_a_checkpoint_comes_early_for_workers_that_have_no_room_for_more_pushes() -> None:
    job = Bench.running(checkpoint_seconds=60)
    job.put(e.VersionAdvanced(0, 10))
    assert not job.of(c.TakeSnapshot, job.tick(5))
    (take,) = job.of(
        c.TakeSnapshot, job.put(e.PushesReported(0, job.worker(0), 10, {}, crowded=True))
    )
    job.put(e.SnapshotCut(0, take.snapshot, 10, {}))
    job.tick(1)
    job.put(e.SnapshotSaved(0, take.snapshot, 10, "version-10", 1))
    # It took a second, so the next one is due 50 s later.
    job.put(e.VersionAdvanced(0, 20))
    assert not job.of(
        c.TakeSnapshot, job.put(e.PushesReported(0, job.worker(0), 20, {}, crowded=True))
    )
    assert not job.of(c.TakeSnapshot, job.tick(48))
    # It says so as long as it is so.
    job.put(e.PushesReported(0, job.worker(0), 25, {}, crowded=True))
    (take,) = job.of(c.TakeSnapshot, job.tick(3))
    # Room was made: nobody asks any more.
    job.put(e.SnapshotCut(0, take.snapshot, 20, {}))
    job.put(e.SnapshotSaved(0, take.snapshot, 20, "version-20", 1))
    job.put(e.VersionAdvanced(0, 30))
    assert not job.of(c.TakeSnapshot, job.tick(59))


def test_workers_without_room_do_not_make_checkpoints_fail_without_end() -> None:
    job = Bench.running(checkpoint_seconds=60)
    job.put(e.VersionAdvanced(0, 10))
    tries = 0
    for _ in range(400):
        job.put(e.PushesReported(0, job.worker(0), 10, {}, crowded=True))
        job.tick(0.5)
        tries = len(job.of(c.TakeSnapshot))
        if job.of(c.TakeSnapshot)[tries - 1 :]:
            job.put(e.SnapshotFailed(0, job.of(c.TakeSnapshot)[-1].snapshot, "the disk is full"))
    assert 5 < tries < 10


def test_updates_that_a_restored_part_has_are_not_lost_though_the_cut_lacks_them() -> None:
    """A server that had lost its memory before the cut had not seen the worker again."""
    job = Bench.running(num_ps_pods=2, checkpoint_steps=100)
    (take,) = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 100)))
    behind = {"0": {"worker-0": 70}}
    job.put(e.SnapshotCut(0, take.snapshot, 100, {}, {}, {"worker-0": 90}, behind))
    job.put(e.SnapshotSaved(0, take.snapshot, 100, "version-100", 1))
    job.pushed(0, 120)
    job.put(e.VersionAdvanced(0, 120))
    job.die(job.ps(1))
    job.attach(job.ps(1, 1), restored=100)
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=100)
    # The worker can push none of them again.
    job.pushed(0, 120, {job.ps(1, 1): 120})
    assert job.updates == UpdateCounts(90, 30, 0, at_least=False)
    job.pushed(0, 120, {job.ps(0, 1): 120})
    assert job.updates == UpdateCounts(70, 50, 0, at_least=False)


def test_a_job_that_lost_updates_says_so_at_its_end_and_what_bounds_it() -> None:
    """All records were trained, but some of it went with the server."""
    job = Bench.running(num_ps_pods=1)
    job.pushed(0, 120)
    job.die(job.ps(0))
    job.attach(job.ps(0, 1))
    job.train_all()
    for process in job.state.status().processes:
        if process.state != "ended":
            job.die(ProcessName.parse(process.name), ExitStatus(exit_code=0, asked=True))
    assert job.state.status().exit_code == 0
    assert "done, but parameter servers that died lost 120 updates" in present(
        job.state.status().outcome
    )
    (finish,) = job.of(c.FinishJob)
    assert "--checkpoint-steps" in finish.hint


def test_updates_missing_from_a_checkpoint_are_missing_from_the_job_that_resumes_it() -> None:
    job = Bench.running(num_ps_pods=1, checkpoint_steps=100)
    checkpoint(job, 100, pushes=100)
    job.pushed(0, 120)
    before = job.state.ledger_json()
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=100)
    job.pushed(0, 120, {job.ps(0, 1): 120})
    for ledger, applied, lost in ((before, 120, 0), (job.state.ledger_json(), 100, 20)):
        again = Bench(num_ps_pods=1)
        again.up(ledger=ledger, version=100)
        again.pushed(0, 3)
        assert again.updates == UpdateCounts(applied + 3, lost, 0, at_least=False)


def test_an_update_that_several_servers_lack_is_lost_once() -> None:
    job = Bench.running(num_ps_pods=2, checkpoint_steps=20)
    checkpoint(job, 21, pushes=21)
    job.pushed(0, 25)
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=21)
    job.die(job.ps(0, 1))
    job.die(job.ps(1))
    job.attach(job.ps(0, 2), job.ps(1, 1), restored=21)
    job.pushed(0, 25, {job.ps(0, 2): 25, job.ps(1, 1): 25})
    assert job.updates == UpdateCounts(21, 4, 0, at_least=False)


def test_damaged_checkpoints_that_were_passed_over_are_said_to_people() -> None:
    job = Bench(num_ps_pods=2, checkpoint_steps=100)
    job.put(
        e.JobStarted(
            0,
            (Source("a", 30),),
            version=7,
            passed_over=("version-9/server-0-of-2.bin has 3 bytes",),
        )
    )
    assert job.said("skipping a newer checkpoint: version-9/server-0-of-2.bin has 3 bytes")


def test_a_server_that_passed_the_newest_checkpoint_over_is_known_by_its_version() -> None:
    job = Bench.running(num_ps_pods=1, checkpoint_steps=10)
    for version in (10, 20):
        taken = job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, version)))[0].snapshot
        job.put(e.SnapshotCut(0, taken, version, {}))
        job.put(e.SnapshotSaved(0, taken, version, f"version-{version}", 1))
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=10)
    assert job.said(
        "restored version 10; workers push again what came after it; it could not read the"
        " checkpoint of version 20"
    )
    job.put(e.VersionAdvanced(0, 25))
    job.die(job.ps(0, 1))
    job.attach(job.ps(0, 2), restored=20)
    said = [one for one in job.of(c.Announce) if " restored version " in one.text]
    assert [one.level for one in said] == ["warning", "info"]
    assert said[1].text == "ps-0.2 restored version 20; workers push again what came after it"


def test_leases_stay_valid_while_a_server_is_away() -> None:
    job = Bench.running()
    lease = job.lease()
    job.die(job.ps(0))
    job.progress(0, lease, 8)
    assert job.total["trained"] == 8
    assert any("ps-0.1" in reason for reason in job.state.status().waiting)


def test_a_server_that_just_came_up_does_not_take_the_version_back() -> None:
    job = Bench(checkpoint_steps=10)
    job.start(version=100)
    job.attach(job.ps(0), restored=100)
    job.put(e.VersionAdvanced(0, 0))
    assert job.state.status().version == 100
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 101))) == []
    assert job.of(c.TakeSnapshot, job.put(e.VersionAdvanced(0, 110)))


def test_a_refused_creation_is_tried_again_under_the_same_name_with_its_reason_shown() -> None:
    job = Bench(num_workers=1)
    job.start()
    job.put(e.CreateFailed(0, job.worker(0), "quota cpu 8/8", retry=True))
    assert any(
        "worker-0" in reason and "quota cpu 8/8" in reason for reason in job.state.status().waiting
    )
    assert started(job, job.tick(0.5)) == []
    assert started(job, job.tick(0.6)) == ["worker-0"]
    job.put(e.CreateFailed(0, job.worker(0), "quota cpu 8/8", retry=True))
    assert started(job, job.tick(1.5)) == []
    assert started(job, job.tick(0.6)) == ["worker-0"]
    job.attach(job.worker(0))
    assert entry(job, "worker-0").state == "ready"


def test_a_creation_that_is_never_allowed_fails_the_job_as_refused() -> None:
    job = Bench()
    job.start()
    job.put(e.CreateFailed(0, job.worker(0), "pods is forbidden", retry=False))
    assert job.state.status().exit_code == ExitCode.CLUSTER_REFUSED
    assert "forbidden" in present(job.state.status().outcome)


@pytest.mark.parametrize("retry", [True, False])
def test_a_refused_creation_of_a_worker_that_was_asked_to_end_is_its_end(retry: bool) -> None:
    job = Bench.running(1, num_workers="1:2")
    assert entry(job, "worker-1").state == "requested"
    job.put(e.ScaleRequested(0, 1, 1))
    assert entry(job, "worker-1").state == "stopping"
    job.put(e.CreateFailed(0, job.worker(1), "quota cpu 8/8", retry=retry))
    ended = entry(job, "worker-1")
    assert (ended.state, ended.cause) == ("ended", "drained")
    assert ended.message == "never created: scaled down to 1 worker"
    assert job.state.status().exit_code is None
    assert started(job, job.tick(60.0)) == []


def test_a_worker_that_was_created_after_its_refusal_is_stopped() -> None:
    job = Bench.running(1, num_workers="1:2")
    late = job.worker(1)
    job.put(e.ScaleRequested(0, 1, 1))
    job.put(e.CreateFailed(0, late, "no answer within 30 s", retry=True))
    commands = job.put(e.ProcessSeen(0, late, running=False))
    why = "it was given up before it was created"
    assert job.of(c.StopProcess, commands) == [c.StopProcess(late, 0.0, why)]


def test_a_worker_too_many_for_the_cluster_is_done_without() -> None:
    job = Bench.running(1, num_workers="1:3")
    job.put(e.CreateFailed(0, job.worker(2), "pods is forbidden", retry=False))
    assert job.state.status().exit_code is None
    assert job.state.status().scale.high == 2


def on_ladder(job: Bench, workers: int) -> None:
    """The cluster shows the first workers at the places of their indices."""
    for index in range(workers):
        job.put(e.ProcessSeen(0, job.worker(index), True, "node", ladder_place=index + 1))


def test_scaling_down_gives_up_the_highest_places_of_the_ladder() -> None:
    job = Bench.running(3, num_workers="1:3")
    on_ladder(job, 3)
    job.die(job.worker(0))
    job.attach(job.worker(3))
    job.put(e.ProcessSeen(0, job.worker(3), True, "node", ladder_place=1))
    commands = job.put(e.ScaleRequested(0, 1, 2))
    assert [str(stop.name) for stop in job.of(c.StopProcess, commands)] == ["worker-2"]


def test_scaling_down_keeps_a_replacement_that_the_cluster_has_not_shown_yet() -> None:
    """Its pod takes the lowest free place: that of the worker that ended."""
    job = Bench.running(3, num_workers="1:3")
    on_ladder(job, 3)
    assert started(job, job.die(job.worker(0))) == ["worker-3"]
    commands = job.put(e.ScaleRequested(0, 1, 2))
    assert [str(stop.name) for stop in job.of(c.StopProcess, commands)] == ["worker-2"]


def test_scaling_down_gives_up_workers_on_the_way_whose_places_are_the_highest() -> None:
    job = Bench.running(2, num_workers="1:2")
    on_ladder(job, 2)
    assert started(job, job.put(e.ScaleRequested(0, 1, 4))) == ["worker-2", "worker-3"]
    commands = job.put(e.ScaleRequested(0, 1, 3))
    assert [str(stop.name) for stop in job.of(c.StopProcess, commands)] == ["worker-3"]


def test_a_worker_that_still_ends_holds_its_place() -> None:
    job = Bench.running(3, num_workers="1:3")
    on_ladder(job, 3)
    assert started(job, job.put(e.ReplaceRequested(0, job.worker(0)))) == ["worker-3"]
    commands = job.put(e.ScaleRequested(0, 1, 2))
    assert [str(stop.name) for stop in job.of(c.StopProcess, commands)] == ["worker-3"]


def test_scaling_up_starts_and_scaling_down_drains_the_newest() -> None:
    job = Bench.running(2, num_workers=2)
    assert started(job, job.put(e.ScaleRequested(0, 1, 4))) == ["worker-2", "worker-3"]
    commands = job.put(e.ScaleRequested(0, 1, 1))
    assert [(str(stop.name), stop.grace_s) for stop in job.of(c.StopProcess, commands)] == [
        ("worker-1", 30.0),
        ("worker-2", 30.0),
        ("worker-3", 30.0),
    ]
    assert started(job, job.die(job.worker(1), ExitStatus(exit_code=66, asked=True))) == []
    assert "scaled down" in entry(job, "worker-1").message


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"num_workers": 1}, "steps stay asynchronous, as one worker began them; stop the job"),
        ({"num_workers": 2, "sync": True}, "only 2 compute at a time, as many as share a step"),
    ],
)
def test_scaling_up_says_which_steps_the_job_keeps(flags: dict[str, Any], said: str) -> None:
    job = Bench.running(**flags, minibatch_size=64)
    assert present(job.state.what_steps_stay(4)).startswith(said)
    job.put(e.ScaleRequested(0, 1, 4))
    assert job.said(f"on request; {said}")


@pytest.mark.parametrize("flags", [{"num_workers": 2}, {"num_workers": 4, "sync": True}])
def test_scaling_within_what_the_job_chose_says_no_more(flags: dict[str, Any]) -> None:
    job = Bench.running(**flags, minibatch_size=64)
    assert not job.state.what_steps_stay(4)
    job.put(e.ScaleRequested(0, 1, 4))
    assert not job.said("asynchronous")
    assert not job.said("at a time")


def test_an_impossible_scale_is_refused_in_words() -> None:
    job = Bench.running(2, num_workers=2)
    job.put(e.ScaleRequested(0, 3, 1))
    job.put(e.ScaleRequested(0, 0, 0))
    assert job.said("expected 1 <= MIN <= MAX")
    assert job.state.status().scale.high == 2


def test_a_ring_is_not_scaled_beyond_its_virtual_workers() -> None:
    job = Bench(
        num_workers=2, virtual_workers=3, distribution_strategy="AllreduceStrategy", num_ps_pods=0
    )
    job.put(e.ScaleRequested(0, 1, 3))
    assert job.state.status().scale.high == 3
    job.put(e.ScaleRequested(0, 1, 4))
    assert job.said("cannot change the number of workers to 1:4: the job has --virtual-workers 3")
    job.up()
    assert job.state.why_not_scale(1, 4) == "the job has --virtual-workers 3"
    assert not job.state.why_not_scale(1, 3)
    assert job.state.status().scale.high == 3


def test_a_silent_process_is_ended_and_replaced_without_waiting_for_its_end() -> None:
    job = Bench.running()
    commands = job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    assert job.of(c.StopProcess, commands)[0].grace_s == 0
    assert started(job, commands) == ["worker-1"]
    assert entry(job, "worker-0").state == "lost"
    job.die(job.worker(0))
    assert (entry(job, "worker-0").state, entry(job, "worker-0").cause) == ("ended", "silent")


def test_a_process_whose_end_is_never_seen_is_written_off() -> None:
    job = Bench.running()
    job.put(e.ProcessSilent(0, job.worker(0), 10.0))
    job.tick(61)
    assert entry(job, "worker-0").state == "ended"
    assert "its end was never seen" in entry(job, "worker-0").message


def test_a_process_that_runs_but_never_presents_itself_is_replaced() -> None:
    job = Bench()
    job.start()
    job.attach(job.ps(0))
    job.put(e.ProcessSeen(0, job.worker(0), running=True, where="node-1"))
    assert started(job, job.tick(299)) == []
    assert started(job, job.tick(2)) == ["worker-1"]
    assert entry(job, "worker-0").where == "node-1"


def test_a_job_on_a_cluster_tells_how_many_of_its_workers_have_a_node() -> None:
    job = Bench(image_name="i", num_workers="2:4", priority_ladder="on", weight=2)
    assert present(job.state.status().cluster_share).placed == 0
    job.up(workers=3)
    for index in range(3):
        where = f"node-{index}"
        job.put(e.ProcessSeen(0, job.worker(index), running=index != 2, where=where))
    job.put(e.ProcessSeen(0, job.worker(3), running=False, waiting_for="no room"))
    share = present(job.state.status().cluster_share)
    assert (share.placed, share.low, share.high) == (3, 2, 4)
    assert (share.guaranteed, share.rung, share.weight) == (2, 2, 2)
    assert JobStatus.from_json(job.state.status().to_json()).cluster_share == share
    assert Bench().state.status().cluster_share is None, "on this machine"


def test_why_a_process_does_not_run_yet_is_shown() -> None:
    job = Bench()
    job.start()
    job.put(e.ProcessSeen(0, job.worker(0), running=False, waiting_for="pulling the image"))
    assert "worker-0 is pending: pulling the image" in job.state.status().waiting
    assert job.of(c.StopProcess, job.tick(10_000)) == []


def test_a_process_that_nobody_ordered_is_ended() -> None:
    job = Bench()
    job.start()
    (stop,) = job.of(c.StopProcess, job.put(e.ProcessSeen(0, job.worker(9), running=True)))
    assert stop.name == job.worker(9)
    (revoke,) = job.attach(job.worker(9))
    assert isinstance(revoke, c.RevokeLeases)


def test_a_server_that_its_node_starts_again_is_expected_in_its_place() -> None:
    job = Bench(num_ps_pods=2)
    job.start()
    first, second, place = job.ps(0), job.ps(0, 1), job.ps(0)
    job.put(e.ProcessSeen(0, first, running=True, place=place))
    job.attach(first, job.ps(1))
    assert job.state.resident(place) == first
    # The node is faster than the news of the end.
    following = e.ProcessSeen(0, second, running=True, place=place)
    assert job.of(c.StopProcess, job.put(following)) == []
    assert started(job, job.die(first)) == ["ps-0.1"]
    assert job.state.resident(place) is None
    job.put(following)
    assert job.state.resident(place) == second
    # Another pod took over: nobody is expected in the first one.
    job.die(second)
    job.put(e.ProcessSeen(0, job.ps(0, 2), running=True, place=job.ps(0, 2)))
    assert job.state.resident(place) is None


def test_memory_is_tried_three_times_more_then_the_failure_says_so() -> None:
    job = Bench.running(max_failed_shards=99)
    for index in range(4):
        job.die(job.worker(index), ExitStatus(exit_code=137, reason="OOMKilled"))
        job.attach(job.worker(index + 1))
    assert "memory" in present(job.state.status().outcome)


def test_no_worker_is_started_for_which_there_is_no_work() -> None:
    job = Bench.running(2, num_workers=2)
    for _ in range(3):
        job.finish(0, job.lease(0))
    job.lease(0)
    assert started(job, job.die(job.worker(1))) == []


def test_a_contradiction_tells_the_events_that_led_to_it() -> None:
    job = Bench.running()
    with pytest.raises(
        ImpossibleTransition, match=r"(?s)the last events:.*ProcessAttached.*Strange"
    ):
        job.put(Strange(0))


class Strange(e.Event):
    """No event of this version."""


def test_crashes_with_progress_in_between_end_nothing_and_cost_no_pause() -> None:
    job = Bench.running(records_per_task=8, num_epochs=9)
    for index in range(12):
        job.finish(index, job.lease(index))
        (start,) = job.of(c.StartProcess, job.die(job.worker(index), ExitStatus(exit_code=3)))
        assert start.delay_s == 0
        job.attach(job.worker(index + 1))
    assert job.state.status().exit_code is None


def test_a_heartbeat_that_is_older_than_an_acknowledgement_does_not_lower_the_version() -> None:
    job = Bench.running(num_ps_pods=1)
    job.put(e.VersionAdvanced(0, 10))
    job.finish(0, job.lease(), version=12)
    job.put(e.VersionAdvanced(0, 10))
    assert job.state.status().version == 12
    job.die(job.ps(0))
    job.attach(job.ps(0, 1), restored=5)
    job.put(e.VersionAdvanced(0, 6))
    assert job.state.status().version == 6, "a server came back with an older part"
