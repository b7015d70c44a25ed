"""What the holder of a worker's or a server's token cannot do: real clients, real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.errors import Refused, UserError
from elasticdl.master.core import events as happened
from elasticdl.native import _native
from elasticdl.ps.lifecycle import control_server
from elasticdl.ps.saving import ServerPart
from elasticdl.ps.servicer import ControlService
from elasticdl.rpc.conversation import Report, RingCut, RingReport, RingSaved
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.shard import SnapshotId
from elasticdl.tokens import (
    MOST_TERM,
    bulk_key,
    bulk_token,
    derived,
    process_token,
    proof_to_master,
    proof_to_server,
    viewer_token,
)
from tests.contract import ps_stage
from tests.contract.driver_stage import TERM, TOKEN, Stage

pytestmark = pytest.mark.contract
LIMIT_S = 20.0
MINE = process_token(TOKEN, "worker-1")
"""All that the model's code in worker-1 has."""

GUESSES = (
    MINE,
    derived(MINE, "process worker-2"),
    derived(MINE, "process ps-0"),
    proof_to_master(MINE),
    viewer_token(TOKEN),
    process_token(TOKEN, "ps-1"),
)


# the master


@pytest.mark.parametrize(
    "name", ["worker-2", "worker-1.1", "worker-01", "ps-0", "master", "cli", ""]
)
@pytest.mark.parametrize("token", GUESSES)
def test_a_process_token_stands_for_no_other_name(stage: Stage, name: str, token: str) -> None:
    client = stage.client(name, token)
    for call in (client.attach, client.status, client.checkpoint, lambda: client.stop("x")):
        with pytest.raises(Refused, match=r"token is missing or wrong|may not call"):
            call()
    assert not stage.core.of(happened.ProcessAttached)
    assert not stage.core.of(happened.StopRequested)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.stop("x"),
        lambda client: client.scale(1, 100),
        lambda client: client.checkpoint(),
        lambda client: client.status(),
    ],
    ids=["stop", "scale", "checkpoint", "status"],
)
def test_a_worker_is_not_the_owner(stage: Stage, call: Callable[[MasterClient], object]) -> None:
    with pytest.raises(Refused, match="worker-1 may not call"):
        call(stage.worker())
    for event in (happened.StopRequested, happened.ScaleRequested, happened.CheckpointRequested):
        assert not stage.core.of(event)


def test_a_server_leases_nothing_and_stops_nothing(stage: Stage) -> None:
    server = stage.client("ps-0")
    server.attach()
    for call in (lambda: server.request_lease(0.1), lambda: server.stop("x")):
        with pytest.raises(Refused, match="ps-0 may not call"):
            call()


def test_a_worker_cannot_void_what_another_worker_holds(stage: Stage) -> None:
    stage.client("worker-2").attach()
    thief = stage.client("worker-2", MINE)
    thief._term = TERM
    for call in (lambda: thief.report(Report()), lambda: next(thief.orders())):
        with pytest.raises(Refused, match="another process's"):
            call()
    with pytest.raises(Refused, match="another process's"):
        thief.request_lease(0.1)


def test_a_worker_does_not_pass_for_a_server(stage: Stage) -> None:
    with pytest.raises(UserError, match="what only a server has"):
        stage.client("worker-1").attach("127.0.0.1:1", "127.0.0.1:2", 7)
    assert not stage.core.of(happened.ProcessAttached)


@pytest.mark.parametrize(
    "report",
    [
        Report(ring=RingReport(ready=True, version=1 << 40)),
        Report(ring_cuts=(RingCut(SnapshotId(1), 1 << 40),)),
        Report(ring_saves=(RingSaved(SnapshotId(1), "", 1 << 40),)),
    ],
    ids=["standing", "cut", "save"],
)
def test_nobody_reports_versions_of_a_ring_that_there_is_not(stage: Stage, report: Report) -> None:
    for name in ("worker-1", "ps-0"):
        client = stage.client(name)
        client.attach()
        with pytest.raises(Refused, match="about a ring that it cannot be in"):
            client.report(report)
    assert not stage.core.of(happened.SnapshotCut) + stage.core.of(happened.RingReported)


def test_the_version_of_the_servers_is_not_a_workers_to_report(stage: Stage) -> None:
    worker = stage.worker()
    worker.report(Report(version=1 << 40))
    assert not stage.core.of(happened.VersionAdvanced)


