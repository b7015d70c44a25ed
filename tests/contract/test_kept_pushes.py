"""Workers keep their pushes until a checkpoint has them, and make them again for a server that lost
them: real servers over loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, WirePrecision
from elasticdl.native import _native
from elasticdl.ps.restoring import restore
from elasticdl.rpc.parameters import Pushed
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.tokens import bulk_key
from elasticdl.worker.ps.kept_pushes import kept_bytes
from tests.contract.ps_stage import LIMIT_S, TOKEN, BadNetwork, Stage, counting_spec, shown, update
from tests.contract.test_checkpoint_deltas import Training, spec_of
from tests.contract.test_checkpoint_restore import RULES, checkpoint, contents, place
from tests.waiting import until

pytestmark = pytest.mark.contract

ENOUGH = 1 << 24
SMALL = 700
"""Room for a few of the pushes of `counted`."""


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Makes jobs that train the same, each with its own two servers."""
    with ExitStack() as stack:
        made: list[Training] = []

        def make(
            kept_bytes: int = ENOUGH,
            rule: int = 2,
            precision: WirePrecision = WirePrecision.FLOAT32,
        ) -> Training:
            stage = Stage(2)
            stack.callback(stage.close)
            folder = tmp_path / f"made-{len(made)}"
            spec = spec_of(RULES[rule])
            made.append(Training(stage, spec, folder, kept_bytes=kept_bytes, precision=precision))
            return made[-1]

        yield make


def push(job: Training, count: int) -> dict[str, int]:
    """Returns which servers were met."""
    met: dict[str, int] = {}
    for _ in range(count):
        met.update(job.push().met)
    return met


def lose(job: Training, k: int, directory: Path) -> None:
    """A server ends with its memory, and the next one restores a checkpoint."""
    job.stage.lose(k, lambda server: restore(server, place(job.stage, k), directory))
    job.pool.move(job.stage.addresses)


def same(one: Training, other: Training, tmp_path: Path) -> None:
    ours, theirs = contents(one.stage, tmp_path), contents(other.stage, tmp_path)
    for mine, its in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_array_equal(mine, its)
    assert ours[1] == theirs[1]
    assert [server.version for server in one.stage.servers] == [
        server.version for server in other.stage.servers
    ]


@pytest.mark.parametrize("rule", range(len(RULES)))
def test_a_server_that_lost_its_memory_comes_to_the_same_bits_again(
    train: Callable[..., Training], tmp_path: Path, rule: int
) -> None:
    lost, whole = train(rule=rule), train(rule=rule)
    for job in (lost, whole):
        push(job, 7)
    directory = lost.checkpoint()
    for job in (lost, whole):
        push(job, 9)
    lose(lost, 1, directory)
    met = push(lost, 3)
    push(whole, 3)
    assert met == {lost.stage.addresses[1]: 0}
    same(lost, whole, tmp_path)


