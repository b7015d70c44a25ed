"""A stalled job says what it waits for, from whom and since when; then it acts, step by
step, until it goes on or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.errors import ExitCode
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.commands import Announce
from elasticdl.shard import Applied, Lease, Task
from tests.core.conftest import Bench
from tests.core.ring_world import TRAIN, VALIDATION, RingWorld, Weights, Worker, make_spec
from tests.present import present

pytestmark = pytest.mark.core

S = 60.0


def told(job: Any, kind: str = "stall") -> list[str]:
    return [command.text for command in job.of(c.Announce) if command.kind == kind]


def wait(job: Bench, seconds: float) -> list[c.Command]:
    """Time passes, told of every second. All that is ordered meanwhile."""
    return [command for _ in range(round(seconds)) for command in job.tick(1.0)]


def asked(commands: list[Any]) -> list[str]:
    return [str(command.process) for command in commands if isinstance(command, c.AskState)]


def tells(
    job: Bench, name: ProcessName, *held: Lease, stacks: str = "feed.py:3 in feed", doing: str = ""
) -> list[c.Command]:
    return job.put(
        e.StateReported(
            0,
            name,
            tuple(Applied(present(lease.shard).id, lease.attempt, 0) for lease in held),
            stacks,
            doing,
        )
    )


# each phase names what it waits for


def in_training() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1)
    job.lease()
    return job, ("training shard 0", ("worker-0",), "0 of 16 records reported")


def with_work_that_nobody_takes() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1)
    return job, (
        "a request for one of 4 free training shards",
        ("worker-0",),
        "booked 0 of 64 records",
    )


def with_a_dead_worker_that_is_not_settled() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1)
    job.lease()
    job.die(job.worker(0))
    job.attach(job.worker(1))
    return job, ("updates of worker-0", ("ps-0",), "1 shard")


def waiting_for_a_frozen_view() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1, validation_data="v")
    job.train_all()
    return job, ("frozen view of evaluation round 0", ("ps-0",), "")


def evaluating() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(action=Action.EVALUATE, num_workers=1)
    job.lease()
    return job, ("evaluation shard 0", ("worker-0",), "0 of 16 records")


def summarising() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(action=Action.EVALUATE, num_workers=1)
    job.finish(0, job.lease())
    return job, ("summary of evaluation round 0", ("worker-0",), "no worker has taken it")


def exporting() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1, output="o")
    job.train_all()
    assert job.lease().task is Task.EXPORT
    return job, ("the export of the model", ("worker-0",), "")


def taking_the_last_checkpoint() -> tuple[Bench, tuple[str, tuple[str], str]]:
    job = Bench.running(num_workers=1, checkpoint_steps=100)
    job.train_all()
    return job, ("frozen view for a checkpoint", ("ps-0",), "")


PHASES = [
    in_training,
    with_work_that_nobody_takes,
    with_a_dead_worker_that_is_not_settled,
    waiting_for_a_frozen_view,
    evaluating,
    summarising,
    exporting,
    taking_the_last_checkpoint,
]


@pytest.mark.parametrize("scene", PHASES, ids=lambda scene: scene.__name__)
def test_each_phase_says_what_it_waits_for_and_from_whom(scene: Callable[..., Any]) -> None:
    job, (what, debtors, numbers) = scene()
    job.tick(0.0)
    before_s = job.t
    commands = wait(job, S + 1)
    stall = job.state.status().stall
    assert stall is not None
    assert what in stall.waits_for
    assert stall.debtors == debtors
    assert numbers in stall.numbers
    assert (stall.since_s, stall.step) == (before_s, "asked for their state")
    (said,) = told(job)
    assert "no activity for 60 s" in said
    assert what in said
    assert all(debtor in said for debtor in debtors)
    assert set(debtors) <= set(asked(commands))
    assert job.state.status().waiting[0].startswith("stalled for")


def test_a_job_that_moves_is_not_stalled() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    for offset in (4, 8, 12):
        wait(job, S - 1)
        job.progress(0, lease, offset)
    assert told(job) == []
    assert job.state.status().stall is None


def test_the_bound_grows_with_what_the_job_has_shown_of_itself() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    wait(job, 50)
    job.progress(0, lease, 4)
    wait(job, 5 * 50 - 1)
    assert told(job) == []
    wait(job, 2)
    assert len(told(job)) == 1


def test_a_job_whose_processes_have_no_place_yet_is_not_stalled() -> None:
    job = Bench(num_workers=1)
    job.start()
    job.attach(job.ps(0))
    job.put(e.ProcessSeen(0, job.worker(0), False, waiting_for="quota team exhausted"))
    wait(job, 10 * S)
    assert told(job) == []
    assert job.state.status().stall is None


def test_time_in_which_the_master_itself_did_not_run_does_not_count() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    wait(job, S - 5)
    job.t += 100
    job.put(e.Tick(0, stalled_s=99.0))
    wait(job, S - 5)
    assert told(job) == []


def test_a_stall_that_ends_by_itself_is_told_to_be_over() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    wait(job, S + 10)
    job.progress(0, lease, 8)
    first, last = told(job)
    assert "is stalled" in first
    assert last == "the job continues after a stall of 70 s"
    assert job.state.status().stall is None
    wait(job, S - 1)
    assert len(told(job)) == 2


# slow user code


def test_user_code_that_takes_long_is_a_named_wait_and_no_stall() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    wait(job, 5)
    job.put(e.ActivityReported(0, job.worker(0), "feed", 5.0))
    commands = wait(job, 95)
    assert job.state.status().waiting[0] == "worker-0 has been in feed for 100 s"
    assert job.state.status().stall is None
    assert asked(commands) == ["worker-0"]
    tells(job, job.worker(0), lease, doing="in feed for 60 s")
    (said,) = told(job)
    assert said == "stacks of worker-0, in feed for 60 s:\nfeed.py:3 in feed"
    assert "waiting for user code: worker-0 is in feed" in told(job, "wait")
    assert not job.of(c.StopProcess)
    job.put(e.ActivityReported(0, job.worker(0), ""))
    job.progress(0, lease, 16, done=True)
    wait(job, 3)
    assert told(job, "wait")[-1] == "waited 100 s for user code: worker-0 is in feed"


def test_no_second_belongs_to_two_waits_for_user_code() -> None:
    job = Bench.running(2, num_workers=2)
    for index in range(2):
        job.lease(index)
    job.put(e.ActivityReported(0, job.worker(0), "feed"))
    wait(job, 20)
    job.put(e.ActivityReported(0, job.worker(1), "feed"))
    wait(job, 20)
    job.put(e.ActivityReported(0, job.worker(0), ""))
    wait(job, 20)
    job.put(e.ActivityReported(0, job.worker(1), ""))
    wait(job, 3)
    ends = [text for text in told(job, "wait") if text.startswith("waited")]
    assert ends == [
        "waited 40 s for user code: worker-0 is in feed",
        "waited 20 s for user code: worker-1 is in feed",
    ]


def test_the_wait_for_user_code_begins_with_that_code_and_a_stop_does_not_restart_it() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    wait(job, 5)
    job.put(e.ActivityReported(0, job.worker(0), "a training step", 5.0))
    wait(job, 20)
    job.put(e.StopRequested(0, "enough"))
    wait(job, 10)
    (begun,) = [said for said in job.of(c.Announce) if said.kind == "wait"]
    assert begun.details["since_s"] == 0.0
    job.die(job.worker(0), ExitStatus(exit_code=68, log_tail="still running after 10 s"))
    assert job.said("ended by force: still running after 10 s; it was in a training step for 35 s")
    wait(job, 3)
    assert told(job, "wait")[-1] == "waited 35 s for user code: worker-0 is in a training step"


def test_a_worker_that_never_comes_out_of_its_code_is_replaced() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    wait(job, 10 * S - 1)
    assert not job.of(c.StopProcess)
    commands = wait(job, 2)
    (stop,) = job.of(c.StopProcess, commands)
    assert (stop.name, stop.grace_s) == (job.worker(0), 0.0)
    assert "hung: in feed for 601 s; the limit is 600 s" in stop.reason
    gone = next(process for process in job.state.status().processes if process.name == "worker-0")
    assert (gone.state, gone.cause) == ("lost", "hung")


def test_a_holder_of_the_export_that_hangs_in_feed_has_no_more_time_for_it() -> None:
    job, _ = exporting()
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    (stop,) = job.of(c.StopProcess, wait(job, 10 * S + 1))
    assert "hung: in feed for 601 s; the limit is 600 s" in stop.reason


def test_a_task_that_nobody_takes_is_owed_by_a_worker_that_hangs() -> None:
    job = Bench.running(num_workers=1, validation_data="v", evaluation_steps=10)
    job.lease()
    job.put(e.VersionAdvanced(0, 10))
    (cut,) = job.of(c.TakeSnapshot)
    job.put(e.SnapshotCut(0, cut.snapshot, 10, {}))
    evaluated = job.lease()
    assert evaluated.task is Task.EVALUATION
    job.finish(0, evaluated)
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    wait(job, 9 * S)
    assert job.state.status().outcome is None
    assert job.of(c.StopProcess, wait(job, S + 1))


def test_code_that_has_taken_long_before_may_take_ten_times_that() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    wait(job, 100)
    job.put(e.ActivityReported(0, job.worker(0), ""))
    job.progress(0, lease, 8)
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    wait(job, 1000)
    assert not job.of(c.StopProcess)
    assert job.of(c.StopProcess, wait(job, 2000))


def test_time_that_a_start_or_long_code_took_is_no_time_without_progress() -> None:
    job = Bench(num_workers=2)
    job.start()
    job.attach(job.ps(0))
    job.put(e.ProcessAttached(0, job.worker(0), starting=True))
    wait(job, 11 * S)
    job.put(e.StartWentOn(0, job.worker(0), ""))
    lease = job.lease()
    job.put(e.ActivityReported(0, job.worker(0), "feed", 0.0))
    wait(job, 9 * S)
    job.put(e.ActivityReported(0, job.worker(0), ""))
    wait(job, 5)
    assert told(job) == []
    job.progress(0, lease, 8)
    assert told(job) == []


# what is done about it


def test_a_debtor_that_does_not_help_is_replaced_and_then_the_job_ends() -> None:
    job = Bench.running(num_workers=1)
    wait(job, S + 1)
    assert not job.of(c.StopProcess, wait(job, S / 2 - 2))
    (stop,) = job.of(c.StopProcess, wait(job, 2))
    assert stop.name == job.worker(0)
    assert "the job is stalled, waiting for" in stop.reason
    job.die(job.worker(0))
    wait(job, 2)
    job.attach(job.worker(1))
    assert job.finished is None
    wait(job, S - 1)
    assert job.state.status().outcome is None
    wait(job, 2)
    status = job.state.status()
    assert status.exit_code == ExitCode.STALLED
    assert "a request for one of 4 free training shards" in present(status.outcome)
    job.die(job.worker(1))
    job.die(job.ps(0))
    wait(job, 1)
    assert job.end.exit_code == ExitCode.STALLED
    assert [text.partition(":")[0] for text in told(job)] == ["the job is stalled", "still stalled"]


def test_nobody_else_is_replaced_for_what_came_with_the_end_of_a_worker() -> None:
    job = Bench.running(num_workers=1)
    job.lease()
    wait(job, S + 1)
    job.put(e.ActivityReported(0, job.worker(0), "feed", S))
    wait(job, 10 * S)
    assert [str(command.name) for command in job.of(c.StopProcess)] == ["worker-0"]
    job.attach(job.worker(1))
    wait(job, S - 2)
    assert [str(command.name) for command in job.of(c.StopProcess)] == ["worker-0"]


def test_a_job_that_ends_as_stalled_keeps_what_was_learnt() -> None:
    job = Bench.running(num_workers=1, checkpoint_steps=100)
    job.finish(0, job.lease())
    wait(job, 3 * S)
    job.die(job.worker(0))
    job.attach(job.worker(1))
    wait(job, S + 2)
    assert job.state.status().phase == "draining"
    job.die(job.worker(1))
    (cut,) = job.of(c.TakeSnapshot)
    job.put(e.SnapshotCut(0, cut.snapshot, 2, {}))
    job.put(e.SnapshotSaved(0, cut.snapshot, 2, "checkpoint", 10))
    job.die(job.ps(0))
    wait(job, 1)
    assert job.end.exit_code == ExitCode.STALLED
    assert [checkpoint.version for checkpoint in job.state.status().checkpoints] == [2]


def test_with_zero_seconds_it_only_says_what_it_waits_for() -> None:
    job = Bench.running(num_workers=1, stall_seconds=0)
    wait(job, 20 * S)
    assert len(told(job)) == 1
    assert job.state.status().stall is not None
    assert not job.of(c.StopProcess)
    assert job.state.status().outcome is None


def test_a_worker_that_works_on_another_shard_than_it_was_leased_gets_a_new_lease() -> None:
    job = Bench.running(num_workers=1, validation_data="v")
    job.train_all()
    (cut,) = job.of(c.TakeSnapshot)
    job.put(e.SnapshotCut(0, cut.snapshot, 8, {}))
    lost = job.lease()
    wait(job, S + 1)
    tells(job, job.worker(0), replace(lost, attempt=lost.attempt + 7))
    assert job.of(c.RevokeLeases), "it must drop what it works on"
    again = job.lease()
    assert (again.shard, again.attempt) == (lost.shard, lost.attempt + 1)


def test_leases_that_only_one_side_knows_of_are_given_out_again() -> None:
    job = Bench.running(num_workers=1, validation_data="v")
    job.train_all()
    (cut,) = job.of(c.TakeSnapshot)
    job.put(e.SnapshotCut(0, cut.snapshot, 8, {}))
    lost = job.lease()
    wait(job, S + 1)
    tells(job, job.worker(0))
    assert any("worker-0 does not have its leased shard" in text for text in told(job))
    again = job.lease()
    assert (again.shard, again.attempt) == (lost.shard, lost.attempt + 1)


def test_a_worker_that_holds_what_it_was_not_leased_loses_it() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    job.put(
        e.LeaseReturned(
            0, job.worker(0), Applied(present(lease.shard).id, lease.attempt, 0), taken=False
        )
    )
    wait(job, S + 1)
    commands = tells(job, job.worker(0), lease)
    (revoked,) = job.of(c.RevokeLeases, commands)
    assert revoked.worker == job.worker(0)


def test_a_worker_that_forgot_a_training_shard_is_replaced_and_settled_exactly() -> None:
    job = Bench.running(num_workers=1)
    lease = job.lease()
    wait(job, S + 1)
    commands = tells(job, job.worker(0))
    assert job.of(c.FenceWorker, commands)
    job.fenced(0, Applied(present(lease.shard).id, lease.attempt, 8))
    job.attach(job.worker(1))
    assert (job.total["trained"], job.total["repeated"]) == (8, 0)
    assert job.lease(1).offset == 8


# the ring


class Forgetful(RingWorld):
    """Its members believe that a shard is told when the item ends: later steps of that shard are
    never reported.

    `cured`: by a new generation, as soon as a member begins anew to tell.
    """

    cured = True

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec)
        self.forgotten: dict[object, tuple[int, int]] = {}
        self.asked: list[str] = []
        self.formed = 0

    def tell(self, leader: Worker, weights: Weights) -> None:
        if weights.last is None:
            return
        lease, end = weights.last
        key = present(lease.shard).id, lease.attempt
        if self.cured and self.ring.generation != self.formed:
            self.formed = self.ring.generation
            self.forgotten.clear()
        if self.forgotten.get(leader.name) == key:
            return
        if end == (lease.limit or present(lease.shard).records):
            self.forgotten[leader.name] = key
        super().tell(leader, weights)

    def carry_out(self, command: Any) -> None:
        if isinstance(command, c.AskState):
            self.asked.append(str(command.process))
            self.pending.append(e.StateReported(0, command.process, (), "ring.py:1 in gather"))
        super().carry_out(command)

    def of(self, kind: type[Announce]) -> list[Announce]:
        return [one for one in self.announced if isinstance(one, kind)]


def ring_job(kind: type[Any] = Forgetful, **flags: Any) -> Forgetful:
    world = kind(make_spec(shuffle="none", records_per_task=64, evaluation_steps=0, **flags))
    world.put(e.JobStarted(0.0, TRAIN, VALIDATION))
    return world


def until(
    world: Forgetful | Hopeless | Restless, reached: Callable[..., Any], turns: int = 20_000
) -> None:
    for _ in range(turns):
        if reached():
            return
        world.turn()
    raise AssertionError(f"not reached: {world.state.status()}")


def test_a_ring_whose_last_records_nobody_reports_is_diagnosed_and_formed_again() -> None:
    world = ring_job(num_workers=2, checkpoint_steps=3)
    until(world, lambda: world.state.status().stall is not None)
    stall = present(world.state.status().stall)
    assert "records" in stall.waits_for
    assert stall.debtors == ("worker-0", "worker-1")
    booked = world.state.receipt().total.trained
    assert f"booked {booked:,} of 206 records" in stall.numbers
    steps = world.newest.version
    assert f"worker-0 is at step {steps}" in stall.numbers
    until(world, lambda: world.ended is not None)
    assert world.finish.exit_code is ExitCode.DONE
    world.check_truth()
    assert any("forming a new generation of the ring" in text for text in told(world))
    assert any(text.startswith("the job continues after a stall") for text in told(world))
    assert {"worker-0", "worker-1"} <= set(world.asked)
    assert any("ring.py:1 in gather" in text for text in told(world))


class Hopeless(Forgetful):
    cured = False

    def tell(self, leader: Worker, weights: Weights) -> None:
        """Nobody ever tells of the second shard."""
        if weights.last is not None and present(weights.last[0].shard).id == 0:
            super().tell(leader, weights)


def test_a_ring_that_nothing_helps_ends_with_its_own_exit_code_and_the_diagnosis() -> None:
    world = ring_job(Hopeless, num_workers=2, checkpoint_steps=3)
    until(world, lambda: world.ended is not None)
    assert world.finish.exit_code is ExitCode.STALLED
    assert "waiting for records" in world.finish.message
    steps = [text.partition(": ")[2] for text in told(world) if text.startswith("still stalled")]
    assert steps[:2] == ["forming a new generation of the ring", "replacing worker-0"]
    assert world.t < 600


class Restless(Hopeless):
    """Its ring breaks again and again: something moves all the time, and nothing gets on."""

    def turn(self) -> None:
        super().turn()
        if self.newest_ring is not None and self.newest.version > 5:
            self.tick(0.4)
            if self.t % 8 < 0.5:
                for worker in list(self.workers.values()):
                    self.broke(worker)


def test_a_job_that_moves_for_ever_without_progress_ends_too() -> None:
    world = ring_job(Restless, num_workers=2, checkpoint_steps=3)
    until(world, lambda: world.ended is not None)
    assert world.finish.exit_code is ExitCode.STALLED
    assert any("no progress for" in text for text in told(world))
