"""The bulk plane over TLS: who is refused, with which words, and what an eavesdropper learns."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from elasticdl.errors import TransientError, UserError
from elasticdl.native import _native
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import Authority
from elasticdl.tokens import bulk_key
from tests.contract.ps_stage import (
    LIMIT_S,
    TOKEN,
    BadNetwork,
    Stage,
    as_ids,
    counting_spec,
    shown,
    update,
)
from tests.waiting import until

pytestmark = pytest.mark.contract

SHORT_S = 0.5
LARGE = 1_000_003
"""Floats: many records, and no whole number of them."""


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new("job")


@pytest.fixture
def stage(authority: Authority) -> Iterator[Stage]:
    made = Stage(2, authority=authority)
    yield made
    made.close()


def refused(stage: Stage, pool: ServerPool) -> str:
    """What a pool says that cannot connect."""
    with pytest.raises(TransientError) as caught:
        pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=SHORT_S)
    pool.close()
    assert all(not server.has_state for server in stage.servers)
    return str(caught.value)


def server(certified: CertifiedKey) -> tuple[_native.Server, str]:
    made = _native.Server(0, 1, bulk_key(TOKEN, 0), certified.certificate, certified.key)
    return made, f"127.0.0.1:{made.listen('127.0.0.1')}"


def test_large_tensors_arrive_as_they_were(stage: Stage) -> None:
    values = np.random.default_rng(0).normal(size=LARGE).astype(np.float32)
    pool = stage.pool()
    pool.initialise(counting_spec(dense=LARGE), values, timeout_s=LIMIT_S)
    ids = np.random.default_rng(1).permutation(50_000).astype(np.int64)
    for number in range(1, 4):
        pool.push(update(number, (number - 1,) * 2, np.ones(LARGE, np.float32)), timeout_s=LIMIT_S)
        pulled = pool.pull([ids], timeout_s=LIMIT_S)
        assert pulled.dense is not None
        np.testing.assert_allclose(pulled.dense, values - number, atol=1e-5)
        assert pulled.rows[0].shape == (50_000, 2)


def test_a_client_with_another_authority_is_refused_and_says_why(stage: Stage) -> None:
    other = Authority.new("job").certificate
    said = refused(
        stage, ServerPool(stage.addresses, "worker-0", shown(2, "worker-0"), authority=other)
    )
    assert "its TLS certificate is refused" in said
    assert "ps-0" in said


def test_a_client_in_clear_text_is_refused(stage: Stage) -> None:
    said = refused(stage, ServerPool(stage.addresses, "worker-0", shown(2, "worker-0")))
    assert "ps-0" in said
    assert all(server.statistics()["bad_frames"] > 0 for server in stage.servers)


def test_a_client_does_not_fall_back_to_clear_text(authority: Authority) -> None:
    with closing(Stage(1)) as stage:
        trusted = authority.certificate
        said = refused(
            stage, ServerPool(stage.addresses, "worker-0", shown(1, "worker-0"), authority=trusted)
        )
        assert "TLS handshake" in said


def test_another_process_of_the_job_cannot_act_as_a_server(authority: Authority) -> None:
    impostor, address = server(authority.certified_key(["ps-1"]))
    try:
        pool = ServerPool(
            [address], "worker-0", shown(1, "worker-0"), authority=authority.certificate
        )
        with pytest.raises(TransientError, match=r"certificate is refused: .*mismatch"):
            pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=SHORT_S)
        pool.close()
    finally:
        impostor.stop()


def test_an_expired_certificate_is_named(authority: Authority) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=4000)
    expired, address = server(authority.certified_key(["ps-0"], now=long_ago))
    try:
        pool = ServerPool(
            [address], "worker-0", shown(1, "worker-0"), authority=authority.certificate
        )
        with pytest.raises(TransientError, match="certificate has expired"):
            pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=SHORT_S)
        pool.close()
    finally:
        expired.stop()


@pytest.mark.parametrize("behind", [timedelta(hours=-20), timedelta(days=3000)])
def test_clocks_may_differ_and_jobs_may_be_long(behind: timedelta) -> None:
    made_at = datetime.now(UTC) - behind
    authority = Authority.new("job", now=made_at)
    other, address = server(authority.certified_key(["ps-0"], now=made_at))
    try:
        pool = ServerPool(
            [address], "worker-0", shown(1, "worker-0"), authority=authority.certificate
        )
        assert pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
        pool.close()
    finally:
        other.stop()


@pytest.mark.parametrize("secured", [False, True])
def test_an_eavesdropper_sees_tensors_only_without_tls(authority: Authority, secured: bool) -> None:
    with closing(Stage(1, authority=authority if secured else None)) as stage:
        network = stage.behind(BadNetwork(stage.addresses[0], seed=0, breaks=0))
        pool = stage.pool("worker-77", addresses=[network.address])
        values = np.random.default_rng(0).normal(size=64).astype(np.float32)
        pool.initialise(counting_spec(dense=64), values, timeout_s=LIMIT_S)
        pool.push(update(1, (0,), values, ids=[123456789012345]), timeout_s=LIMIT_S)
        pool.pull([as_ids([123456789012345])], timeout_s=LIMIT_S)
        secrets = (values[10:20].tobytes(), np.int64(123456789012345).tobytes(), b"worker-77")
        overheard = network.overheard
        assert [secret in overheard for secret in secrets] == [not secured] * 3
        assert TOKEN.encode() not in overheard


def test_strangers_who_begin_no_handshake_keep_nobody_out(stage: Stage) -> None:
    host, _, port = stage.addresses[0].rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    try:
        until("all came", lambda: stage.servers[0].statistics()["connections"] >= 250)
        pool = stage.pool()
        assert pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize("what", ["certificate", "key"])
def test_a_server_refuses_what_is_no_certificate_or_key(authority: Authority, what: str) -> None:
    certified = authority.certified_key(["ps-0"])
    other = authority.certified_key(["ps-0"])
    certificate = "no certificate" if what == "certificate" else certified.certificate
    with pytest.raises(UserError, match="certificate"):
        _native.Server(0, 1, bulk_key(TOKEN, 0), certificate, other.key)
