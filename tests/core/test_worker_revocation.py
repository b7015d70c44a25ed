"""A worker on an in-memory model that is drained, or whose leases or views become void."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import TransientError
from elasticdl.rpc.parameters import Pulled, Update
from elasticdl.shard import Lease, Shard, ShardId, SnapshotId, Task
from elasticdl.worker.process.shutdown import Done, Draining
from elasticdl.worker.ps.revival import Revival
from elasticdl.worker.tasks.evaluation import SummaryTask
from tests.core.worker_rig import (
    LIMIT_S,
    SPEC,
    MemoryParameters,
    Rig,
    ScriptedMaster,
    once,
    training,
)

pytestmark = pytest.mark.core


def test_a_drained_worker_finishes_its_step_and_gives_the_rest_back() -> None:
    leases = [training(40, 0), training(40, 1)]
    rig = Rig(ScriptedMaster(leases))

    def drain(features: np.ndarray) -> None:
        if 8 in features:
            rig.shutdown.end(Draining("SIGTERM"))

    rig.step.on_train = drain
    rig.run()
    trained = rig.trained()
    assert set(trained.values()) == {1} and 8 in trained
    returned = {
        one.applied.shard: one.applied.offset for one in rig.master.progress() if one.returned
    }
    assert returned[ShardId(0)] == len(trained) == 12
    assert returned.get(ShardId(1), 0) == 0


def test_a_revoked_lease_is_dropped_and_the_next_one_is_trained() -> None:
    rig = Rig(ScriptedMaster([training(400, 0)]), minibatch_size=1)
    rig.master.open = 2
    revoked = threading.Event()

    def revoke(features: np.ndarray) -> None:
        if 20 in features:
            # Else the push of record 19 might still wait, and would be dropped with the lease.
            assert rig.trainer.settle(LIMIT_S)
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.todo.append(training(3, 1, revocation=1))
                rig.master.changed.notify_all()
            revoked.set()

    rig.step.on_train = revoke
    rig.run()
    assert revoked.is_set()
    trained = rig.trained()
    assert {number for number in trained if number < 1000} == set(range(20))
    assert {number for number in trained if number >= 1000} == {1000, 1001, 1002}
    # What was pushed before is told, and nothing of it is told after the new lease was begun.
    told = [one.applied for one in rig.master.progress()]
    assert max(one.offset for one in told if one.shard == 0) == 20
    assert not any(one.returned for one in rig.master.progress())


def test_a_lease_that_was_granted_after_a_revocation_but_came_before_it_is_worked_on() -> None:
    """The two come to the worker by two ways.

    The master counts on the new lease: if it were dropped, all would wait for it.
    """
    rig = Rig(ScriptedMaster([training(400, 0), training(3, 1, revocation=1)]), minibatch_size=1)

    def revoke(features: np.ndarray) -> None:
        if 20 in features:
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.changed.notify_all()

    rig.step.on_train = revoke
    rig.run()
    assert {number for number in rig.trained() if number >= 1000} == {1000, 1001, 1002}


def test_a_lease_that_was_granted_before_a_revocation_but_comes_after_it_is_void() -> None:
    """The master has given it to another worker: trained here, it would be trained twice."""
    rig = Rig(ScriptedMaster([training(3, 0), training(3, 1, revocation=1)]))
    rig.master.open = 1
    rig.context.keeper.revoke(1)
    rig.run()
    assert rig.trained() == once(training(3, 1))
    assert {one.applied.shard for one in rig.master.progress()} == {1}


def test_evaluation_reads_its_snapshot_and_gets_dense_weights_once() -> None:
    rig = Rig(ScriptedMaster([]))
    view = SnapshotId(7)
    evaluation = Lease(
        Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 8), 1, round=3, snapshot=view, version=2
    )
    second = replace(evaluation, shard=Shard(ShardId(51), "numbers", 8, 12))
    summary = Lease(
        Task.SUMMARY,
        None,
        1,
        round=3,
        snapshot=view,
        payload='{"round": 3, "metrics": {"sum": [[4.5]]}}',
    )
    rig.master.todo = [training(8), evaluation, second, summary, training(8, 1)]
    rig.master.open = 5

    def freeze(update: Update) -> None:
        if update.sequence == 1:
            rig.parameters.freeze(view)

    rig.parameters.dense = np.zeros(1, np.float32)
    rig.parameters.after_push = freeze
    rig.parameters.snapshots[view] = (
        np.array([100.0], np.float32),
        {0: np.array([1.0, 1.0], np.float32)},
        1,
    )
    rig.parameters.after_push = lambda update: None
    rig.run()
    assert rig.trained() == once(training(8), training(8, 1))
    states = {
        one.applied.shard: one.metrics["sum"][0][0] for one in rig.master.progress() if one.metrics
    }
    assert states == {50: 100.0 + 2.0 + 100.0, 51: 100.0}
    assert [dense for _, dense, snapshot in rig.parameters.pulls if snapshot == view] == [
        True,
        False,
        False,
    ]
    (told,) = [summary for report in rig.master.reports for summary in report.summaries]
    assert (told.round, told.values) == (3, {"sum": 4.5})


def test_a_drained_evaluation_lease_goes_back_from_its_beginning() -> None:
    lease = Lease(Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 400), 1, round=0)
    rig = Rig(ScriptedMaster([lease]))
    rig.step.evaluate = lambda *arguments: rig.shutdown.end(Draining("SIGTERM"))  # type: ignore[assignment, method-assign]
    rig.run()
    (returned,) = [one for one in rig.master.progress() if one.returned]
    assert returned.applied.offset == 0 and not returned.metrics


def test_the_worker_asks_for_the_next_lease_before_the_current_one_is_done() -> None:
    rig = Rig(ScriptedMaster([training(400, 0), training(4, 1), training(4, 2)]), minibatch_size=1)
    seen: list[int] = []
    rig.step.on_train = lambda features: seen.append(len(rig.master.todo))
    rig.run()
    assert seen[100] == 1, "it holds the current lease and the next one, and no more"


def lose_view(rig: Rig) -> None:
    """Have pulls from a view fail. The first one voids the worker's leases; new work comes then."""
    rig.master.open, pull = 2, rig.parameters.pull

    def lost(*args: Any, **named: Any) -> Pulled:
        if named.get("snapshot") is None:
            return pull(*args, **named)
        if rig.context.keeper.revocation == 0:
            rig.context.keeper.revoke(1)
            with rig.master.changed:
                rig.master.open -= 1
                rig.master.todo.append(training(4, revocation=1))
        raise TransientError(
            "there is no snapshot 1 here: it was dropped or lost", retry_after_s=0.01
        )

    rig.parameters.pull = lost  # type: ignore[method-assign]


