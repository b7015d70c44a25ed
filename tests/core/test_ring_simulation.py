"""Whole jobs on a ring in the core: kills, joins, drains, stopped members, broken steps; the
weights know what they saw.
"""

from __future__ import annotations

import pytest

from elasticdl.errors import ExitCode
from elasticdl.history.job_event import EventStep
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from tests.core.ring_world import KILLED, RingWorld, Worker, started
from tests.present import present

pytestmark = pytest.mark.core


def test_a_job_on_a_ring_trains_every_record_once_and_needs_no_server() -> None:
    world = started(num_workers=3, checkpoint_steps=4, output="out")
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    assert world.rolled_back == 0
    world.check_truth()


def test_members_come_in_at_once_when_all_are_warm_and_the_oldest_keeps_rank_0() -> None:
    world = started(num_workers=3)
    grow(world)
    assert [str(name) for name in world.ring.members] == ["worker-0", "worker-1", "worker-2"]
    world.kill(world.workers[world.ring.members[1]])
    grow(world)
    assert [str(name) for name in world.ring.members] == ["worker-0", "worker-2", "worker-3"]
    world.run_out()
    world.check_truth()


def test_a_killed_member_is_replaced_by_a_generation_in_the_same_event() -> None:
    world = started(num_workers=3)
    grow(world)
    generation = world.ring.generation
    gone = world.ring.members[0]
    commands = []
    world.kill_quietly(gone)
    commands = world.put(e.ProcessEnded(0, gone, KILLED))
    published = [command for command in commands if isinstance(command, c.PublishRing)]
    assert [ring.generation for ring in published] == [generation + 1]
    assert gone not in published[0].members
    assert published[0].holders == (0, 1)


def test_the_only_member_that_has_the_weights_is_not_replaced() -> None:
    world = started(num_workers="1:3")
    grow(world)
    first, *others = world.ring.members
    for name in others:
        world.kill(world.workers[name])
    world.put(e.ScaleRequested(0.0, 1, 1))
    grow(world)
    assert world.ring.members == (first,)
    assert "no other worker has the weights" in present(world.state.why_not_replace(first))
    assert not [
        one for one in world.put(e.ReplaceRequested(0.0, first)) if isinstance(one, c.StopProcess)
    ]
    world.run_out()
    assert world.rolled_back == 0
    world.check_truth()


def test_one_that_is_about_to_join_is_told_what_the_ring_is_at_and_takes_nothing_of_it() -> None:
    world = started(num_workers=2)
    while world.newest.version < 3:
        world.turn()
    world.kill(world.workers[world.ring.members[1]])
    while world.pending:
        world.deliver()
    (joiner,) = [name for name in world.workers if name not in world.ring.members]
    commands = world.put(e.LeaseRequested(0, joiner, 0, False))
    (item,) = [command.item for command in commands if isinstance(command, c.GrantItem)]
    assert item == world.workers[world.ring.members[0]].items[item.number]
    refused = world.put(e.LeaseRequested(0, joiner, item.number + 9, False))
    assert [type(command) for command in refused] == [c.NoLeaseNow]
    world.run_out()
    world.check_truth()


def test_before_there_is_a_ring_there_is_nothing_to_read_ahead() -> None:
    world = started(num_workers=2)
    while not world.workers:
        world.deliver()
    (first,) = world.workers
    assert [type(command) for command in world.put(e.LeaseRequested(0, first, 0, False))] == [
        c.NoLeaseNow
    ]


def test_a_broken_ring_continues_without_a_lost_connection_before_its_exit_is_seen() -> None:
    world = started(num_workers=3)
    grow(world)
    gone, generation = world.ring.members[1], world.ring.generation
    world.kill(world.workers[gone], tell=False)
    assert world.ring.generation == generation, "nobody has said that anything is wrong yet"
    world.say_broken(world.ring.members[0])
    assert world.ring.generation == generation + 1
    assert gone not in world.ring.members
    world.run_out()
    world.check_truth()


def reasons(world: RingWorld) -> list[str]:
    """Why each generation was made."""
    return [
        str(one.details["reason"])
        for one in world.announced
        if one.details.get("step") == EventStep.PUBLISHED
    ]


def test_what_a_kill_broke_is_no_reason_of_the_generations_after_the_one_that_it_made() -> None:
    """A survivor tells that the ring broke, when the next generation is published already; then
    somebody joins.
    """
    world = started(num_workers=3, num_epochs=9)
    grow(world)
    gone, generation = world.ring.members[1], world.ring.generation
    world.kill(world.workers[gone])
    assert world.ring.generation == generation + 1
    world.say_broken(world.ring.members[0])
    grow(world)
    joined = world.ring.generation
    while world.workers[world.ring.members[0]].inside != joined:
        world.turn()
    world.turn()
    world.put(e.StopRequested(0, "enough"))
    world.run_out()
    assert reasons(world)[generation:] == [
        f"{gone} ended",
        "worker-3 joined",
        "stopping the job: enough",
    ]


