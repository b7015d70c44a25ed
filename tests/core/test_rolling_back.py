"""A synchronous job returns to a checkpoint as a whole after a server has lost its memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.job_status import UpdateCounts
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.shard import Applied, Lease, SnapshotId
from tests.core.conftest import Bench, ps, worker
from tests.present import present

pytestmark = pytest.mark.core

BOTH = (ps(0), ps(1))


class Steps(Bench):
    """A job of two servers and one worker that trains a minibatch in each step."""

    def __init__(self, **flags: Any) -> None:
        super().__init__(**({"num_ps_pods": 2, "sync": True} | flags))
        self.step = 0
        self.servers: tuple[ProcessName, ...] = tuple(ps(i) for i in range(self.spec.servers))

    def steps(self, lease: Lease, begin: int, end: int) -> None:
        """Train the records [begin, end) of a lease, 8 in each step."""
        for offset in range(begin + 8, end + 1, 8):
            self.step += 1
            self.put(e.StepApplied(0, self.step, True, self.servers))
            last = offset == present(lease.shard).records
            self.progress(0, lease, offset, version=self.step, done=last)

    def checkpoint(self, version: int, **applied: Any) -> None:
        self.put(e.CheckpointRequested(0))
        taken = self.cut(version, applied)
        self.put(e.SnapshotSaved(0, taken, version, f"version-{version}", 1))

    def lose(self, server: ProcessName, restored: int | None) -> ProcessName:
        """A server ends with its memory; its next process restores that version."""
        self.die(server)
        following = ps(server.index, server.incarnation + 1)
        self.attach(following, restored=restored)
        return following

    def newest(self, index: int) -> ProcessName:
        """The newest process of a server, whatever its state."""
        return max(
            server.name
            for server in self.state._context.processes.servers
            if server.name.index == index
        )

    def stopped(self) -> list[ProcessName]:
        return [one.name for one in self.of(c.StopProcess)]

    def comes_back(self, server: ProcessName, restored: int | None, **more: Any) -> None:
        """The next process of a server that was told to restore."""
        self.die(server, ExitStatus(signal=9, asked=True))
        following = ps(server.index, server.incarnation + 1)
        self.put(e.ProcessAttached(0, following, "c", f"at-{following}", restored, **more))


def trained(**flags: Any) -> Steps:
    """A job with a checkpoint of version 2, and two steps since."""
    job = Steps(**flags)
    job.up()
    job.steps(job.lease(), 0, 16)
    job.checkpoint(2)
    job.steps(job.lease(), 0, 16)
    assert (job.total["trained"], job.updates.applied) == (32, 4)
    return job


def test_all_servers_restore_the_checkpoint_of_the_one_that_lost_its_memory() -> None:
    job = trained()
    lease = job.lease()
    job.lose(ps(1), restored=2)
    assert job.stopped() == [ps(0)], "the other one has lost nothing, and restores it all the same"
    assert job.of(c.RevokeLeases)[-1].worker == worker(0)
    back = present(job.state.roll_back)
    assert (back.version, back.path) == (2, "version-2")
    assert job.state.step_outlook().held, "no turn is given"
    assert "ps-0 is lost" in job.refused() or "ps-0" in job.refused()
    assert job.said(
        "ps-1.1 came back without the memory of the process before: all servers go back"
    )
    assert job.said("to version-2, version 2; at least 16 records will be trained again")

    job.comes_back(ps(0), restored=2)
    assert job.state.roll_back is None and not job.state.step_outlook().held
    assert job.said("all servers have version 2 again: training continues")
    assert job.state.status().version == 2
    assert job.updates == UpdateCounts(2, 0, 2, at_least=False)
    assert (job.total["trained"], job.total["repeated"], job.total["lost"]) == (16, 16, 0)
    again = job.lease()
    assert present(again.shard).begin == 16, "where the checkpoint ends"
    job.progress(0, lease, 8)
    assert job.total["trained"] == 16, "a late report changes nothing"
    job.finish(0, again)
    job.train_all()
    assert (job.total["trained"], job.total["left"]) == (64, 0)


def test_a_server_with_its_memory_brings_nobody_back() -> None:
    job = trained()
    job.die(ps(1))
    job.put(e.ProcessAttached(0, ps(1, 1), "c", "at-ps-1.1", 4, kept=True))
    assert job.state.roll_back is None and not job.stopped()
    assert job.updates == UpdateCounts(4, 0, 0, at_least=False)
    assert job.total["repeated"] == 0


def test_a_server_that_lacks_no_step_brings_nobody_back() -> None:
    """It left in order, or was lost right after a checkpoint."""
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.checkpoint(2)
    job.lose(ps(1), restored=2)
    assert job.state.roll_back is None and not job.stopped()
    assert job.said("ps-1.1 restored version 2: no update of its part was lost")
    assert (job.updates.lost, job.total["repeated"]) == (0, 0)
    job.train_all()
    assert job.total["trained"] == 64


def test_servers_without_their_memory_do_not_undo_a_checkpoint_for_a_lost_worker() -> None:
    """It has trained what it had not reported when the view was cut."""
    job = Steps(num_workers=2)
    job.up(workers=2)
    lease = job.lease()
    job.put(e.StepApplied(0, 1, True, BOTH))
    job.put(e.VersionAdvanced(0, 1))
    applied = Applied(present(lease.shard).id, lease.attempt, 8)
    job.checkpoint(1, **{"worker-0": applied})
    assert job.total["trained"] == 0
    job.die(worker(0))
    job.die(ps(1))
    job.fenced(0, applied, None)
    job.attach(ps(1, 1), restored=1)
    assert job.total["trained"] == 8
    assert job.state.roll_back is None and not job.stopped()


def test_the_only_server_returns_alone() -> None:
    job = trained(num_ps_pods=1)
    job.lose(ps(0), restored=2)
    assert job.state.roll_back is None and not job.stopped()
    assert job.updates == UpdateCounts(2, 0, 2, at_least=False)
    assert (job.total["trained"], job.total["repeated"]) == (16, 16)


def test_a_server_that_is_starting_starts_again() -> None:
    """It may have been told another checkpoint, or have found its memory."""
    job = trained()
    job.die(ps(0))
    job.lose(ps(1), restored=2)
    assert job.stopped() == [ps(0, 1)] and job.state.roll_back is not None
    job.put(e.ProcessAttached(0, ps(0, 1), "c", "at-ps-0.1", 4, kept=True))
    assert job.state.roll_back is not None, "it is ended, whatever it says"
    job.comes_back(ps(0, 1), restored=2)
    assert job.state.roll_back is None
    assert (job.updates.lost, job.total["repeated"]) == (0, 16)


def test_a_server_that_is_lost_meanwhile_restores_again() -> None:
    job = trained()
    following = job.lose(ps(1), restored=2)
    job.comes_back(following, restored=2)
    assert job.state.roll_back is not None
    job.comes_back(ps(0), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 2, at_least=False)


@pytest.mark.parametrize("lost", [0, 1])
def test_all_take_an_older_checkpoint_if_one_cannot_read_the_newest(lost: int) -> None:
    """Whoever cannot: the one that was lost, or another one that is told to restore."""
    job = trained()
    job.checkpoint(4)
    job.steps(job.lease(), 0, 16)
    following = job.lose(ps(lost), restored=2 if lost else 4)
    assert present(job.state.roll_back).version == 4
    unable = following if lost else ps(1)
    job.comes_back(unable, restored=2)
    assert job.said(f"ps-1.{unable.incarnation + 1} could not read the checkpoint of version 4")
    back = present(job.state.roll_back)
    assert (back.version, back.path) == (2, "version-2")
    for index in (0, 1):
        job.comes_back(job.newest(index), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 4, at_least=False)
    assert (job.total["trained"], job.total["repeated"]) == (16, 32)
    # The one that could not be read is of steps that are undone: nobody returns to it.
    job.servers = job.newest(0), job.newest(1)
    job.steps(job.lease(), 0, 16)
    job.lose(job.servers[0], restored=4)
    assert present(job.state.roll_back).version == 2


def test_a_step_that_only_some_servers_applied_is_undone() -> None:
    job = trained()
    job.put(e.StepApplied(0, 5, False, BOTH))
    assert job.stopped() == [*BOTH]
    job.put(e.GradientDropped(0, worker(0), "a server ended", partly_applied=True))
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 2, at_least=False)
    assert not job.state.receipt().repeated_at_least, "no server has it any more"


@pytest.mark.parametrize("first", ["the checkpoint", "the server"])
def test_a_step_that_only_some_servers_applied_before_the_first_checkpoint_was_complete(
    first: str,
) -> None:
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.put(e.CheckpointRequested(0))
    taken = job.cut(2)
    job.die(ps(1))
    job.put(e.StepApplied(0, 3, False, BOTH))
    assert job.state.roll_back is None
    saved = e.SnapshotSaved(0, taken, 2, "version-2", 1)
    if first == "the server":
        # What it says of the checkpoint is no proof that it is complete.
        job.attach(ps(1, 1), restored=2)
        assert not job.stopped()
    job.put(saved)
    assert job.stopped() == [ps(0), ps(1, 1)]
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1, 1), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 0, at_least=False)


@pytest.mark.parametrize("restored", [None, 2], ids=["nothing", "the checkpoint"])
def test_a_loss_while_the_first_checkpoint_is_written_brings_all_back_when_it_is_complete(
    restored: int | None,
) -> None:
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.put(e.CheckpointRequested(0))
    taken = job.cut(2)
    job.steps(job.lease(), 0, 8)
    job.lose(ps(1), restored)
    assert job.state.roll_back is None and not job.stopped(), "it may never be complete"
    assert job.updates == UpdateCounts(2 if restored else 0, 1 if restored else 3, 0, False)
    job.saved(taken, 2)
    assert job.stopped() == [ps(0), ps(1, 1)]
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1, 1), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 1, at_least=False)
    job.train_all()
    assert (job.total["trained"], job.total["lost"], job.total["left"]) == (64, 0, 0)


def test_a_loss_while_the_first_checkpoint_is_tried_again_brings_all_back_too() -> None:
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.put(e.CheckpointRequested(0))
    first = job.cut(2)
    job.lose(ps(1), restored=None)
    job.put(e.SnapshotFailed(0, first, "the disk is full"))
    job.tick(30)
    second = job.of(c.TakeSnapshot)[-1].snapshot
    assert second != first
    job.put(e.SnapshotCut(0, second, 2, {}))
    job.lose(ps(0), restored=None)
    job.saved(second, 2)
    assert present(job.state.roll_back).version == 2
    assert job.updates.lost == 2, "the cut lacks what was lost before it"


@pytest.mark.parametrize("complete", [True, False])
def test_a_step_that_is_reported_late_is_undone_too(complete: bool) -> None:
    """The server was lost before the master had the answers of all."""
    job = trained()
    job.lose(ps(1), restored=2)
    job.put(e.StepApplied(0, 5, complete, BOTH))
    job.comes_back(ps(0), restored=2)
    job.put(e.StepApplied(0, 6, complete, BOTH))
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 4 if complete else 2, at_least=False)


@pytest.mark.parametrize("complete", [True, False])
def test_a_step_under_way_when_a_server_came_back_brings_all_back(complete: bool) -> None:
    """When the server came back, all steps that the core knew were in the checkpoint."""
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.checkpoint(2)
    job.lose(ps(1), restored=2)
    job.put(e.StepApplied(0, 3, complete, BOTH))
    assert present(job.state.roll_back).version == 2
    assert job.stopped() == [ps(0), ps(1, 1)]
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1, 1), restored=2)
    assert job.updates == UpdateCounts(2, 0, int(complete), at_least=False)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_checkpoint_that_is_completed_meanwhile_changes_nothing(keep: int) -> None:
    """It has undone steps: it is not listed, takes no place, and is not the last one."""
    job = trained(keep_checkpoint_max=keep)
    job.put(e.CheckpointRequested(0))
    taken = job.cut(4)
    job.steps(job.lease(), 0, 16)
    job.lose(ps(1), restored=4)
    assert job.stopped() == [ps(0), ps(1, 1)], "the server has read it before it was reported"
    chosen = present(job.state.roll_back)
    assert (chosen.version, chosen.path) == (2, "version-2")
    commands = job.saved(taken, 4)
    assert not job.of(c.PruneCheckpoints, commands), "the servers read version 2"
    assert job.state.roll_back == chosen
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1, 1), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 4, at_least=False)
    assert [checkpoint.path for checkpoint in job.state.status().checkpoints] == ["version-2"]
    job.servers = ps(0, 1), ps(1, 2)
    job.steps(job.lease(), 0, 16)
    job.checkpoint(4)
    job.lose(ps(1, 2), restored=4)
    assert job.stopped()[-1] == ps(1, 3), "which version 4 has it read?"
    job.comes_back(ps(0, 1), restored=4)
    job.comes_back(ps(1, 3), restored=4)
    job.checkpoint(6)
    listed = ("version-2", "version-4", "version-6")[-keep:]
    assert tuple(checkpoint.path for checkpoint in job.state.status().checkpoints) == listed
    assert job.of(c.PruneCheckpoints)[-1] == c.PruneCheckpoints(6, listed)


def test_a_last_checkpoint_of_undone_steps_is_not_the_last() -> None:
    job = trained(output="out")
    job.train_all()
    taken = job.cut(8)
    job.put(e.StepApplied(0, 5, False, BOTH))
    job.comes_back(ps(0), restored=2)
    job.comes_back(ps(1), restored=2)
    job.saved(taken, 8)
    job.train_all()
    assert job.state.status().phase == "checkpointing"
    assert job.of(c.TakeSnapshot)[-1].snapshot != taken


def test_a_shard_that_was_parked_since_counts_once() -> None:
    job = trained(max_failed_shards=1)
    for _ in range(2):
        for attempt in range(3):
            assert not job.state.status().parked
            # It ends short.
            job.progress(0, job.lease(), 8 + attempt, done=True)
        assert len(job.state.status().parked) == 1
        server = job.newest(1)
        job.lose(server, restored=2)
        assert not job.state.status().parked
        job.comes_back(job.newest(0), restored=2)
        assert job.state.roll_back is None


def test_no_checkpoint_is_removed_while_a_server_is_away() -> None:
    """It may have been told to restore that one."""
    job = trained()
    job.put(e.CheckpointRequested(0))
    taken = job.cut(4)
    job.die(ps(1))
    before = len(job.of(c.PruneCheckpoints))
    job.saved(taken, 4)
    assert len(job.of(c.PruneCheckpoints)) == before == 1


def test_a_view_that_is_cut_meanwhile_becomes_no_checkpoint() -> None:
    job = trained()
    job.put(e.CheckpointRequested(0))
    taken = job.of(c.TakeSnapshot)[-1].snapshot
    job.lose(ps(1), restored=2)
    job.comes_back(ps(0), restored=2)
    commands = job.put(e.SnapshotCut(0, taken, 4, {}))
    assert job.of(c.SaveSnapshot, commands) == []
    assert job.of(c.DropSnapshot, commands)[0].snapshot == taken


def test_a_view_that_was_written_when_all_had_returned_is_no_checkpoint_to_return_to() -> None:
    job = trained()
    job.put(e.CheckpointRequested(0))
    taken = job.cut(4)
    job.lose(ps(1), restored=2)
    job.comes_back(ps(0), restored=2)
    job.saved(taken, 4)
    job.servers = ps(0, 1), ps(1, 1)
    job.steps(job.lease(), 0, 16)
    job.lose(ps(1, 1), restored=4)
    assert present(job.state.roll_back).version == 2
    assert job.stopped()[-2:] == [ps(0, 1), ps(1, 2)]


def test_a_job_past_its_training_returns_to_it() -> None:
    job = trained(output="out")
    job.train_all()
    assert job.state.status().phase == "checkpointing"
    job.put(e.StepApplied(0, 5, True, BOTH))
    job.lose(ps(1), restored=2)
    assert job.state.status().phase == "working"
    job.comes_back(ps(0), restored=2)
    job.train_all()
    assert (job.total["trained"], job.total["left"], job.total["repeated"]) == (64, 0, 48)
    assert job.updates.lost == 0


def test_the_checkpoint_that_a_job_began_with_is_one_to_return_to() -> None:
    job = Steps(checkpoint_dir_for_init="c")
    job.start(restore_from="c/version-7")
    job.attach(*BOTH, restored=7)
    job.attach(worker(0))
    job.steps(job.lease(), 0, 16)
    job.lose(ps(0), restored=7)
    back = present(job.state.roll_back)
    assert (back.version, back.path) == (7, "c/version-7")
    job.comes_back(ps(1), restored=7)
    assert job.updates == UpdateCounts(0, 0, 2, at_least=False)
    assert job.said("at least 16 records will be trained again")
    job.train_all()
    assert (job.total["trained"], job.total["repeated"]) == (64, 16)


def test_without_a_checkpoint_the_others_continue_and_what_is_lost_counts() -> None:
    job = Steps()
    job.up()
    job.steps(job.lease(), 0, 16)
    job.lose(ps(1), restored=None)
    assert job.state.roll_back is None and not job.stopped()
    assert job.updates == UpdateCounts(0, 2, 0, at_least=False)


def test_a_job_whose_checkpoints_are_all_damaged_fails() -> None:
    """The servers that have ended have no values that go with the ledger."""
    job = trained()
    job.lose(ps(1), restored=2)
    job.comes_back(ps(0), restored=1)
    outcome = present(job.state._context.outcome)
    assert "ps-0.1 could not read the checkpoint of version 2, and there is no" in outcome.message
    assert "version-2" in outcome.hint


def test_a_job_whose_servers_end_since_they_can_read_no_checkpoint_says_what_to_repair() -> None:
    job = trained()
    job.lose(ps(1), restored=2)
    job.die(ps(0), ExitStatus(signal=9, asked=True))
    for incarnation in range(1, 9):
        if job.state._context.outcome is None:
            job.tick(60)
            job.die(ps(0, incarnation), ExitStatus(exit_code=1))
    assert "version-2" in present(job.state._context.outcome).hint


def test_a_job_that_is_ending_returns_to_nothing() -> None:
    job = trained()
    job.lose(ps(1), restored=2)
    job.put(e.WorkerStopRequested(0, worker(0), "enough"))
    job.state._context.fail("no reason")
    before = job.total
    job.comes_back(ps(0), restored=1)
    job.put(e.SnapshotSaved(0, SnapshotId(9), 4, "version-4", 1))
    assert job.total == before and job.updates.lost == 0


def test_another_master_ends_the_servers_that_have_to_return() -> None:
    job = trained()
    job.lose(ps(1), restored=2)
    commands = job.put(e.MasterTookOver(0, 2, 1.0))
    assert [one.name for one in job.of(c.StopProcess, commands)] == [ps(0)]
    job.comes_back(ps(0), restored=2)
    assert job.state.roll_back is None
    assert job.updates == UpdateCounts(2, 0, 2, at_least=False)


def test_a_worker_that_returns_to_the_next_master_is_told_to_drop_its_leases() -> None:
    """No ledger has its leases any more, so nobody would ask for them."""
    job = trained()
    job.put(e.MasterTookOver(0, 2, 1.0))
    job.put(e.StepApplied(0, 5, False, BOTH))
    assert [one.worker for one in job.of(c.RevokeLeases)] == [worker(0)]
    commands = job.put(e.ProcessReturned(0, worker(0)))
    assert [one.worker for one in job.of(c.RevokeLeases, commands)] == [worker(0)]


def test_the_return_is_part_of_the_state() -> None:
    job = trained()
    job.lose(ps(1), restored=2)
    image = json.loads(json.dumps(job.state.image(job.spec)))
    again = JobState.from_image(job.spec, Limits(), present(job.state.started), image)
    assert again.roll_back == present(job.state.roll_back)


def test_asynchronous_servers_never_return_together() -> None:
    job = Steps(sync=False)
    job.up()
    job.pushed(0, 2)
    job.progress(0, job.lease(), 16, version=2, done=True)
    job.checkpoint(2)
    job.pushed(0, 4)
    job.lose(ps(1), restored=2)
    assert job.state.roll_back is None and not job.stopped()