def test_a_worker_is_told_what_it_shows_to_servers_and_nothing_else(stage: Stage) -> None:
    attached = stage.client("worker-1").attach()
    keys = [bulk_key(TOKEN, server) for server in range(2)]
    assert attached.bulk_tokens == tuple(bulk_token(key, "worker-1") for key in keys)
    assert stage.client("ps-1").attach().bulk_tokens == (keys[1],)
    told = repr(attached) + str(attached.bulk_tokens)
    assert TOKEN not in told and not any(key in told for key in keys)


# the control of a server


class Controlled:
    """One server of the job, as its process serves it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        name = ProcessName.parse("ps-0")
        token = process_token(TOKEN, "ps-0")
        self.server = _native.Server(0, 1, bulk_key(TOKEN, 0))
        environment = RoleEnvironment("127.0.0.1:1", token, name, directory, "127.0.0.1")
        guard = TermGuard(token)
        guard.learn(TERM)
        service = ControlService(self.server, ServerPart(0, 1, "run"), guard)
        self.control, self.port = control_server(environment, service, guard)

    def call(self, work: Callable[[GrpcServerControl], Any], token: str, term: int = TERM) -> None:
        async def story() -> None:
            control = GrpcServerControl("ps-0", f"127.0.0.1:{self.port}", token, term)
            try:
                await work(control)
            finally:
                await control.close()

        asyncio.run(story())

    def close(self) -> None:
        self.control.stop(None).wait(LIMIT_S)
        self.server.stop()


@pytest.fixture
def controlled(tmp_path: Path) -> Iterator[Controlled]:
    made = Controlled(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "work",
    [
        lambda control: control.fence("worker-2", timeout_s=5.0),
        lambda control: control.save(SnapshotId(1), "/tmp", timeout_s=5.0),
        lambda control: control.gate(timeout_s=5.0),
    ],
    ids=["fence", "save", "gate"],
)
@pytest.mark.parametrize("term", [TERM, TERM + 1, MOST_TERM])
def test_nobody_but_the_master_controls_a_server_whatever_term_it_names(
    controlled: Controlled, work: Callable[[GrpcServerControl], Any], term: int
) -> None:
    # The proof that a server in the control of a liar has seen is of its name and of that term.
    seen = proof_to_server(process_token(TOKEN, "ps-0"), TERM)
    for token in (*GUESSES, bulk_key(TOKEN, 0), TOKEN, seen):
        with pytest.raises(Refused, match="token is missing or wrong"):
            controlled.call(work, token, term)
    controlled.call(lambda control: control.gate(timeout_s=5.0), process_token(TOKEN, "ps-0"), TERM)


def test_a_term_that_no_master_has_locks_no_master_out(controlled: Controlled) -> None:
    token = process_token(TOKEN, "ps-0")
    for term in (MOST_TERM + 1, 1 << 70, -1):
        with pytest.raises(UserError, match="is not a number from 0"):
            controlled.call(lambda control: control.gate(timeout_s=5.0), token, term)
    controlled.call(lambda control: control.gate(timeout_s=5.0), token)


# the bulk plane


def test_a_worker_pushes_under_its_own_name_only_and_no_server_greets_another_worker() -> None:
    stage = ps_stage.Stage(2, TOKEN)
    spec, zeros = ps_stage.counting_spec(), np.zeros(6, np.float32)
    try:
        own = ps_stage.shown(2, "worker-1", TOKEN)
        good = ServerPool(stage.addresses, "worker-1", own)
        good.initialise(spec, zeros, timeout_s=LIMIT_S)
        good.close()
        key = bulk_key(TOKEN, 1)
        for name, tokens in (
            ("worker-2", own),
            ("worker-1", own[::-1]),
            ("worker-1", [MINE, MINE]),
            # What ps-1 can make of its own key is worth nothing at ps-0.
            ("worker-2", [bulk_token(key, "worker-2")] * 2),
        ):
            thief = ServerPool(stage.addresses, name, tokens)
            with pytest.raises(Exception, match="does not know this process's token"):
                thief.initialise(spec, zeros, timeout_s=0.5)
            thief.close()
    finally:
        stage.close()


def test_the_wire_carries_no_token(stage: Stage) -> None:
    client = stage.client("worker-1")
    sent = str(client._calls._client._hello)
    assert MINE not in sent and TOKEN not in sent and proof_to_master(MINE) in sent
    assert MINE not in repr(client._credentials)