def test_a_worker_without_work_makes_its_pushes_again(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    lost, whole = train(), train()
    push(lost, 4)
    directory = lost.checkpoint()
    push(lost, 5)
    push(whole, 9)
    lose(lost, 0, directory)
    assert lost.pool.meet(timeout_s=LIMIT_S) == {lost.stage.addresses[0]: 0}
    same(lost, whole, tmp_path)
    assert lost.pool.meet(timeout_s=LIMIT_S) == {}


def test_each_push_counts_once_however_often_a_server_and_the_network_fail(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    lost, whole = train(), train()
    push(lost, 4)
    directory = lost.checkpoint()
    push(lost, 30)
    push(whole, 35)
    for seed in range(3):
        lost.stage.lose(1, lambda server: restore(server, place(lost.stage, 1), directory))
        network = lost.stage.behind(BadNetwork(lost.stage.addresses[1], seed, breaks=20))
        lost.pool.move([lost.stage.addresses[0], network.address])
        met = lost.pool.meet(timeout_s=LIMIT_S)
        assert met == {network.address: 0}
        assert lost.stage.servers[1].version == 34
    push(lost, 1)
    same(lost, whole, tmp_path)


@pytest.mark.parametrize("precision", [WirePrecision.FLOAT32, WirePrecision.BFLOAT16])
def test_packed_pushes_come_again(
    train: Callable[..., Training], tmp_path: Path, precision: WirePrecision
) -> None:
    lost, whole = (train(precision=precision) for _ in range(2))
    for job in (lost, whole):
        job.pool.pack(always=True)
        push(job, 4)
    directory = lost.checkpoint()
    for job in (lost, whole):
        push(job, 5)
    lose(lost, 1, directory)
    for job in (lost, whole):
        push(job, 1)
    same(lost, whole, tmp_path)


def test_a_checkpoint_makes_room_and_what_had_no_room_is_named(
    train: Callable[..., Training],
) -> None:
    job = train(kept_bytes=2 * SMALL)
    crowded = [job.push(most=10).crowded for _ in range(40)]
    assert not crowded[0] and crowded[-1]
    directory = job.checkpoint()
    covered = job.sequence
    # The servers tell with the next answer.
    assert not job.push(most=1).crowded
    for _ in range(40):
        job.push(most=10)
    lose(job, 1, directory)
    (lacks,) = job.pool.meet(timeout_s=LIMIT_S).values()
    assert covered < lacks < job.sequence
    assert job.stage.servers[1].version == covered + job.sequence - lacks


def test_a_push_under_way_waits_until_the_earlier_ones_are_there_again(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    """On both servers, and answers to repeated pushes are lost."""
    lost, whole = train(), train()
    push(lost, 4)
    directory = lost.checkpoint()
    push(lost, 20)
    push(whole, 25)
    networks = []
    for k in range(2):
        lose(lost, k, directory)
        networks.append(lost.stage.behind(BadNetwork(lost.stage.addresses[k], k, breaks=10)))
    lost.pool.move([network.address for network in networks])
    assert push(lost, 1) == {network.address: 0 for network in networks}
    same(lost, whole, tmp_path)


def lacking(train: Callable[..., Training]) -> tuple[Training, int]:
    """A job whose second server gets again the newest of 40 pushes but the last one, and no older
    ones. Returns that number of pushes, too.
    """
    job = train(kept_bytes=4 * SMALL)
    push(job, 1)
    directory = job.checkpoint()
    for _ in range(39):
        job.push(most=10)
    lose(job, 1, directory)
    server = job.stage.servers[1]
    server.gate(LIMIT_S)
    # Nobody is there, so the cut is there at once. Its gate lets in what belongs to it.
    server.cut(1, {"worker-0": 39}, LIMIT_S)
    with pytest.raises(TransientError):
        job.pool.meet(timeout_s=2.0)
    # By another cut behind the same gate: once that opens, the last one comes in at any moment.
    assert server.cut(2, {"worker-0": 39}, LIMIT_S)["workers"]["worker-0"][1] == 39
    server.ungate()
    return job, 39


def test_what_a_server_lacks_is_known_though_it_ended_before_all_was_there_again(
    train: Callable[..., Training],
) -> None:
    job, has = lacking(train)
    # As the next process that has taken on its memory.
    network = job.stage.behind(BadNetwork(job.stage.addresses[1], 0, breaks=0))
    job.pool.move([job.stage.addresses[0], network.address])
    met = job.pool.meet(timeout_s=LIMIT_S)
    assert set(met) == {network.address} and 1 < met[network.address] < has
    assert job.pool.meet(timeout_s=LIMIT_S) == {}


@pytest.mark.parametrize("away", [False, True], ids=["there", "away"])
def test_what_servers_lack_is_known_after_the_parameters_moved_to_others(
    train: Callable[..., Training], away: bool
) -> None:
    job, has = lacking(train)
    old = job.stage.addresses[1]
    # The worker has met the server, which had not got all again, and is away now.
    job.pool.move(["", "" if away else old])
    with pytest.raises(TransientError):
        job.pool.meet(timeout_s=0.1 if away else 2.0)
    directory = job.checkpoint()
    with closing(Stage(3, first=2)) as there:
        for k, server in enumerate(there.servers):
            restore(server, place(there, k), directory)
        job.pool.move(there.addresses, 2, shown(3, "worker-0", first=2))
        met = dict(job.pool.meet(timeout_s=LIMIT_S))
        assert 1 < met.pop(old) < has
        assert met == dict.fromkeys(there.addresses, 0)
        # The new servers get pushes again, too.
        assert job.push().met == {}
        there.lose(2, lambda server: restore(server, place(there, 2), directory))
        job.pool.move(there.addresses, 2)
        assert job.pool.meet(timeout_s=LIMIT_S) == {there.addresses[2]: 0}
        assert {server.version for server in there.servers} == {there.servers[0].version}


def test_a_cut_does_not_wait_for_pushes_that_cannot_be_made_again(
    train: Callable[..., Training],
) -> None:
    job = train(kept_bytes=0)
    push(job, 2)
    directory = job.checkpoint()
    push(job, 3)
    lose(job, 1, directory)
    assert job.pool.meet(timeout_s=LIMIT_S) == {job.stage.addresses[1]: 5}
    facts = job.stage.cut(1)
    assert [facts[k]["workers"]["worker-0"][1] for k in range(2)] == [5, 2]


def test_a_server_with_a_workers_present_values_does_not_get_pushes_twice(
    train: Callable[..., Training],
) -> None:
    job = train()
    push(job, 5)
    job.stage.lose(1)
    job.pool.move(job.stage.addresses)
    assert job.pool.meet(timeout_s=LIMIT_S) == {job.stage.addresses[1]: 5}
    # Another worker comes to it when it has begun.
    assert job.stage.servers[1].statistics()["pushes"] == 0
    job.stage.cut(1)


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ({}, 64 << 20),
        ({"num_workers": "2:64"}, 16 << 20),
        ({"sync": True}, 0),
        ({"checkpoint_seconds": 0}, 0),
        ({"checkpoint_seconds": 0, "checkpoint_steps": 9}, 64 << 20),
        ({"image_name": "i"}, 0),
        ({"image_name": "i", "volume": "claim_name=c,mount_path=/d", "job_dir": "/d/j"}, 256 << 20),
        (
            {
                "image_name": "i",
                "volume": "claim_name=c,mount_path=/d",
                "job_dir": "/d/j",
                "worker_resource_limit": "memory=1Gi",
            },
            128 << 20,
        ),
    ],
)
def test_the_room_for_pushes_follows_the_job(flags: dict[str, Any], most: int) -> None:
    usual = {"model_zoo": "z", "model_def": "m", "training_data": "t", "num_ps_pods": 2}
    assert kept_bytes(JobSpec.from_flags(Action.TRAIN, usual | flags), 8 << 30) == most


def counted(pool: ServerPool, first: int, count: int) -> None:
    """Pushes of a counting model."""
    for sequence in range(first, first + count):
        done = update(sequence, (0,), np.ones(6, np.float32), (1, 2))
        pool.push(done, timeout_s=LIMIT_S)


def test_workers_make_their_own_pushes_again_and_weights_count_them_all(tmp_path: Path) -> None:
    stage = Stage(1)
    pools = [stage.pool(f"worker-{k}", kept_bytes=ENOUGH) for k in range(3)]
    try:
        for pool in pools:
            pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        for pool in pools[:2]:
            counted(pool, 1, 10)
        directory = checkpoint(stage, tmp_path / "made")
        for pool in pools:
            # The third one has no push in the checkpoint.
            counted(pool, 1 if pool is pools[2] else 11, 5)
        stage.lose(0, lambda server: restore(server, place(stage, 0), directory))
        for pool in pools:
            pool.move(stage.addresses)
            assert pool.meet(timeout_s=LIMIT_S) == {stage.addresses[0]: 0}
        pulled = pools[0].pull([np.array([1, 2], np.int64)], timeout_s=LIMIT_S)
        assert pulled.versions == (35,)
        assert pulled.dense is not None
        np.testing.assert_array_equal(pulled.dense, -np.full(6, 35, np.float32))
        np.testing.assert_array_equal(pulled.rows[0], -np.full((2, 2), 35, np.float32))
    finally:
        stage.close()


def test_a_push_that_is_tried_again_is_not_lost_with_a_server_between_the_tries() -> None:
    with closing(Stage(2)) as stage:
        pool = stage.pool(kept_bytes=ENOUGH)
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)

        def push(sequence: int, timeout_s: float = LIMIT_S) -> Pushed:
            return pool.push(update(sequence, (0, 0), np.ones(6, np.float32)), timeout_s=timeout_s)

        push(1)
        push(2)
        stage.servers[1].gate(LIMIT_S)
        with pytest.raises(TransientError):
            push(3, timeout_s=2.0)
        stage.lose(0)
        pool.move(stage.addresses)
        assert pool.meet(timeout_s=LIMIT_S) == {stage.addresses[0]: 2}
        stage.servers[1].ungate()
        assert push(3).met == {}
        # The new one got the weights that the worker had, and this push.
        assert [server.statistics()["pushes"] for server in stage.servers] == [1, 3]


