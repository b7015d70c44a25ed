"""A worker on an in-memory model whose servers are away, whose code fails, or that is killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elasticdl.clock import ManualClock
from elasticdl.errors import Refused, TransientError, UserError
from elasticdl.rpc.parameters import Update
from elasticdl.worker.process.shutdown import Failed, NonFinite
from elasticdl.worker.ps.trainer import Bounds
from tests.core.worker_rig import MemoryParameters, Rig, ScriptedMaster, once, training

pytestmark = pytest.mark.core


def test_a_server_that_is_away_is_waited_for_and_the_push_is_applied_once() -> None:
    rig = Rig(ScriptedMaster([training(8)]))
    failures = iter([True, True, False])
    waits: list[float] = []

    def fail(update: Update) -> None:
        waits.append(rig.gauges.take().get("waiting_for_servers_s", 0))
        if update.sequence == 2 and next(failures):
            raise TransientError("server 0 is away", retry_after_s=0.01)

    rig.parameters.after_push = fail  # applied, but the answer is lost
    rig.run()
    assert rig.trained() == once(training(8))
    assert [update.sequence for update in rig.parameters.updates] == [1, 2]
    assert max(waits) > 0
    assert "waiting_for_servers_s" not in rig.gauges.take()


def test_a_server_that_stays_away_ends_the_worker_with_its_last_words() -> None:
    rig = Rig(ScriptedMaster([training(8)]), give_up_s=0.05)

    def fail(update: Update) -> None:
        raise TransientError("server 0 is away", retry_after_s=0.01)

    rig.parameters.before_push = fail
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)
    assert "gave up" in str(rig.shutdown.reason.error) and "server 0 is away" in str(
        rig.shutdown.reason.error
    )


def test_a_fenced_worker_ends_as_refused() -> None:
    rig = Rig(ScriptedMaster([training(8)]))

    def fail(update: Update) -> None:
        raise Refused("fenced")

    rig.parameters.before_push = fail
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed) and isinstance(
        rig.shutdown.reason.error, Refused
    )
    assert rig.trained() == {}


def test_a_nonfinite_step_is_tried_again_with_fresh_parameters_and_not_pushed() -> None:
    rig = Rig(ScriptedMaster([training(12)]))
    bad = iter(["a layer", "a layer", ""])
    rig.step.nonfinite = lambda features: next(bad) if 4 in features else ""
    rig.run()
    assert rig.trained() == once(training(12))
    # The successful try of the second batch saw the first one's update.
    assert rig.parameters.updates[1].versions == (1,)


def test_steps_that_stay_nonfinite_end_the_worker_naming_layer_and_records() -> None:
    rig = Rig(ScriptedMaster([training(12)]), bounds=Bounds(max_nonfinite_steps=2))
    tries: list[int] = []

    def nonfinite(features: np.ndarray) -> str:
        if 4 in features:
            tries.append(1)
            return "dense_1/kernel"
        return ""

    rig.step.nonfinite = nonfinite
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)
    error = rig.shutdown.reason.error
    assert (
        isinstance(error, NonFinite)
        and "dense_1/kernel" in error.message
        and "4:8" in error.message
    )
    assert len(tries) == 2
    assert set(rig.trained()) <= {0, 1, 2, 3}


def test_an_error_of_user_code_names_the_lease_that_it_was_at() -> None:
    lease = training(8, 3)
    rig = Rig(ScriptedMaster([training(8, 2), lease]))

    def explode(window: NDArray[Any]) -> tuple[NDArray[Any], None] | None:
        if 3004 in window:
            raise UserError("feed raised ValueError")
        return window, None

    rig.feed = explode
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed) and rig.shutdown.reason.lease == lease


def test_sys_exit_in_user_code_ends_the_worker_visibly() -> None:
    rig = Rig(ScriptedMaster([training(8)]))

    def leave(features: np.ndarray) -> None:
        raise SystemExit(0)

    rig.step.on_train = leave
    rig.run()
    assert isinstance(rig.shutdown.reason, Failed)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 6),
    st.none() | st.integers(0, 2**63),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=4),
)
def test_over_any_kills_each_record_is_in_the_model_once(
    records: int, size: int, seed: int | None, staleness: int, kills: list[tuple[int, bool]]
) -> None:
    """A kill is at a push, before or after it was applied; the next attempt begins where the
    servers say.
    """
    shared = MemoryParameters()
    lease = training(records, order_seed=seed)
    for at_push, applied in [*kills, (0, False)]:
        rig = Rig(
            ScriptedMaster([lease]),
            parameters=shared,
            minibatch_size=size,
            bounds=Bounds(max_staleness=staleness),
        )
        begun = len(shared.updates)
        shared.updates, earlier = [], shared.updates

        def kill(update: Update, at_push: int = at_push) -> None:
            if update.sequence == at_push:
                raise Refused("killed")

        shared.before_push = kill if not applied else lambda update: None
        shared.after_push = kill if applied else lambda update: None
        rig.run()
        offset = shared.updates[-1].applied.offset if shared.updates else lease.offset
        shared.updates = earlier + [
            replace(update, sequence=begun + update.sequence) for update in shared.updates
        ]
        lease = replace(lease, attempt=lease.attempt + 1, offset=offset)
    assert lease.offset == records
    assert rig.trained() == once(lease)


def test_a_step_that_took_unusually_long_is_computed_again_on_newer_parameters() -> None:
    """The first one traces the model, while others train on: its gradient would come hundreds of
    versions late.
    """
    clock = ManualClock()
    rig = Rig(ScriptedMaster([training(40)]), steps_clock=clock)
    computed: list[int] = []

    def train(features: np.ndarray) -> None:
        computed.append(int(features[0]))
        if computed[-1] in (0, 12) and computed.count(computed[-1]) == 1:
            with rig.parameters.lock:
                rig.parameters.version += 100
            clock.advance(1.5)

    rig.step.on_train = train
    rig.run()
    assert rig.trained() == once(training(40))
    assert (computed.count(0), computed.count(12), computed.count(24)) == (2, 2, 1)
    # The batch after a late one may have been asked for before or after the pause: what counts is
    # what it was pushed with.
    assert all(
        update.versions[0] >= 100 * (1 + (update.applied.offset > 12))
        for update in rig.parameters.updates
    )


def test_steps_that_are_always_long_are_computed_once() -> None:
    clock = ManualClock()
    rig = Rig(ScriptedMaster([training(40)]), steps_clock=clock)
    computed: list[int] = []

    def train(features: np.ndarray) -> None:
        computed.append(int(features[0]))
        clock.advance(3.0)

    rig.step.on_train = train
    rig.run()
    assert rig.trained() == once(training(40))
    assert computed == [0, *range(0, 40, 4)]
