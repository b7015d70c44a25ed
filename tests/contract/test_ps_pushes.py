"""Pull and push over real connections: once each, from several workers, through a bad network, and
against fences.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from elasticdl.embedding.spec import DenseSpec, Dtype, OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.errors import Refused, TransientError, UserError
from elasticdl.job_choices import WirePrecision
from elasticdl.native import _native
from elasticdl.rpc.parameters import Update
from elasticdl.shard import Applied, ShardId, SnapshotId
from elasticdl.tls.authority import Authority
from elasticdl.tokens import bulk_key
from tests.contract.ps_stage import (
    LIMIT_S,
    TOKEN,
    BadNetwork,
    Stage,
    all_rows,
    as_ids,
    counting_spec,
    rich_spec,
    update,
)
from tests.reference_table import ReferenceTable

pytestmark = pytest.mark.contract

ONES = np.ones(6, np.float32)
IDS = [0, 1, 2, 3, -1, -2, 2**40, -(2**63), 2**63 - 1]


@pytest.fixture(params=[(1, False), (2, False), (3, False), (3, True)])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    count, secured = request.param
    made = Stage(count, authority=Authority.new("job") if secured else None)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Stage]:
    made = Stage(2)
    yield made
    made.close()


def test_rows_and_dense_values_come_back_in_the_order_they_were_asked_for(stage: Stage) -> None:
    spec = rich_spec()
    pool = stage.pool()
    dense = np.arange(spec.trainable_size + spec.additive_size, dtype=np.float32)
    assert pool.initialise(spec, dense, timeout_s=LIMIT_S)
    many = np.random.default_rng(0).permutation(5000).astype(np.int64) - 2500
    pulled = pool.pull([many, as_ids(IDS)], timeout_s=LIMIT_S)
    assert pulled.dense is not None
    np.testing.assert_array_equal(pulled.dense, dense)
    for table, ids, rows in zip(spec.tables, [many, as_ids(IDS)], pulled.rows, strict=True):
        np.testing.assert_array_equal(rows, ReferenceTable(table, spec.optimizer).lookup(ids))


def test_a_push_changes_exactly_what_it_names(stage: Stage) -> None:
    pool = stage.pool()
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    before = pool.pull([as_ids(IDS)], timeout_s=LIMIT_S)
    pushed = pool.push(
        update(1, before.versions, np.arange(6, dtype=np.float32), IDS[:5]), timeout_s=LIMIT_S
    )
    assert pushed.versions == (1,) * len(stage.servers) and pushed.staleness == (0,) * len(
        stage.servers
    )
    after = pool.pull([as_ids(IDS)], timeout_s=LIMIT_S)
    np.testing.assert_array_equal(after.dense, -np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(after.rows[0], [[-1, -1]] * 5 + [[0, 0]] * 4)


def test_the_additive_part_is_added(stage: Stage) -> None:
    spec = ParametersSpec(
        optimizer=counting_spec().optimizer,
        dense=(DenseSpec(path="w", shape=(4,)), DenseSpec(path="m", shape=(5,), additive=True)),
    )
    pool = stage.pool()
    pool.initialise(spec, np.zeros(9, np.float32), timeout_s=LIMIT_S)
    versions = (0,) * len(stage.servers)
    pool.push(
        Update(1, Applied(ShardId(0), 0, 1), versions, 0.5, np.ones(9, np.float32)),
        timeout_s=LIMIT_S,
    )
    np.testing.assert_array_equal(pool.pull([], timeout_s=LIMIT_S).dense, [-0.5] * 4 + [1.0] * 5)


def test_a_lower_precision_on_the_wire_changes_no_value_that_must_be_exact(stage: Stage) -> None:
    spec = rich_spec()
    rough, other = stage.pool("worker-0", precision=WirePrecision.BFLOAT16), stage.pool("worker-1")
    dense = np.random.default_rng(1).normal(size=37).astype(np.float32)
    ids = [as_ids(IDS), as_ids([5])]
    for pool in (rough, other):
        pool.initialise(spec, dense, timeout_s=LIMIT_S)
    live, exact = rough.pull(ids, timeout_s=LIMIT_S), rough.pull(ids, exact=True, timeout_s=LIMIT_S)
    stage.cut(3)
    for whole in (
        exact,
        other.pull(ids, timeout_s=LIMIT_S),
        rough.pull(ids, snapshot=SnapshotId(3), timeout_s=LIMIT_S),
    ):
        np.testing.assert_array_equal(whole.dense, dense)
        np.testing.assert_array_equal(whole.rows[0], exact.rows[0])
    assert live.dense is not None
    np.testing.assert_array_equal(live.dense[26:], dense[26:], "the additive part is exact")
    for rounded, value in ((live.dense[:26], dense[:26]), (live.rows[0], exact.rows[0])):
        assert (rounded != value).any()
        np.testing.assert_allclose(rounded, value, rtol=2**-8)
    _, rows = all_rows(rough, 0)
    assert set(exact.rows[0].ravel()) == set(rows.ravel())


@pytest.mark.parametrize("dtype", Dtype)
def test_auto_rounds_on_a_slow_link_but_nothing_that_must_be_exact(dtype: Dtype) -> None:
    stage = Stage(1)
    slow = stage.behind(BadNetwork(stage.addresses[0], 1, breaks=0, bytes_per_s=4e6))
    count = 68_000 // dtype.bytes  # smaller requests tell nothing about a link
    zeros = np.zeros(count, dtype.value)
    dense = np.random.default_rng(1).normal(size=count).astype(dtype.value)
    nothing = ((as_ids([]),), (np.zeros((0, 2), dtype.value),))
    pulls = []
    try:
        pool = stage.pool(addresses=[slow.address], precision=WirePrecision.AUTO)
        spec = counting_spec(count).model_copy(update={"dtype": dtype})
        pool.initialise(spec, dense, timeout_s=LIMIT_S)
        for sequence in range(1, 41):
            pulls.append(pool.pull([as_ids([])], timeout_s=LIMIT_S))
            applied = Applied(ShardId(7), 0, sequence)
            step = Update(sequence, applied, pulls[-1].versions, 1.0, zeros, *nothing)
            pool.push(step, timeout_s=LIMIT_S)
        np.testing.assert_array_equal(pulls[0].dense, dense, "it counts as fast at first")
        last = pulls[-1].dense
        assert last is not None
        assert (last != dense).any() == (dtype is Dtype.FLOAT32)
        np.testing.assert_allclose(last, dense, rtol=2**-8)
        exact = pool.pull([as_ids([])], exact=True, timeout_s=LIMIT_S)
        np.testing.assert_array_equal(exact.dense, dense)
    finally:
        stage.close()


@pytest.mark.parametrize("seed", range(4))
def test_every_push_is_applied_once_however_often_the_connections_break(seed: int) -> None:
    stage = Stage(2)
    networks = [
        stage.behind(BadNetwork(address, seed * 10 + k, breaks=20))
        for k, address in enumerate(stage.addresses)
    ]
    try:
        pool = stage.pool(addresses=[network.address for network in networks])
        pool.pack(always=seed % 2 == 1)
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        for sequence in range(1, 61):
            pulled = pool.pull([as_ids([1, 2])], timeout_s=LIMIT_S)
            pool.push(update(sequence, pulled.versions, ONES, [1, 2]), timeout_s=LIMIT_S)
        after = pool.pull([as_ids([1, 2])], timeout_s=LIMIT_S)
        assert sum(network.breaks_left for network in networks) < 30, (
            "the network was not bad at all"
        )
        assert after.versions == (60, 60)
        np.testing.assert_array_equal(after.dense, -60 * ONES)
        np.testing.assert_array_equal(after.rows[0], np.full((2, 2), -60))
    finally:
        stage.close()


def test_the_same_sequence_again_is_answered_and_not_applied(pair: Stage) -> None:
    pool = pair.pool()
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    first = pool.push(update(1, (0, 0), ONES, [5]), timeout_s=LIMIT_S)
    assert pool.push(update(1, (0, 0), ONES, [5]), timeout_s=LIMIT_S) == first
    np.testing.assert_array_equal(pool.pull([as_ids([5])], timeout_s=LIMIT_S).dense, -ONES)


def test_two_workers_push_at_the_same_time_and_nothing_is_lost(stage: Stage) -> None:
    pools = [stage.pool(f"worker-{w}") for w in range(2)]
    took = [
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        for pool in pools
    ]
    assert took == [True, False]

    def work(worker: int) -> None:
        for sequence in range(1, 101):
            versions = pools[worker].pull([as_ids([worker, 9])], timeout_s=LIMIT_S).versions
            pools[worker].push(update(sequence, versions, ONES, [worker, 9]), timeout_s=LIMIT_S)

    threads = [threading.Thread(target=work, args=(w,)) for w in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    after = pools[0].pull([as_ids([0, 1, 9])], timeout_s=LIMIT_S)
    assert after.versions == (200,) * len(stage.servers)
    np.testing.assert_array_equal(after.dense, -200 * ONES)
    np.testing.assert_array_equal(after.rows[0][:, 0], [-100, -100, -200])


def test_staleness_counts_the_updates_of_others_only(pair: Stage) -> None:
    mine, other = pair.pool("worker-0"), pair.pool("worker-1")
    for pool in (mine, other):
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    mine.push(update(1, (0, 0), ONES), timeout_s=LIMIT_S)
    assert other.push(update(1, (0, 0), ONES), timeout_s=LIMIT_S).staleness == (1, 1)
    assert mine.push(update(2, (0, 0), ONES), timeout_s=LIMIT_S).staleness == (1, 1)
    assert mine.push(update(3, (2, 2), ONES), timeout_s=LIMIT_S).staleness == (0, 0)
    assert pair.servers[0].statistics()["staleness"][:3] == [2, 2, 0]


def test_a_fenced_worker_is_refused_everything_and_its_last_push_is_reported(pair: Stage) -> None:
    pool, other = pair.pool("worker-0"), pair.pool("worker-1")
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    other.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    pool.push(update(1, (0, 0), ONES), timeout_s=LIMIT_S)
    for server in pair.servers:
        known = server.fence("worker-0")
        assert known is not None and known[1:] == (1, 7, 0, 10)
        assert server.fence("worker-9") is None
    with pytest.raises(Refused, match="worker-0 was fenced"):
        pool.push(update(2, (1, 1), ONES), timeout_s=LIMIT_S)
    with pytest.raises(Refused, match="worker-0 was fenced"):
        pool.pull([as_ids([1])], timeout_s=LIMIT_S)
    with pytest.raises(Refused, match="worker-0 was fenced"):
        pair.pool("worker-0").initialise(
            counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S
        )
    np.testing.assert_array_equal(other.pull([as_ids([1])], timeout_s=LIMIT_S).dense, -ONES)


def test_a_fence_waits_for_a_push_that_is_being_applied() -> None:
    """Else it would tell less than the server is about to have: those records would be trained
    twice without a word.
    """
    stage = Stage()
    (server,) = stage.servers
    pool = stage.pool()
    pool.initialise(counting_spec(dim=64), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    pool.push(update(1, (0,), ONES, [-1], dim=64), timeout_s=LIMIT_S)
    large = update(2, (0,), ONES, range(100_000), dim=64)
    thread = threading.Thread(target=lambda: pool.push(large, timeout_s=LIMIT_S))
    thread.start()
    while server.statistics()["rows"] == 1:
        assert thread.is_alive()
    # It makes rows, some thousands at a time: it is being applied.
    known = server.fence("worker-0")
    assert known is not None and known[1] == 2
    assert server.version == 2, "nothing is applied after the answer"
    thread.join(LIMIT_S)
    stage.close()


def test_a_worker_that_counts_again_has_its_first_pushes_applied_and_its_former_self_is_refused(
    pair: Stage,
) -> None:
    before, now = pair.pool("worker-0"), pair.pool("worker-0")
    before.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    for sequence in (1, 2, 3):
        before.push(update(sequence, (0, 0), ONES), timeout_s=LIMIT_S)
    now.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    assert now.push(update(1, (3, 3), ONES), timeout_s=LIMIT_S).versions == (4, 4)
    with pytest.raises(Refused, match="has connected anew"):
        before.push(update(4, (4, 4), ONES), timeout_s=LIMIT_S)
    # Nor may it take over again by new connections.
    before.move(("", ""))
    before.move(pair.addresses)
    with pytest.raises(Refused, match="has connected anew"):
        before.push(update(4, (4, 4), ONES), timeout_s=LIMIT_S)
    assert [server.version for server in pair.servers] == [4, 4]


def test_a_push_names_the_servers_that_were_met_and_what_they_lack(pair: Stage) -> None:
    pool, both, later = pair.pool(), pair.addresses, Stage(2)
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    assert set(pool.push(update(1, (0, 0), ONES), timeout_s=LIMIT_S).met) == set(both)
    assert pool.push(update(2, (1, 1), ONES), timeout_s=LIMIT_S).met == {}
    # Pulls do not count: what a server has of a worker is its pushes.
    pool.move(("", both[1]))
    with pytest.raises(TransientError):
        pool.push(update(3, (2, 2), ONES), timeout_s=0.2)
    pool.move((later.addresses[0], both[1]))
    pool.pull([as_ids([1])], timeout_s=LIMIT_S)
    # It has this worker's weights, and lacks the two pushes: they would count twice.
    assert pool.push(update(3, (2, 2), ONES), timeout_s=LIMIT_S).met == {later.addresses[0]: 2}
    assert pool.push(update(4, (3, 3), ONES), timeout_s=LIMIT_S).met == {}
    later.close()


def test_a_fence_refuses_a_push_that_waits_at_the_gate(pair: Stage) -> None:
    pool = pair.pool()
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    pair.servers[0].gate(LIMIT_S)
    errors: list[BaseException] = []

    def push() -> None:
        try:
            pool.push(update(1, (0, 0), ONES), timeout_s=LIMIT_S)
        except Refused as error:
            errors.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    while pair.servers[1].version == 0:
        threading.Event().wait(0.01)
    pair.servers[0].fence("worker-0")
    thread.join(LIMIT_S)
    assert len(errors) == 1 and pair.servers[0].version == 0


def test_nobody_is_served_with_another_token(pair: Stage) -> None:
    for token in ("", "the job's toke", "the job's tokem", "another job's token"):
        with pytest.raises(TransientError, match="does not know this process's token"):
            pair.pool("worker-0", token).initialise(
                counting_spec(), np.zeros(6, np.float32), timeout_s=0.2
            )
    assert not pair.servers[0].has_state


def test_another_model_is_refused_and_the_first_variable_that_differs_is_named(pair: Stage) -> None:
    pair.pool().initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    with pytest.raises(
        UserError,
        match=r"ps-0 .* dense variable that differs is w \[7\] in the model, w \[6\] there",
    ):
        pair.pool("worker-1").initialise(
            counting_spec(7), np.zeros(7, np.float32), timeout_s=LIMIT_S
        )
    with pytest.raises(
        UserError, match=r"table that differs is t of dimension 3 .* t of dimension 2"
    ):
        pair.pool("worker-2").initialise(
            counting_spec(6, 3), np.zeros(6, np.float32), timeout_s=LIMIT_S
        )


def test_a_server_that_is_away_is_named_when_the_time_is_over(pair: Stage) -> None:
    pool = pair.pool()
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    pair.servers[1].stop()
    with pytest.raises(
        TransientError,
        match=(
            r"pull of worker-0 was not answered within 1 s by ps-1 at 127.0.0.1:\d+: Connection"
            r" refused"
        ),
    ):
        pool.pull([as_ids([1])], timeout_s=1.0)
    pool.move([pair.addresses[0], ""])
    with pytest.raises(TransientError, match=r"by ps-1 \(it has no address at the moment\)"):
        pool.push(update(1, (0, 0), ONES), timeout_s=0.3)


def test_a_closed_pool_ends_calls_under_way(pair: Stage) -> None:
    pool = pair.pool(addresses=[pair.addresses[0], ""])
    threading.Timer(0.1, pool.close).start()
    with pytest.raises(TransientError, match="were closed"):
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)


def test_an_address_of_another_server_is_noticed(pair: Stage) -> None:
    with pytest.raises(TransientError, match="so it is not ps-0 of this job"):
        pair.pool(addresses=pair.addresses[::-1]).initialise(
            counting_spec(), np.zeros(6, np.float32), timeout_s=1.0
        )


def test_wrong_shapes_are_refused_before_anything_is_sent(pair: Stage) -> None:
    pool = pair.pool()
    with pytest.raises(UserError, match="initialise"):
        pool.pull([as_ids([1])], timeout_s=LIMIT_S)
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    with pytest.raises(ValueError, match="dense has 5 values: expected 6"):
        pool.push(update(1, (0, 0), np.ones(5, np.float32)), timeout_s=LIMIT_S)
    with pytest.raises(ValueError, match=r"rows of table t are \[2, 3\]: expected \[2, 2\]"):
        pool.push(update(1, (0, 0), ONES, [1, 2], dim=3), timeout_s=LIMIT_S)
    with pytest.raises(UserError, match="ids of 2 tables, the model has 1"):
        pool.pull([as_ids([1]), as_ids([2])], timeout_s=LIMIT_S)
    with pytest.raises(TypeError):
        pool.pull([np.array([1], np.int32)], timeout_s=LIMIT_S)
    assert pair.servers[0].version == 0


def test_a_server_that_came_back_empty_gets_the_values_that_were_pulled_last() -> None:
    stage, later = Stage(1), Stage(1)
    try:
        pool = stage.pool()
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        pool.push(update(1, (0,), ONES, [3]), timeout_s=LIMIT_S)
        pool.pull([as_ids([3])], timeout_s=LIMIT_S)
        stage.servers[0].stop()
        threading.Timer(0.1, pool.move, [later.addresses]).start()
        pulled = pool.pull([as_ids([3])], timeout_s=LIMIT_S)
        np.testing.assert_array_equal(pulled.dense, -ONES)
        np.testing.assert_array_equal(pulled.rows[0], np.zeros((1, 2)))
        assert pool.push(update(2, pulled.versions, ONES, [3]), timeout_s=LIMIT_S).staleness == (0,)
        np.testing.assert_array_equal(pool.pull([as_ids([3])], timeout_s=LIMIT_S).dense, -2 * ONES)
    finally:
        stage.close()
        later.close()


def test_a_worker_that_found_values_on_the_servers_never_gives_its_initial_ones() -> None:
    stage, later = Stage(1), Stage(1)
    try:
        stage.pool().initialise(counting_spec(), ONES, timeout_s=LIMIT_S)
        fresh = stage.pool("worker-1")
        assert not fresh.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        stage.servers[0].stop()
        fresh.move(later.addresses)
        with pytest.raises(TransientError, match="this process has none to give it"):
            fresh.pull([as_ids([])], dense=False, timeout_s=1.0)
        assert fresh.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S), (
            "it is told that these are initial"
        )
    finally:
        stage.close()
        later.close()


def test_an_optimizer_whose_averages_went_with_a_server_begins_to_count_again() -> None:
    """Adam divides its averages by what they lack after so many steps: empty ones, called old,
    would make steps half as long.
    """
    stage = Stage(1)
    later = _native.Server(0, 1, bulk_key(TOKEN, 0))
    spec = counting_spec().model_copy(update={"optimizer": OptimizerSpec(kind=OptimizerKind.ADAM)})
    try:
        pool = stage.pool()
        pool.initialise(spec, np.zeros(6, np.float32), timeout_s=LIMIT_S)
        for sequence in range(1, 21):
            pool.push(update(sequence, (sequence - 1,), ONES), timeout_s=LIMIT_S)
        other = stage.pool("worker-1")
        other.initialise(spec, np.zeros(6, np.float32), timeout_s=LIMIT_S)
        before = other.pull([as_ids([])], timeout_s=LIMIT_S)
        stage.servers[0].stop()
        later.listen("127.0.0.1", int(stage.addresses[0].rpartition(":")[2]))
        assert other.pull([as_ids([])], timeout_s=LIMIT_S).versions == (20,), (
            "the version goes on, the averages do not"
        )
        other.push(update(1, before.versions, ONES), timeout_s=LIMIT_S)
        after = other.pull([as_ids([])], timeout_s=LIMIT_S)
        assert before.dense is not None and after.dense is not None
        np.testing.assert_allclose(before.dense - after.dense, ONES, rtol=1e-3)
    finally:
        later.stop()
        stage.close()


def test_a_table_is_read_from_its_first_row_again_after_a_broken_connection() -> None:
    stage = Stage(1)
    network = stage.behind(BadNetwork(stage.addresses[0], 0, breaks=0))
    try:
        pool = stage.pool(addresses=[network.address])
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        pool.pull([as_ids(range(70_000))], timeout_s=LIMIT_S)
        page = pool.rows(0, 0, 0, snapshot=None, timeout_s=LIMIT_S)
        assert (page.lost, page.total, len(page.ids) < 70_000) == (False, 70_000, True)
        network.cut()
        assert pool.rows(0, 0, len(page.ids), snapshot=None, timeout_s=LIMIT_S).lost
        np.testing.assert_array_equal(all_rows(pool, 0)[0], np.arange(70_000))
    finally:
        stage.close()


def test_all_rows_come_for_export_in_pages(stage: Stage) -> None:
    spec = rich_spec()
    pool = stage.pool()
    pool.initialise(spec, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    made = (
        np.random.default_rng(1).choice(10**9, 150_000, replace=False).astype(np.int64) - 5 * 10**8
    )
    weights = pool.pull([made, as_ids([])], timeout_s=LIMIT_S).rows[0]
    ids, rows = all_rows(pool, 0)
    order = np.argsort(made)
    np.testing.assert_array_equal(ids, made[order])
    np.testing.assert_array_equal(rows, weights[order])
    assert all_rows(pool, 1)[0].shape == (0,)
