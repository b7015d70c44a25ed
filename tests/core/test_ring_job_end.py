"""How jobs on a ring end before all is trained: by a person in a hurry, by the module's own
code.
"""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName, Role
from elasticdl.errors import ExitCode
from elasticdl.master.core import events as e
from elasticdl.shard import Task
from tests.core.ring_world import RingWorld, started
from tests.present import present

pytestmark = pytest.mark.core


def test_a_job_that_is_ended_at_once_forms_no_rings_of_those_that_are_about_to_end() -> None:
    world = started(num_workers=3, num_epochs=9)
    world.run_until(lambda: world.newest.version == 6)
    world.put(e.StopRequested(0, "enough"))
    formed = list(world.generations)
    world.put(e.StopRequested(0, "signal 15"))
    world.run_out()
    assert world.finish.exit_code is ExitCode.INTERRUPTED and not world.saved
    assert world.generations == formed
    assert world.t < 30


def test_a_stop_of_a_ring_whose_step_never_returns_ends_within_the_grace_and_says_why() -> None:
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=100)
    world.run_until(lambda: world.newest.version == 6)
    hung = world.newest_ring
    assert hung is not None
    world.step = lambda: None  # type: ignore[method-assign]
    world.drain = lambda worker: None  # type: ignore[method-assign]
    world.put(e.StopRequested(0, "enough"))
    begun_s = world.t
    world.tick(6.0)
    world.put(e.ActivityReported(0, hung.members[1], "a step", 6.0))
    while world.state.status().phase in ("draining", "checkpointing"):
        world.tick(0.5)
        assert world.t - begun_s < 30
    assert not world.saved
    outcome = present(world.state.status().outcome)
    assert "the ring has not stopped: worker-1 has been in a step for 25 s" in outcome
    assert "gone" not in outcome


def test_the_last_checkpoint_of_a_stopped_ring_did_not_fail_for_the_stop() -> None:
    """It took the reason why an earlier checkpoint failed, "stopping the job", for its own."""
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=8)
    world.run_until(lambda: world.state._checkpointing.under_way)
    world.step = lambda: None  # type: ignore[method-assign]
    world.drain = lambda worker: None  # type: ignore[method-assign]
    world.put(e.StopRequested(0, "enough"))
    assert any("checkpoint failed: stopping the job" in one.text for one in world.announced)
    while world.state.status().phase in ("draining", "checkpointing"):
        world.tick(0.5)
    outcome = present(world.state.status().outcome)
    assert "the last checkpoint failed: " in outcome
    assert "stopping the job" not in outcome


def test_a_stopped_ring_is_not_given_up_for_a_worker_that_is_not_in_it() -> None:
    """It gave up the last checkpoint for a worker that still imported TensorFlow."""
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=100)
    world.run_until(lambda: world.newest.version == 6)
    world.put(e.ScaleRequested(0, 3, 3))
    world.pending.clear()
    starts = ProcessName(Role.WORKER, 2)
    world.put(e.ProcessAttached(0, starts, starting=True))
    world.put(e.ActivityReported(0, starts, "importing TensorFlow"))
    world.put(e.StopRequested(0, "enough"))
    world.tick(26.0)
    saves(world)


def test_a_low_limit_for_stalls_does_not_give_up_a_stopped_ring_sooner() -> None:
    """With `--stall-seconds 5` it gave up the last checkpoint for a step of 6 s."""
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=100, stall_seconds=5)
    world.run_until(lambda: world.newest.version == 6)
    member = world.ring.members[1]
    world.put(e.StopRequested(0, "enough"))
    world.put(e.ActivityReported(0, member, "feed"))
    world.tick(18.0)
    world.put(e.ActivityReported(0, member, "a step"))
    world.tick(8.0)
    saves(world)


def test_the_last_checkpoint_of_a_stopped_ring_is_written_however_long_that_takes() -> None:
    """It was given up 30 s after the ring had stopped, while a member was writing."""
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=100)
    world.run_until(lambda: world.newest.version == 6)
    written: list[tuple[int, int, str]] = []
    write = world.save
    world.save = lambda *save: written.append(save)  # type: ignore[method-assign]
    world.put(e.StopRequested(0, "enough"))
    world.run_until(lambda: bool(written))
    world.tick(100.0)
    assert world.state.status().phase == "checkpointing"
    write(*written[0])
    world.run_out()
    assert world.saved and "failed" not in world.finish.message


def test_the_last_checkpoint_of_a_stopped_ring_waits_for_an_earlier_one() -> None:
    """It was given up when one that had begun before the stop took longer than 30 s."""
    world = started(num_workers=2, num_epochs=9, checkpoint_steps=6)
    written: list[tuple[int, int, str]] = []
    write = world.save
    world.save = lambda *save: written.append(save)  # type: ignore[method-assign]
    world.run_until(lambda: bool(written))
    world.put(e.StopRequested(0, "enough"))
    world.run_until(lambda: world.state.status().phase == "checkpointing")
    world.tick(100.0)
    world.save = write  # type: ignore[method-assign]
    write(*written[0])
    world.run_out()
    assert len(written) == 1 and len(world.saved) == 2
    assert "failed" not in world.finish.message


def saves(world: RingWorld) -> None:
    """The ring, which has not stopped in time, does so now, and saves its weights."""
    assert world.state.status().phase == "checkpointing"
    world.run_out()
    assert world.saved


def test_records_that_fail_in_the_module_on_every_member_end_the_job() -> None:
    """No member holds a shard that could be blamed, and whoever comes gets the same minibatch: it
    went on for ever.
    """
    world = started(num_workers=2, max_relaunches=2)
    failed = []
    train = world.step

    def step() -> None:
        for worker in list(world.workers.values()):
            item = (
                worker.items.get(worker.weights.number)
                if worker.weights and worker.inside
                else None
            )
            if (
                item is not None
                and item.lease is not None
                and present(item.lease.shard).source == "b"
                and not world.ended
            ):
                failed.append(worker.name)
                shard = present(item.lease.shard).id
                world.put(
                    e.TaskFailed(
                        0, worker.name, Task.TRAINING, shard, item.lease.attempt, "m.py:3: boom"
                    )
                )
                world.kill_quietly(worker.name)
                world.put(
                    e.ProcessEnded(0, worker.name, ExitStatus(exit_code=int(ExitCode.USER_ERROR)))
                )
        train()

    world.step = step  # type: ignore[method-assign]
    world.run_out()
    assert world.finish.exit_code is ExitCode.JOB_FAILED and "m.py:3: boom" in world.finish.message
    assert 3 <= len(failed) <= 4, "two more tries, and who failed at the same moment"
