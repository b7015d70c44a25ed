"""Thousands of connections on a few threads: none of them waits for another's gate, step, peer or
limit.
"""

from __future__ import annotations

import os
import resource
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from elasticdl.embedding.spec import (
    DenseSpec,
    Dtype,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from tests.contract.ps_stage import LIMIT_S, Stage, as_ids, counting_spec
from tests.contract.test_bulk_frames import OK, PULL, PUSH, TRANSIENT, Raw
from tests.waiting import until

pytestmark = pytest.mark.contract

MORE_THAN_THREADS = 40
"""A server has at most 16."""
PULL_NOTHING = struct.pack("<qIIQ", -1, 0, 1, 0)


def push_frame(sequence: int = 1) -> bytes:
    """A gradient of 1 for each of the six weights."""
    head = struct.pack("<qqqqqdQIIQ", sequence, 7, 0, 10 * sequence, 0, 1.0, 6, 1, 0, 0)
    return head + np.ones(6, np.float32).tobytes()


def staged(turns: int = 0, dense: int = 6) -> Stage:
    made = Stage(1, turns=turns)
    zeros = np.zeros(dense, np.float32)
    made.pool().initialise(counting_spec(dense), zeros, timeout_s=LIMIT_S)
    return made


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = staged()
    yield made
    made.close()


@pytest.fixture
def stepping() -> Iterator[Stage]:
    made = staged(turns=MORE_THAN_THREADS)
    yield made
    made.close()


def pushing(stage: Stage, stack: ExitStack) -> list[Raw]:
    """Workers that have each sent a push and not read the answer."""
    workers = [stack.enter_context(Raw(stage.addresses[0])) for _ in range(MORE_THAN_THREADS)]
    for number, worker in enumerate(workers):
        assert worker.greet(name=f"worker-{100 + number}".encode())[0] == OK
        worker.send_frame(PUSH, push_frame())
    return workers


def pulls(stage: Stage) -> bool:
    with Raw(stage.addresses[0]) as raw:
        return raw.greet(pushes=0)[0] == OK and raw.ask(PULL, PULL_NOTHING)[0] == OK


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_members_take_no_threads(stage: Stage) -> None:
    before = threads()
    with ExitStack() as stack:
        for number in range(300):
            member = stack.enter_context(Raw(stage.addresses[0]))
            assert member.greet(pushes=0, name=f"worker-{number}".encode())[0] == OK
        assert threads() <= before


def test_pushes_that_wait_at_the_gate_keep_no_pull_waiting(stage: Stage) -> None:
    (server,) = stage.servers
    server.gate(LIMIT_S)
    with ExitStack() as stack:
        workers = pushing(stage, stack)
        assert pulls(stage)
        assert server.version == 0 and not any(worker.answers_within(0) for worker in workers)
        server.ungate()
        assert [worker.answer()[0] for worker in workers] == [OK] * len(workers)
    assert server.version == MORE_THAN_THREADS


def test_pushes_continue_when_the_gate_opens_by_time(stage: Stage) -> None:
    (server,) = stage.servers
    server.gate(0.2)
    with ExitStack() as stack:
        workers = pushing(stage, stack)
        assert [worker.answer()[0] for worker in workers] == [OK] * len(workers)


def test_a_cut_lets_in_the_pushes_that_it_needs_and_no_others(stage: Stage) -> None:
    (server,) = stage.servers
    server.gate(LIMIT_S)
    with ExitStack() as stack:
        workers = pushing(stage, stack)
        cut = server.cut(1, {f"worker-{100 + number}": 1 for number in range(0, 40, 2)}, LIMIT_S)
        assert cut["version"] == 20
        assert [worker.answer()[0] for worker in workers[::2]] == [OK] * 20
        assert not any(worker.answers_within(0) for worker in workers[1::2])
        server.ungate()
        assert [worker.answer()[0] for worker in workers[1::2]] == [OK] * 20


def test_pushes_for_a_step_that_is_being_applied_keep_no_pull_waiting(stepping: Stage) -> None:
    (server,) = stepping.servers
    server.gate(LIMIT_S)
    applying = threading.Thread(target=server.apply_step, args=(1, []))
    applying.start()
    with ExitStack() as stack:
        workers = pushing(stepping, stack)
        assert pulls(stepping)
        server.ungate()
        applying.join(LIMIT_S)
        assert [worker.answer()[0] for worker in workers] == [OK] * len(workers)
        pushed = [(f"worker-{100 + number}", 1, 1.0) for number in range(len(workers))]
        assert server.apply_step(2, pushed) == 2
        answer = workers[0].ask(PULL, struct.pack("<qIIQ", -1, 1, 1, 0))[1]
    np.testing.assert_array_equal(np.frombuffer(answer[16:], np.float32), -np.ones(6))


def test_peers_that_do_not_read_keep_nobody_waiting() -> None:
    with closing(staged(dense=2_000_000)) as stage, ExitStack() as stack:
        for _ in range(MORE_THAN_THREADS):
            raw = stack.enter_context(Raw(stage.addresses[0]))
            assert raw.greet(pushes=0)[0] == OK
            raw.send_frame(PULL, struct.pack("<qIIQ", -1, 1, 1, 0))
        assert pulls(stage)
        status, answer = raw.answer()
        assert status == OK and len(answer) == 16 + 4 * 2_000_000


def test_requests_sent_ahead_are_answered_in_their_order(stage: Stage) -> None:
    with Raw(stage.addresses[0]) as raw:
        assert raw.greet()[0] == OK
        for sequence in range(1, 21):
            raw.send_frame(PUSH, push_frame(sequence))
        versions = [struct.unpack_from("<q", raw.answer()[1])[0] for _ in range(20)]
    assert versions == list(range(1, 21))


def test_a_member_without_a_place_is_told_to_raise_the_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, hard))
    try:
        stage = staged()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        (server,) = stage.servers
        with ExitStack() as stack:
            while server.statistics()["connections"] < server.most_connections:
                member = stack.enter_context(Raw(stage.addresses[0]))
                assert member.greet(pushes=0)[0] == OK
            with Raw(stage.addresses[0]) as raw:
                status, message = raw.greet(pushes=0)
                assert status == TRANSIENT and b"`ulimit -Hn`" in message
            member.close()
            until("there is a place", lambda: pulls(stage))
    finally:
        stage.close()


def test_rows_wider_than_a_piece_of_a_reply_arrive_whole() -> None:
    with closing(Stage(1)) as stage:
        spec = ParametersSpec(
            optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
            dense=(DenseSpec(path="w", shape=(1,)),),
            tables=(TableSpec(name="t", dim=1 << 16),),
            dtype=Dtype.FLOAT64,
        )
        pool = stage.pool()
        pool.initialise(spec, np.zeros(1), timeout_s=LIMIT_S)
        rows = pool.pull([as_ids([1, 2, 3])], timeout_s=LIMIT_S).rows[0]
        again = pool.pull([as_ids([3])], timeout_s=LIMIT_S).rows[0]
        assert rows.shape == (3, 1 << 16) and rows.dtype == np.float64
        np.testing.assert_array_equal(rows[2], again[0])