def test_the_reason_of_a_generation_says_in_whole_words_what_broke_the_last_one() -> None:
    world = started(num_workers=3)
    grow(world)
    first, generation = world.ring.members[0], world.ring.generation
    gone = world.ring.members[1]
    world.kill(world.workers[gone], tell=False)
    told = (
        "Horovod has been shut down. This was caused by an exception "
        + "or what not " * 20
        + "\nat the end"
    )
    world.put(e.RingReported(0, first, True, generation, generation, False, told))
    (reason,) = reasons(world)[generation:]
    assert reason.startswith(
        f"{gone} does not answer: Horovod has been shut down. This was caused by an exception or"
        " what not or"
    )
    assert reason.endswith((" or …", " what …", " not …")) and len(reason) < 220


def works(world: RingWorld) -> list[tuple[str, float]]:
    """The workers whose first progress was announced, and how long after they were ready."""
    found = [one for one in world.announced if one.details.get("step") == EventStep.WORKING]
    return [(str(one.process), one.details["after_s"]) for one in found]  # type: ignore[misc]


def test_all_members_work_from_their_first_generation_whoever_reports_its_steps() -> None:
    world = started(num_workers=3, num_epochs=9)
    grow(world)
    assert works(world) == [], "nobody trained yet"
    world.run_until(lambda: world.newest.version == 3)
    first = works(world)
    assert [name for name, _ in first] == ["worker-0", "worker-1", "worker-2"] and len(
        {after_s for _, after_s in first}
    ) == 1
    world.kill(world.workers[world.ring.members[0]])
    world.run_until(lambda: len(world.ring.members) == 3)
    world.run_until(lambda: world.newest.version == 9)
    ((name, after_s),) = works(world)[3:]
    assert name == "worker-3" and after_s < 3
    world.run_out()
    assert len(works(world)) == 4


def test_a_stopped_member_is_cut_out_after_three_seconds_and_comes_back_as_a_joiner() -> None:
    world = started(num_workers=3)
    grow(world)
    stopped = world.workers[world.ring.members[2]]
    world.put(stopped.word())
    stopped.silent = True
    world.tick(2.5)
    world.step()
    drain_reports(world)
    assert stopped.name in world.ring.members, "it may only be slow"
    world.tick(0.6)
    assert stopped.name not in world.ring.members
    grow(world, ticks=0)
    stopped.silent = False
    world.run_out()
    assert stopped.entered > 1, "it was let in again"
    world.check_truth()


def test_a_member_in_a_long_step_is_not_cut_out_while_it_is_heard_of() -> None:
    world = started(num_workers=2)
    grow(world)
    first, second = world.ring.members
    generation = world.ring.generation
    for _ in range(20):
        world.t += 1.0
        for name in (first, second):
            world.workers[name].heard_s = world.t
            word = world.workers[name].word()
            world.put(word)
        world.put(e.Tick(0))
    assert world.ring.generation == generation
    world.say_broken(first)
    assert world.ring.generation == generation, "the other may be the one that is gone"
    world.t += 1.0
    world.put(world.workers[second].word())
    assert world.ring.generation == generation + 1
    assert world.ring.members == (first, second)


def entered_untold() -> tuple[RingWorld, Worker, Worker]:
    """A ring of two: one is known to have the weights, the other got them in the generation before
    and did not tell yet.
    """
    world = started(num_workers=3, evaluation_steps=0)
    while world.newest.version < 3:
        world.turn()
    for name in world.ring.members[:2]:
        world.kill(world.workers[name], tell=False)
    while set(world.ring.members) != set(world.workers) or any(
        worker.inside != world.ring.generation for worker in world.workers.values()
    ):
        world.turn()
    holder, leaver, other = (world.workers[name] for name in world.ring.members)
    assert other.word() in other.reports
    world.put(e.ReplaceRequested(0, leaver.name))
    assert (world.ring.members, world.ring.holders) == ((holder.name, other.name), (0,))
    return world, holder, other


def test_weights_of_the_generation_before_count_if_told_after_the_next_was_published() -> None:
    world, holder, _ = entered_untold()
    world.kill(holder, tell=False)
    world.run_out()
    assert world.rolled_back == 0
    world.check_truth()


@pytest.mark.parametrize(("first", "holders"), [(False, (0,)), (True, (0, 1))])
def test_one_that_may_have_half_of_newer_weights_is_not_among_those_who_have_them(
    first: bool, holders: tuple[int, ...]
) -> None:
    """It fell out of the generation in which it was to get them, unless it told before that it had
    those of the one before.
    """
    world, holder, other = entered_untold()
    generation = world.ring.generation
    if first:
        world.put(other.word())
    for one in (holder, other):
        world.put(
            e.RingReported(0, one.name, True, one.entered, generation, False, "a peer is gone")
        )
    assert (world.ring.generation, world.ring.holders) == (generation + 1, holders)


