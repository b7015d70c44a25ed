"""The gate and the cut: a view is one consistent state over all servers, whatever is pushed
meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from elasticdl.errors import TransientError
from elasticdl.native import _native
from elasticdl.rpc.native_spec import native_spec
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import SnapshotId
from elasticdl.tokens import bulk_key
from tests.contract.ps_stage import LIMIT_S, TOKEN, Stage, all_rows, as_ids, counting_spec, update

pytestmark = pytest.mark.contract

WORKERS = 3


class Load:
    """Workers that push as fast as they can: worker w adds to weights w and w + 3 and rows 2w and
    2w + 1 (one a server).
    """

    def __init__(self, stage: Stage) -> None:
        self._ended = threading.Event()
        self.pools = [stage.pool(f"worker-{w}") for w in range(WORKERS)]
        self.pushes = [0] * WORKERS
        self.errors: list[BaseException] = []
        for pool in self.pools:
            pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        self._threads = [
            threading.Thread(target=self._work, args=(w, pool)) for w, pool in enumerate(self.pools)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, worker: int, pool: ServerPool) -> None:
        dense = np.zeros(6, np.float32)
        dense[[worker, worker + 3]] = 1
        versions: tuple[int, ...] = (0, 0)
        while not self._ended.is_set():
            try:
                change = update(
                    self.pushes[worker] + 1, versions, dense, [2 * worker, 2 * worker + 1]
                )
                versions = pool.push(change, timeout_s=LIMIT_S).versions
            except Exception as error:  # noqa: BLE001 - the test raises it
                self.errors.append(error)
                return
            self.pushes[worker] += 1

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
        assert not self.errors, self.errors


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(2)
    yield made
    made.close()


def initialised(stage: Stage, name: str = "worker-0") -> ServerPool:
    pool = stage.pool(name)
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    return pool


def test_each_push_is_in_the_cut_on_both_servers_or_on_neither(stage: Stage) -> None:
    load = Load(stage)
    reader = initialised(stage, "reader")
    rows = as_ids(range(2 * WORKERS))
    for snapshot in range(20):
        first, second = stage.cut(snapshot)
        assert first["version"] == second["version"] and first["workers"] == second["workers"]
        pulled = reader.pull([rows], snapshot=SnapshotId(snapshot), timeout_s=LIMIT_S)
        workers: dict[str, tuple[int, ...]] = first["workers"]
        for name, (_, number, _, _, offset) in workers.items():
            worker = int(name[-1])
            assert offset == 10 * number
            assert pulled.dense is not None
            assert [-pulled.dense[worker], -pulled.dense[worker + 3]] == [number, number]
            np.testing.assert_array_equal(
                -pulled.rows[0][[2 * worker, 2 * worker + 1], 0], [number, number]
            )
        again = reader.pull([rows], snapshot=SnapshotId(snapshot), timeout_s=LIMIT_S)
        np.testing.assert_array_equal(again.rows[0], pulled.rows[0])
        for server in stage.servers:
            server.drop(snapshot)
    load.end()
    assert min(load.pushes) > 20, "nothing was pushed meanwhile"


def test_pulls_continue_behind_a_closed_gate_and_pushes_continue_when_it_opens(
    stage: Stage,
) -> None:
    pool = initialised(stage)
    for server in stage.servers:
        assert server.gate(LIMIT_S) == {}
    thread = threading.Thread(
        target=pool.push,
        args=(update(1, (0, 0), np.ones(6, np.float32)),),
        kwargs={"timeout_s": LIMIT_S},
    )
    thread.start()
    assert pool.pull([as_ids([1])], timeout_s=LIMIT_S).versions == (0, 0)
    thread.join(0.1)
    assert thread.is_alive()
    for server in stage.servers:
        server.ungate()
    thread.join(LIMIT_S)
    assert pool.pull([as_ids([1])], timeout_s=LIMIT_S).versions == (1, 1)


def test_a_gate_opens_by_itself(stage: Stage) -> None:
    pool = initialised(stage)
    begin = time.monotonic()
    stage.servers[0].gate(0.3)
    pool.push(update(1, (0, 0), np.ones(6, np.float32)), timeout_s=LIMIT_S)
    assert 0.25 < time.monotonic() - begin < 5
    with pytest.raises(TransientError, match="the gate is open"):
        stage.servers[0].cut(1, {}, 1.0)


def test_a_cut_that_cannot_be_says_who_is_missing_and_pushes_continue(stage: Stage) -> None:
    pool = initialised(stage)
    pool.push(update(1, (0, 0), np.ones(6, np.float32)), timeout_s=LIMIT_S)
    stage.servers[0].gate(LIMIT_S)
    with pytest.raises(TransientError, match="worker-0 is at push 1 of 3"):
        stage.servers[0].cut(1, {"worker-0": 3}, 0.1)
    stage.servers[0].ungate()
    pool.push(update(2, (0, 0), np.ones(6, np.float32)), timeout_s=LIMIT_S)


def test_nobody_waits_for_a_fenced_or_unknown_worker(stage: Stage) -> None:
    pool = initialised(stage)
    pool.push(update(1, (0, 0), np.ones(6, np.float32)), timeout_s=LIMIT_S)
    server = stage.servers[0]
    server.fence("worker-0")
    assert server.gate(LIMIT_S) == {"worker-0": 1}
    facts = server.cut(1, {"worker-0": 5, "worker-7": 3}, LIMIT_S)
    assert facts["version"] == 1
    assert server.cut(1, {}, LIMIT_S) == facts, "a repeated cut is answered as before"


def test_nobody_waits_for_a_worker_that_only_the_checkpoint_of_a_server_knows() -> None:
    """It may have died before the server came back: other servers have its last push, and it will
    never send it here.
    """
    server = _native.Server(0, 1, bulk_key(TOKEN, 0))
    server.begin_restore(native_spec(counting_spec()))
    server.restore_worker("worker-0", (77, 5, 1, 0, 40))
    server.end_restore(5, 0)
    try:
        assert server.gate(LIMIT_S) == {"worker-0": 5}
        facts = server.cut(1, {"worker-0": 6}, 5.0)
        assert facts["workers"]["worker-0"] == (77, 5, 1, 0, 40)
    finally:
        server.stop()


def test_a_worker_whose_next_push_waits_will_not_send_the_missing_one(stage: Stage) -> None:
    """As after this server was restored from a checkpoint that is older than what the other servers
    have.
    """
    pool = initialised(stage)
    pool.push(update(1, (0, 0), np.ones(6, np.float32)), timeout_s=LIMIT_S)
    server = stage.servers[0]
    server.gate(LIMIT_S)
    change = update(7, (1, 1), np.ones(6, np.float32))
    thread = threading.Thread(target=pool.push, args=(change,), kwargs={"timeout_s": LIMIT_S})
    thread.start()
    assert server.cut(1, {"worker-0": 6}, LIMIT_S)["workers"]["worker-0"][1] == 1
    server.ungate()
    thread.join(LIMIT_S)
    assert server.version == 2


def test_a_view_computes_rows_that_are_not_there_and_makes_none(stage: Stage) -> None:
    pool = initialised(stage)
    pool.push(update(1, (0, 0), np.ones(6, np.float32), [1, 2]), timeout_s=LIMIT_S)
    stage.cut(5)
    pulled = pool.pull([as_ids([1, 2, 3])], dense=False, snapshot=SnapshotId(5), timeout_s=LIMIT_S)
    assert pulled.dense is None and pulled.versions == (1, 1)
    np.testing.assert_array_equal(pulled.rows[0][:, 0], [-1, -1, 0])
    assert sum(server.statistics()["rows"] for server in stage.servers) == 2
    ids, rows = all_rows(pool, 0, SnapshotId(5))
    np.testing.assert_array_equal(ids, [1, 2])
    np.testing.assert_array_equal(rows, [[-1, -1], [-1, -1]])


def test_eight_views_live_at_once_and_a_dropped_one_makes_room(stage: Stage) -> None:
    initialised(stage)
    for snapshot in range(8):
        stage.cut(snapshot)
    with pytest.raises(TransientError, match="8 frozen views are alive"):
        stage.cut(8)
    stage.servers[0].drop(3)
    stage.servers[0].drop(3)
    stage.servers[1].drop(5)
    stage.cut(8)


def test_a_dropped_view_is_not_there(stage: Stage) -> None:
    pool = initialised(stage)
    begin = time.monotonic()
    with pytest.raises(TransientError, match=r"ps-[01]: there is no snapshot 4 here"):
        pool.pull([as_ids([1])], snapshot=SnapshotId(4), timeout_s=LIMIT_S)
    assert time.monotonic() - begin < LIMIT_S / 4, "nobody waits for what will not come back"
    assert pool.pull([as_ids([1])], timeout_s=LIMIT_S).versions == (0, 0)
