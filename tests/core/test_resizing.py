"""The number of parameter servers changes while the job trains."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.ps.resizing import LOAD_LIMIT_S, MOVE_LIMIT_S, START_LIMIT_S
from elasticdl.shard import Applied
from tests.core.conftest import KILLED, Bench, ps, worker
from tests.present import present

pytestmark = pytest.mark.core
C = TypeVar("C", bound=c.Command)


def of(kind: type[C], commands: list[c.Command]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def said(commands: list[c.Command], kind: str = "scale") -> str:
    return "\n".join(one.text for one in of(c.Announce, commands) if one.kind == kind)


def training(**flags: Any) -> Bench:
    """A job with two servers that has trained a minibatch."""
    job = Bench.running(**{"num_ps_pods": 2, "checkpoint_seconds": 0, **flags})
    job.progress(0, job.lease(), 8, version=1, pushes=1)
    return job


def asked(job: Bench, number: int = 3) -> list[c.Command]:
    return job.put(e.ScaleServersRequested(0, number))


def stand_by(job: Bench, *indices: int) -> list[c.Command]:
    return [one for index in indices for one in job.put(e.ServerStandsBy(0, ps(index)))]


def standing(job: Bench, number: int = 3) -> c.TakeSnapshot:
    """A change up to the cut of the first checkpoint that the new servers load."""
    started = [one.name.index for one in of(c.StartProcess, asked(job, number))]
    (taken,) = of(c.TakeSnapshot, stand_by(job, *started))
    return taken


def written(job: Bench, taken: c.TakeSnapshot, path: str) -> list[c.Command]:
    """A checkpoint from its cut on; what its last event led to."""
    (save,) = of(c.SaveSnapshot, job.put(e.SnapshotCut(0, taken.snapshot, 1, {})))
    assert save.hurried
    return job.put(e.SnapshotSaved(0, save.snapshot, 1, path, 9))


def load(job: Bench, order: c.LoadServers) -> list[c.Command]:
    return [
        one for name in order.servers for one in job.put(e.ServerStandsBy(0, name, order.directory))
    ]


def gone(job: Bench, directory: str, *indices: int) -> list[c.Command]:
    """New servers report that a checkpoint was removed before they could load it."""
    return [
        one
        for index in indices
        for one in job.put(e.ServerStandsBy(0, ps(index), not_loaded=directory))
    ]


def sealed(job: Bench, number: int = 3) -> c.TakeSnapshot:
    """A change up to its cut."""
    (order,) = of(c.LoadServers, written(job, standing(job, number), "version-1"))
    (taken,) = of(c.TakeSnapshot, load(job, order))
    return taken


def saved(job: Bench, number: int = 3) -> c.RestoreServers:
    """A change up to the order to restore."""
    (order,) = of(c.RestoreServers, written(job, sealed(job, number), "version-1"))
    return order


def moved(job: Bench, number: int = 3) -> list[c.Command]:
    """A whole change; what the last event led to."""
    return job.attach(*saved(job, number).servers, restored=1)


def test_new_servers_start_beside_those_that_serve() -> None:
    job = training()
    commands = asked(job)
    assert [one.name for one in of(c.StartProcess, commands)] == [ps(2), ps(3), ps(4)]
    assert job.lease(), "training continues"
    assert "0 of 3 new servers have started" in job.state.status().waiting[0]
    assert not of(c.TakeSnapshot, stand_by(job, 2, 3))


def test_new_servers_load_a_checkpoint_while_training_continues() -> None:
    job = training()
    taken = standing(job)
    assert not taken.seal and taken.purpose is c.Purpose.CHECKPOINT
    (order,) = of(c.LoadServers, written(job, taken, "version-1"))
    assert order == c.LoadServers((ps(2), ps(3), ps(4)), "version-1")
    assert job.lease(), "training continues"
    assert "0 of 3 new servers have loaded checkpoint 1" in job.state.status().waiting[0]


def test_a_sealed_checkpoint_is_cut_when_all_new_servers_have_loaded_one() -> None:
    taken = sealed(training())
    assert taken.seal and taken.purpose is c.Purpose.CHECKPOINT


def rounds_of(job: Bench, times_s: list[float]) -> int:
    """Rounds before the cut that seals, if loading takes so long in each."""
    taken = standing(job)
    for number, took_s in enumerate(times_s):
        (order,) = of(c.LoadServers, written(job, taken, f"version-{number}"))
        job.tick(took_s)
        (taken,) = of(c.TakeSnapshot, load(job, order))
        if taken.seal:
            return number + 1
    raise AssertionError(f"nothing is sealed after {times_s}")


@pytest.mark.parametrize(
    "times_s, rounds",
    [
        ([0.1], 1),
        ([20.0, 4.0, 1.0, 0.2], 4),  # short enough
        ([20.0, 4.0, 3.9], 3),  # as many rows change as are loaded
        ([64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0], 6),
    ],
)
def test_checkpoints_are_loaded_until_they_take_no_less_time(
    times_s: list[float], rounds: int
) -> None:
    assert rounds_of(training(), times_s) == rounds


def test_a_checkpoint_that_others_asked_for_is_loaded_too() -> None:
    """The delta that is restored under the seal is of the newest one."""
    job = training()
    (order,) = of(c.LoadServers, written(job, standing(job), "version-1"))
    (taken,) = of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    (save,) = of(c.SaveSnapshot, job.put(e.SnapshotCut(0, taken.snapshot, 2, {})))
    assert not save.hurried and save.held == ("version-1",), "it is being loaded"
    commands = job.put(e.SnapshotSaved(0, taken.snapshot, 2, "version-2", 9))
    assert not of(c.LoadServers, commands), "one at a time"
    (again,) = of(c.LoadServers, load(job, order))
    assert again.directory == "version-2"
    assert not of(c.TakeSnapshot, load(job, order)), "a late answer"
    assert [one.seal for one in of(c.TakeSnapshot, load(job, again))] == [True]


def test_new_servers_do_not_wait_for_the_pauses_of_a_checkpoint() -> None:
    job = training(checkpoint_seconds=60)
    (due,) = of(c.TakeSnapshot, job.tick(60))
    (save,) = of(c.SaveSnapshot, job.put(e.SnapshotCut(0, due.snapshot, 1, {})))
    assert save.pause_s > 0 and not of(c.HurrySnapshot, asked(job))
    commands = stand_by(job, 2, 3, 4)
    assert of(c.HurrySnapshot, commands) == [c.HurrySnapshot(save.snapshot)]
    assert not of(c.TakeSnapshot, commands)


def test_what_new_servers_load_and_what_they_load_next_is_not_removed() -> None:
    job = training()
    (order,) = of(c.LoadServers, written(job, standing(job), "version-1"))
    held = []
    for version in (2, 3):
        (taken,) = of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
        (save,) = of(c.SaveSnapshot, job.put(e.SnapshotCut(0, taken.snapshot, version, {})))
        held.append(save.held)
        job.put(e.SnapshotSaved(0, taken.snapshot, version, f"version-{version}", 9))
    assert held == [("version-1",), ("version-1", "version-2")]
    (again,) = of(c.LoadServers, load(job, order))
    assert again.directory == "version-3"


def test_a_server_that_could_not_load_a_checkpoint_loads_the_newest() -> None:
    job = training()
    (order,) = of(c.LoadServers, written(job, standing(job), "version-1"))
    load(job, c.LoadServers(order.servers[:2], "version-1"))
    (taken,) = of(c.TakeSnapshot, gone(job, "version-1", 4))
    assert not taken.seal, "one server lacks it"
    (again,) = of(c.LoadServers, written(job, taken, "version-2"))
    assert again == c.LoadServers(order.servers, "version-2")
    (taken,) = of(c.TakeSnapshot, load(job, again))
    assert taken.seal


def test_a_checkpoint_that_all_new_servers_miss_counts_once() -> None:
    """Late reports of it were charged to the newer one that they were told to load next."""
    job = training()
    written(job, standing(job), "version-1")
    (taken,) = of(c.TakeSnapshot, job.put(e.CheckpointRequested(0)))
    job.put(e.SnapshotCut(0, taken.snapshot, 2, {}))
    job.put(e.SnapshotSaved(0, taken.snapshot, 2, "version-2", 9))
    (again,) = of(c.LoadServers, gone(job, "version-1", 2, 3, 4))
    assert again.directory == "version-2"
    (taken,) = of(c.TakeSnapshot, gone(job, "version-2", 2, 3, 4))
    assert not of(c.LoadServers, stand_by(job, 2, 3, 4)), "calls that are repeated"
    (again,) = of(c.LoadServers, written(job, taken, "version-3"))
    (taken,) = of(c.TakeSnapshot, load(job, again))
    assert taken.seal


def test_new_servers_that_miss_three_checkpoints_end_the_try() -> None:
    job = training()
    taken = standing(job)
    for path in ("version-1", "version-2"):
        written(job, taken, path)
        (taken,) = of(c.TakeSnapshot, gone(job, path, 3))
    written(job, taken, "version-3")
    commands = gone(job, "version-3", 3)
    assert "ps-3 cannot load version-3" in said(commands)
    assert {one.name for one in of(c.StopProcess, commands)} == {ps(2), ps(3), ps(4)}


def test_a_checkpoint_before_the_seal_that_fails_is_taken_again() -> None:
    job = training()
    taken = standing(job)
    for _ in range(2):
        assert not of(c.StopProcess, job.put(e.SnapshotFailed(0, taken.snapshot, "a lost call")))
        (taken,) = of(c.TakeSnapshot, job.tick(60))
        assert not taken.seal
    commands = job.put(e.SnapshotFailed(0, taken.snapshot, "the disk is full"))
    assert "the disk is full" in said(commands) and not of(c.UnsealServers, commands)
    assert not of(c.PruneCheckpoints, commands), "there is none yet"
    assert {one.name for one in of(c.StopProcess, commands)} == {ps(2), ps(3), ps(4)}


def test_loading_that_takes_too_long_is_given_up_and_training_went_on() -> None:
    job = training()
    written(job, standing(job), "version-1")
    commands = job.tick(LOAD_LIMIT_S + 1)
    assert "loading took more than 1800 s" in said(commands)
    assert of(c.PruneCheckpoints, commands) == [c.PruneCheckpoints(1)]
    assert not of(c.UnsealServers, commands), "nothing was sealed"


def test_the_map_changes_when_all_new_servers_have_restored_the_cut() -> None:
    job = training()
    order = saved(job)
    assert order.servers == (ps(2), ps(3), ps(4)) and order.directory == "version-1"
    assert not of(c.PublishServers, job.attach(ps(2), ps(3), restored=1))
    commands = job.attach(ps(4), restored=1)
    (published,) = of(c.PublishServers, commands)
    assert (published.first, published.addresses) == (2, ("at-ps-2", "at-ps-3", "at-ps-4"))
    assert of(c.FinishServers, commands) == [c.FinishServers((ps(0), ps(1)))]
    assert of(c.KeepServers, commands) == [c.KeepServers(3)]
    assert of(c.PruneCheckpoints, commands) == [c.PruneCheckpoints(1)]
    assert "from 2 to 3 servers at version 1" in said(commands)
    again = job.put(e.MasterTookOver(0, 2, 1.0))
    assert of(c.PruneCheckpoints, again) == [c.PruneCheckpoints(1)], "perhaps it did not"
    job.die(ps(0), ExitStatus(exit_code=0))
    job.die(ps(1))
    assert not of(c.StartProcess, job.tick()), "nobody replaces them"
    assert job.state.status().waiting == ()


def test_the_event_says_how_long_workers_waited_for_each_part() -> None:
    job = training()
    taken = sealed(job)
    job.tick(1)
    job.put(e.SnapshotCut(0, taken.snapshot, 1, {}))
    job.tick(2)
    job.put(e.SnapshotSaved(0, taken.snapshot, 1, "version-1", 9))
    job.tick(3)
    commands = job.attach(ps(2), ps(3), ps(4), restored=1)
    assert "workers waited 6.00 s (1.00 to seal, 2.00 to save, 3.00 to restore)" in said(commands)
    (event,) = [one for one in of(c.Announce, commands) if "waited_s" in one.details]
    parts = ("waited_s", "seal_s", "save_s", "restore_s")
    assert [event.details[part] for part in parts] == [6, 1, 2, 3]


def test_there_and_back_again_takes_indices_that_no_server_had() -> None:
    job = training()
    moved(job, 3)
    (published,) = of(c.PublishServers, moved(job, 2))
    assert (published.first, len(published.addresses)) == (5, 2)


def test_the_checkpoint_of_a_change_is_not_copied() -> None:
    job = training(checkpoint_dir="s3://bucket/a", checkpoint_steps=100)
    taken = sealed(job)
    (save,) = of(c.SaveSnapshot, job.put(e.SnapshotCut(0, taken.snapshot, 1, {})))
    assert save.hurried


@pytest.mark.parametrize("copied", [True, False])
def test_checkpoints_of_a_change_do_not_postpone_the_next_copy(copied: bool) -> None:
    where = {"checkpoint_dir": "s3://bucket/a"} if copied else {}
    by_time = training(checkpoint_seconds=60, **where)
    by_time.tick(40)
    taken = standing(by_time)
    written(by_time, taken, "version-1")
    by_time.put(e.VersionAdvanced(0, 2))
    assert bool(of(c.TakeSnapshot, by_time.tick(30))) == copied
    by_steps = training(checkpoint_steps=2, **where)
    taken = standing(by_steps)
    (save,) = of(c.SaveSnapshot, by_steps.put(e.SnapshotCut(0, taken.snapshot, 2, {})))
    by_steps.put(e.SnapshotSaved(0, save.snapshot, 2, "version-2", 9))
    assert bool(of(c.TakeSnapshot, by_steps.put(e.VersionAdvanced(0, 2)))) == copied


@pytest.mark.parametrize("until", [sealed, saved])
@pytest.mark.parametrize("lost", [ps(0), ps(3)])
def test_a_server_that_ends_before_the_map_changes_undoes_the_seal(until: Any, lost: Any) -> None:
    job = training()
    until(job)
    commands = job.die(lost)
    assert len(of(c.UnsealServers, commands)) == 1
    stopped = of(c.StopProcess, commands)
    # Also one that has ended: the memory of its index is of no use.
    assert {one.name for one in stopped if one.for_good} == {ps(2), ps(3), ps(4)}
    assert len(stopped) == 3
    assert f"{lost} ended" in said(commands)
    assert not of(c.PublishServers, commands) or lost == ps(0)
    if lost == ps(0):
        job.attach(ps(0, 1), restored=1)
    assert [one.name for one in of(c.StartProcess, job.tick(10))] == [ps(5), ps(6), ps(7)]


def test_a_change_that_always_fails_is_given_up_after_three_tries() -> None:
    job = training()
    asked(job)
    for first in (2, 5, 8):
        job.tick(10)
        commands = job.die(ps(first))
    assert "the job keeps 2 parameter servers instead of 3" in said(commands)
    assert not of(c.StartProcess, job.tick(10))
    assert job.state.status().phase == "working"


def test_a_cut_that_fails_undoes_the_seal() -> None:
    job = training()
    taken = sealed(job)
    commands = job.put(e.SnapshotFailed(0, taken.snapshot, "the disk is full"))
    assert of(c.UnsealServers, commands) == [c.UnsealServers(taken.snapshot)]
    assert "the disk is full" in said(commands)


def test_a_move_that_takes_too_long_is_undone() -> None:
    job = training()
    saved(job)
    assert not of(c.UnsealServers, job.tick(MOVE_LIMIT_S - 1))
    assert of(c.UnsealServers, job.tick(2))


def test_a_move_is_no_stall() -> None:
    """Workers wait for it, and it has a limit of its own."""
    job = training()
    job.progress(0, job.lease(), 8, version=2, pushes=2)
    saved(job)
    commands = [one for _ in range(int(MOVE_LIMIT_S) - 5) for one in job.tick(1)]
    assert not of(c.FinishJob, commands) and job.state.status().stall is None
    assert not of(c.StopProcess, commands)


def test_new_servers_that_do_not_start_are_given_up() -> None:
    job = training()
    asked(job)
    stand_by(job, 2)
    commands = job.tick(START_LIMIT_S + 1)
    assert "ps-3 did not start within 600 s" in said(commands)
    assert {ps(2), ps(3), ps(4)} <= {one.name for one in of(c.StopProcess, commands)}


def test_another_master_undoes_the_seal_and_begins_again() -> None:
    job = training()
    taken = sealed(job)
    commands = job.put(e.MasterTookOver(0, 2, 1.0))
    assert c.UnsealServers(taken.snapshot) in commands
    assert [one.name for one in of(c.StartProcess, commands)][-3:] == [ps(5), ps(6), ps(7)]


def test_another_master_after_the_change_keeps_the_new_map() -> None:
    job = training()
    moved(job)
    commands = job.put(e.MasterTookOver(0, 2, 1.0))
    (published,) = of(c.PublishServers, commands)
    assert published.first == 2
    assert of(c.FinishServers, commands) == [c.FinishServers((ps(0), ps(1)))]
    assert c.KeepServers(3) in commands, "the master before may not have kept it"
    assert not of(c.UnsealServers, commands)
    assert {one.name for one in of(c.StopProcess, job.tick(40))} == {ps(0), ps(1)}


def test_a_server_whose_parameters_moved_says_so_when_it_has_ended() -> None:
    job = training()
    moved(job)
    commands = job.die(ps(0), ExitStatus(exit_code=0))
    (retired,) = [process for process in job.state.status().processes if process.name == "ps-0"]
    assert (retired.cause, retired.message) == ("finished", "its parameters moved")
    assert "ps-0 ended: its parameters moved" in said(commands, "process")


def test_another_master_undoes_a_seal_again_that_was_undone_before() -> None:
    job = training()
    taken = sealed(job)
    job.die(ps(2))
    assert c.UnsealServers(taken.snapshot) in job.put(e.MasterTookOver(0, 2, 1.0))
    # Also while it tries again.
    job.tick(10)
    assert c.UnsealServers(taken.snapshot) in job.put(e.MasterTookOver(0, 3, 1.0))


def test_nothing_else_is_cut_while_servers_are_sealed() -> None:
    job = training()
    saved(job)
    job.put(e.CheckpointRequested(0))
    assert not of(c.TakeSnapshot, job.tick(10))
    commands = job.attach(ps(2), ps(3), ps(4), restored=1)
    (taken,) = of(c.TakeSnapshot, commands)
    assert not taken.seal


def test_a_stopped_job_does_not_change_any_more() -> None:
    job = training()
    taken = sealed(job)
    commands = job.put(e.StopRequested(0, "enough"))
    assert of(c.UnsealServers, commands) == [c.UnsealServers(taken.snapshot)]
    assert "the job keeps 2 parameter servers instead of 3" in said(commands)


def test_an_evaluation_round_loses_its_view_and_is_cut_again() -> None:
    job = training(validation_data="v", evaluation_steps=1)
    job.put(e.VersionAdvanced(0, 1))
    (taken,) = of(c.TakeSnapshot, job.given)
    assert taken.purpose is c.Purpose.EVALUATION
    job.put(e.SnapshotCut(0, taken.snapshot, 1, {}))
    job.given.clear()
    moved(job)
    job.tick(10)
    again = [one.purpose for one in of(c.TakeSnapshot, job.given)]
    assert again == [c.Purpose.CHECKPOINT, c.Purpose.CHECKPOINT, c.Purpose.EVALUATION]


def test_a_lost_server_of_the_new_map_comes_back_as_usual() -> None:
    job = training()
    moved(job)
    assert [one.name for one in of(c.StartProcess, job.die(ps(3)))] == [ps(3, 1)]
    assert any("ps-3.1 is" in one for one in job.state.status().waiting)


def test_updates_before_and_after_a_change_are_counted_once_and_none_is_lost() -> None:
    job = training()
    taken = sealed(job)
    job.put(
        e.SnapshotCut(0, taken.snapshot, 1, {"worker-0": Applied(0, 0, 8)}, {"worker-0": 1})  # type: ignore[arg-type]
    )
    job.put(e.SnapshotSaved(0, taken.snapshot, 1, "version-1", 9))
    job.attach(ps(2), ps(3), ps(4), restored=1)
    job.pushed(0, 3, {ps(2): 1, ps(3): 1, ps(4): 1})
    updates = present(job.state.receipt().updates)
    assert (updates.applied, updates.lost, updates.at_least) == (3, 0, False)
    # One of the new servers starts again from that checkpoint.
    job.die(ps(3))
    job.attach(ps(3, 1), restored=1)
    job.pushed(0, 4, {ps(3, 1): 3})
    updates = present(job.state.receipt().updates)
    assert (updates.applied, updates.lost, updates.at_least) == (2, 2, False)


def test_updates_lost_before_a_change_are_settled_by_the_first_push_after_it() -> None:
    job = training()
    job.die(ps(1))
    job.attach(ps(1, 1), restored=None)
    assert present(job.state.receipt().updates).lost == 1
    moved(job)
    job.pushed(0, 3, {ps(2): 2, ps(3): 2, ps(4): 2})
    updates = present(job.state.receipt().updates)
    assert (updates.applied, updates.lost) == (1, 2)
    # A worker that begins after the change has lost nothing.
    job.attach(worker(1)) if worker(1) in job.state.going else None
    assert present(job.state.receipt().updates).lost == 2


def test_a_worker_that_first_reports_after_two_changes_lost_nothing_before() -> None:
    job = training()
    job.die(ps(1))
    job.attach(ps(1, 1), restored=None)
    moved(job, 3)
    moved(job, 2)
    before = present(job.state.receipt().updates).lost
    # Its first push went to the first map that followed, its second to the next one.
    job.pushed(1, 2, {ps(2): 0, ps(3): 0, ps(4): 0, ps(5): 1, ps(6): 1})
    assert present(job.state.receipt().updates).lost == before


def test_the_same_number_changes_nothing() -> None:
    job = training()
    assert not of(c.StartProcess, asked(job, 2))
    assert job.state.status().waiting == ()


def test_another_number_replaces_one_that_has_not_sealed_anything() -> None:
    job = training()
    asked(job, 3)
    commands = asked(job, 4)
    assert {one.name for one in of(c.StopProcess, commands)} == {ps(2), ps(3), ps(4)}
    assert len(of(c.StartProcess, commands)) == 4


@pytest.mark.parametrize(
    "flags, why",
    [
        ({"sync": True}, "synchronous steps"),
        ({"gang": True, "image_name": "i"}, "--gang"),
        ({"distribution_strategy": "AllreduceStrategy", "num_ps_pods": 0}, "no parameter servers"),
    ],
)
def test_some_jobs_cannot_change(flags: dict[str, Any], why: str) -> None:
    job = Bench(**{"num_ps_pods": 2, **flags})
    job.start()
    assert why in present(job.state.why_not_scale_servers())
    assert why in said(asked(job))


def test_a_job_that_does_not_train_cannot_change() -> None:
    job = Bench(Action.EVALUATE, num_ps_pods=2)
    job.start()
    assert "does not train" in present(job.state.why_not_scale_servers())


def test_a_new_server_that_fails_costs_none_of_the_budget() -> None:
    job = training(max_relaunches=0)
    asked(job)
    job.die(ps(2), KILLED)
    job.put(e.CreateFailed(0, ps(3), "no right to create pods", False))
    assert job.state.status().phase == "working"
