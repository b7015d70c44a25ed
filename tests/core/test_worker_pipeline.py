"""The stages of a worker on an in-memory model: records, staleness and overlap."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.rpc.parameters import Update
from elasticdl.worker.pipeline.record_order import LoadedShard, order_of
from elasticdl.worker.ps.auto_staleness import GROW, WINDOW
from elasticdl.worker.ps.trainer import Bounds
from tests.core.worker_rig import LIMIT_S, Numbers, Rig, ScriptedMaster, once, training
from tests.present import present

pytestmark = pytest.mark.core


def test_all_records_of_all_leases_are_trained_once_and_reported() -> None:
    leases = [training(10, 0), training(7, 1, order_seed=5), training(1, 2)]
    rig = Rig(ScriptedMaster(leases))
    rig.run()
    assert rig.trained() == once(*leases)
    done = [progress for progress in rig.master.progress() if progress.done]
    assert [(one.applied.shard, one.applied.offset) for one in done] == [(0, 10), (1, 7), (2, 1)]
    assert done[-1].version == len(rig.parameters.updates) == 6
    assert sum(rig.training.losses) == 18


def test_a_lease_continues_at_its_offset() -> None:
    whole = np.random.Generator(np.random.PCG64(9)).permutation(12)
    rig = Rig(ScriptedMaster([training(12, order_seed=9, offset=5)]))
    rig.run()
    assert rig.trained() == {int(number): 1 for number in whole[5:]}


def test_the_master_knows_of_bad_records_before_a_server_has_their_batch() -> None:
    lease, reader = training(40, order_seed=9), Numbers(bad_every=3)
    rig = Rig(ScriptedMaster([lease]), reader=reader)
    loaded = LoadedShard.read(present(lease.shard), reader.read(present(lease.shard)))
    known: list[bool] = []

    def look(update: Update) -> None:
        bad = loaded.bad_among(order_of(40, 9), 0, update.applied.offset)
        known.append(max((one.bad_records for one in rig.master.progress()), default=0) >= bad)

    rig.parameters.before_push = look
    rig.run()
    assert known and all(known)


def test_bad_records_are_left_out_and_counted() -> None:
    rig = Rig(ScriptedMaster([training(10)]), reader=Numbers(bad_every=3))
    rig.run()
    assert rig.trained() == {number: 1 for number in range(10) if number % 3}
    # Each report of a lease has all bad records of it so far.
    assert rig.master.progress()[-1].bad_records == 4
    assert rig.master.progress()[-1].applied.offset == 10


@pytest.mark.parametrize("kept", [(), (5,), (0,), (11,)])
def test_windows_that_feed_empties_count_as_read(kept: tuple[int]) -> None:
    rig = Rig(ScriptedMaster([training(12), training(3, 1)]), minibatch_size=2)
    rig.feed = lambda window: (window, None) if any(number in window for number in kept) else None
    rig.run()
    assert set(rig.trained()) >= set(kept)
    assert len(rig.parameters.updates) == len(kept)
    assert sum(progress.done for progress in rig.master.progress()) == 2


def test_a_lease_with_nothing_left_is_done_at_once() -> None:
    rig = Rig(ScriptedMaster([training(5, offset=5)]))
    rig.run()
    assert [(one.done, one.applied.offset) for one in rig.master.progress()] == [(True, 5)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 39),
    st.integers(1, 12),
    st.none() | st.integers(0, 2**63),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_whatever_the_boundaries_all_of_a_lease_is_reported_and_it_is_done_once(
    records: int, begun: int, size: int, seed: int | None, bad_every: int, feed_every: int
) -> None:
    """Windows whose records are all bad or left out by `feed`, one record, an end inside a batch;
    another lease comes after.
    """
    leases = [training(records, offset=begun % records, order_seed=seed), training(3, 1)]
    reader = Numbers(bad_every)
    rig = Rig(ScriptedMaster(leases), reader=reader, minibatch_size=size)
    rig.feed = lambda window: (
        (window, None) if any(number % feed_every == 0 for number in window) else None
    )
    rig.run()
    for lease in leases:
        told = [
            one for one in rig.master.progress() if one.applied.shard == present(lease.shard).id
        ]
        offsets = [one.applied.offset for one in told]
        assert offsets == sorted(offsets) and offsets[0] >= lease.offset
        assert [one.done for one in told] == [False] * (len(told) - 1) + [True]
        assert offsets[-1] == present(lease.shard).records
        order = order_of(present(lease.shard).records, lease.order_seed)
        loaded = LoadedShard.read(present(lease.shard), reader.read(present(lease.shard)))
        assert told[-1].bad_records == loaded.bad_among(
            order, lease.offset, present(lease.shard).records
        )
    assert not [
        name
        for report in rig.master.reports
        for name in report.gauges
        if name.startswith("dropped")
    ]


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_a_pull_misses_at_most_the_allowed_number_of_own_updates(staleness: int) -> None:
    rig = Rig(
        ScriptedMaster([training(40)]), bounds=Bounds(max_staleness=staleness), minibatch_size=2
    )
    rig.run()
    missing = [number - update.versions[0] for number, update in enumerate(rig.parameters.updates)]
    assert max(missing) <= staleness
    if staleness == 0:
        assert missing == [0] * 20


def test_an_adaptive_worker_overlaps_steps_only_when_pull_and_push_are_slow() -> None:
    rig = Rig(ScriptedMaster([training(400)]), bounds=Bounds(1, adaptive=True), minibatch_size=2)
    slow = 100
    rig.step.on_train = lambda features: time.sleep(0.002)

    def push(update: Update) -> None:
        if update.sequence > slow:
            time.sleep(0.004)

    rig.parameters.before_push = push
    rig.run()
    missing = [number - update.versions[0] for number, update in enumerate(rig.parameters.updates)]
    assert max(missing[slow + 3 * WINDOW :]) == 1 and max(missing) == 1
    gauges = rig.gauges.take()
    assert gauges["staleness_limit"] == 1
    assert gauges["exchange_share"] > GROW


@pytest.mark.parametrize("staleness", [1, 2])
def test_pull_step_and_push_overlap_as_far_as_staleness_allows(staleness: int) -> None:
    """The push of the first batch is held until the pull that may go ahead of it has come."""
    rig = Rig(
        ScriptedMaster([training(8)]), bounds=Bounds(max_staleness=staleness), minibatch_size=2
    )
    overlapped = threading.Event()

    def hold(update: Update) -> None:
        if update.sequence == 1:
            deadline = time.monotonic() + LIMIT_S
            while len(rig.parameters.pulls) < 1 + staleness and time.monotonic() < deadline:
                overlapped.wait(0.01)
            if len(rig.parameters.pulls) >= 1 + staleness:
                overlapped.set()

    rig.parameters.before_push = hold
    rig.run()
    assert overlapped.is_set()