def test_a_lost_view_does_not_hold_the_worker_up_once_its_leases_are_void() -> None:
    lease = Lease(
        Task.EVALUATION, Shard(ShardId(50), "numbers", 0, 8), 1, round=0, snapshot=SnapshotId(1)
    )
    rig = Rig(ScriptedMaster([lease]))
    lose_view(rig)
    rig.run()
    assert rig.trained() == once(training(4))
    assert "waiting_for_servers_s" not in rig.gauges.take()


def test_callbacks_of_a_round_whose_view_is_lost_do_not_hold_the_worker_up() -> None:
    """They look at the weights of the round's version.

    The round is begun anew, and other work goes on meanwhile.
    """
    summary = Lease(
        Task.SUMMARY,
        None,
        1,
        round=3,
        snapshot=SnapshotId(1),
        payload='{"round": 3, "metrics": {}}',
    )
    rig = Rig(ScriptedMaster([summary]))
    lose_view(rig)

    class LooksAtWeights:
        def recall(self, rounds: tuple[Any, ...]) -> None:
            pass

        def tested(self, lease: Lease, values: dict[str, Any]) -> bool:
            rig.trainer.dense_of(lease)
            return False

    rig.tasks[Task.SUMMARY] = SummaryTask(rig.step, LooksAtWeights(), rig.outbox)  # type: ignore[arg-type]
    rig.run()
    assert rig.trained() == once(training(4))
    assert not any(report.summaries for report in rig.master.reports)


class Moving(MemoryParameters):
    """Servers that can be lost: they come back empty, and take what was pulled last when they are
    asked for anything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.newest: np.ndarray | None = None
        self.revived = threading.Event()

    def lose(self) -> None:
        with self.lock:
            self.dense = None

    def pull(self, *args: Any, **named: Any) -> Pulled:
        if self.dense is None:
            if self.newest is None:
                raise TransientError("there is nothing to give")
            self.dense = self.newest.copy()
            self.revived.set()
        pulled = super().pull(*args, **named)
        self.newest = self.newest if pulled.dense is None else pulled.dense
        return pulled


def test_a_worker_without_work_gives_a_server_that_moved_what_it_pulled_last() -> None:
    rig = Rig(ScriptedMaster([]), parameters=Moving())
    parameters = rig.parameters
    assert isinstance(parameters, Moving)
    parameters.dense = np.array([7.0], np.float32)
    assert not rig.trainer.start(SPEC, np.zeros(1, np.float32)), "it has trained values"
    revival = Revival(rig.shutdown)
    revival.start(rig.trainer.revive)
    try:
        parameters.lose()
        revival.moved(["", "b"])
        revival.moved(["a", "b"])
        assert parameters.revived.wait(LIMIT_S)
        assert parameters.dense is not None and parameters.dense[0] == 7.0
    finally:
        rig.shutdown.end(Done())


def test_initial_values_count_as_given_though_the_server_was_lost_just_then() -> None:
    rig = Rig(ScriptedMaster([]), parameters=Moving())
    parameters, pull = rig.parameters, rig.parameters.pull
    assert isinstance(parameters, Moving)
    tries = []

    def lost_once(*args: Any, **named: Any) -> Pulled:
        tries.append(1)
        if len(tries) == 1:
            raise TransientError("it is gone", retry_after_s=0.01)
        return pull(*args, **named)

    parameters.pull = lost_once  # type: ignore[method-assign]
    assert rig.trainer.start(SPEC, np.zeros(1, np.float32))
    rig.shutdown.end(Done())