def test_what_a_server_took_along_in_the_middle_of_a_push_is_known() -> None:
    """Whoever meets the next one before the push ends would say that it lacks nothing. But the push
    ends well with the other server's answer, and nobody makes it again.
    """
    stage = Stage(2)
    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        stack.callback(stage.close)
        pool = stage.pool()
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        pool.meet(timeout_s=LIMIT_S)
        stage.servers[0].gate(LIMIT_S)
        first = update(1, (0, 0), np.ones(6, np.float32))
        pushing = threads.submit(pool.push, first, timeout_s=LIMIT_S)
        until("a push on one server", lambda: stage.servers[1].statistics()["pushes"])
        # Until the worker has its answer, most likely. Otherwise the next one gets the push again.
        wait((pushing,), timeout=0.3)
        stage.lose(1)
        pool.move(stage.addresses)
        meeting = threads.submit(pool.meet, timeout_s=LIMIT_S)
        wait((meeting,), timeout=0.3)
        stage.servers[0].ungate()
        met = {**pushing.result().met, **meeting.result()}
        assert met == {stage.addresses[1]: 1 - stage.servers[1].statistics()["pushes"]}


def test_kept_memory_tells_the_next_process_that_it_began_with_a_checkpoint(tmp_path: Path) -> None:
    """A worker that meets only that one makes its pushes again, too."""
    stage = Stage(1)
    pool = stage.pool(kept_bytes=ENOUGH)
    memory = tmp_path / "memory"
    memory.touch()
    kept = partial(_native.Server, 0, 1, bulk_key(TOKEN, 0), memory=str(memory), run="r")
    servers: list[Any] = []
    try:
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        counted(pool, 1, 3)
        directory = checkpoint(stage, tmp_path / "made")
        counted(pool, 4, 3)
        stage.servers[0].stop()
        servers.append(kept())
        restore(servers[0], place(stage, 0), directory)
        servers.pop().stop()
        servers.append(kept())
        assert servers[0].take_on()
        pool.move([f"127.0.0.1:{servers[0].listen('127.0.0.1')}"])
        assert set(pool.meet(timeout_s=LIMIT_S).values()) == {0}
        assert servers[0].version == 6
    finally:
        for server in servers:
            server.stop()
        stage.close()