def test_weights_that_were_given_up_as_lost_do_not_come_back() -> None:
    world = started(num_workers=2)
    while world.newest_ring is None or not all(worker.form for worker in world.workers.values()):
        world.deliver()
        for worker in list(world.workers.values()):
            world.act(worker)
    world.enter()
    first, second = (world.workers[name] for name in world.ring.members)
    second.silent = True
    world.kill(first)
    world.tick(3.5)
    assert (world.rolled_back, world.ring.members[0]) == (1, second.name)
    world.put(second.word())
    assert not world.state.why_not_replace(second.name), "it has nothing that is worth keeping"


def test_a_job_whose_members_all_die_goes_back_to_its_newest_checkpoint() -> None:
    world = started(num_workers=2, checkpoint_steps=4, evaluation_steps=0)
    while not world.saved:
        world.turn()
    for _ in range(3):
        world.turn()
    trained, kept = world.newest.version, max(weights.version for weights in world.saved.values())
    assert trained > kept
    for worker in list(world.workers.values()):
        world.kill(worker)
    world.run_out()
    assert world.rolled_back == 1
    world.check_truth()
    receipt = world.state.receipt()
    assert 0 < receipt.total.repeated <= (trained - kept) * 8
    # The members took the steps since their last reports with them.
    assert receipt.repeated_at_least and receipt.updates and receipt.updates.at_least


def test_a_job_whose_members_all_die_without_a_checkpoint_starts_over_and_says_so() -> None:
    world = started(num_workers=2)
    while world.state.receipt().total.trained < 20:
        world.turn()
    trained = world.state.receipt().total.trained
    for worker in list(world.workers.values()):
        world.kill(worker)
    world.run_out()
    world.check_truth()
    assert world.state.receipt().total.repeated == trained


def test_evaluation_rounds_come_at_exactly_the_steps_that_were_asked_for() -> None:
    world = started(num_workers=3, evaluation_steps=5)
    world.run_out()
    steps = 2 * (9 + 5)
    assert sorted(set(world.rounds)) == [*range(5, steps + 1, 5), steps]


def test_checkpoints_come_once_at_exactly_the_steps_that_were_asked_for() -> None:
    world = started(num_workers=2, checkpoint_steps=5)
    world.run_out()
    saved = [event.version for event in world.handled if isinstance(event, e.SnapshotSaved)]
    assert saved == [5, 10, 15, 20, 25, 28]


def test_a_job_that_is_stopped_keeps_a_checkpoint_of_the_step_that_it_was_at() -> None:
    world = started(num_workers=2)
    while world.newest.version < 6:
        world.turn()
    world.put(e.StopRequested(0, "enough"))
    world.run_out()
    assert world.finish.exit_code is ExitCode.INTERRUPTED
    assert len(world.saved) == 1
    (weights,) = world.saved.values()
    assert weights.version == world.newest.version
    assert world.state.receipt().total.trained == sum(weights.records().values())


def test_a_callback_that_ends_training_ends_it_at_the_next_steps() -> None:
    world = started(num_workers=2)
    while world.newest.version < 6:
        world.turn()
    world.put(e.WorkerStopRequested(0, world.ring.members[0], "enough"))
    at = world.newest.version
    world.run_out()
    assert world.finish.exit_code is ExitCode.DONE
    assert at <= world.newest.version <= at + 4
    total = world.state.receipt().total
    assert total.trained == total.expected - total.left == sum(world.newest.records().values())
    assert total.lost == total.repeated == 0


def test_a_member_that_others_left_behind_hears_again_that_all_is_done() -> None:
    world = started(num_workers=2)
    while world.state.status().phase == "working":
        world.turn()
    while world.state.status().phase != "ending":
        for worker in list(world.workers.values()):
            if world.state.status().phase != "ending":
                world.act(worker)
    name = list(world.workers)[-1]
    worker = world.workers[name]
    commands = world.put(
        e.RingReported(0, name, True, worker.entered, worker.entered, False, "the other is gone")
    )
    assert c.WorkFinished(name) in commands


def test_all_members_that_are_asked_to_go_hand_their_weights_to_those_who_come() -> None:
    world = started(num_workers="1:2")
    grow(world)
    while world.newest.version < 6:
        world.turn()
    for worker in list(world.workers.values()):
        world.drain(worker)
    leaving = set(world.workers)
    world.put(e.ScaleRequested(0, 1, 4))
    world.run_out()
    assert world.rolled_back == 0
    assert not leaving & set(world.ring.members)
    world.check_truth()


def grow(world: RingWorld, ticks: int = 30) -> None:
    """Let the ring come to all workers that there are to be, without a step."""
    for _ in range(max(ticks, 1)):
        while world.pending:
            world.deliver()
        for worker in list(world.workers.values()):
            if worker.orders or worker.reports:
                world.act(worker)
        world.enter()
        if ticks:
            world.tick(0.1)


def drain_reports(world: RingWorld) -> None:
    for worker in list(world.workers.values()):
        while worker.reports and not worker.silent:
            world.put(worker.reports.popleft())
