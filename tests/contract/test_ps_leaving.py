"""A server that leaves: what it acknowledges is in the last checkpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.errors import ElasticDLError, TransientError
from elasticdl.ps.lifecycle import control_server
from elasticdl.ps.saving import ServerPart
from elasticdl.ps.servicer import ControlService
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.shard import SnapshotId
from elasticdl.tokens import process_token
from tests.contract.ps_stage import LIMIT_S, TOKEN, Stage, counting_spec, update
from tests.waiting import until

pytestmark = pytest.mark.contract
TERM = 7


class Leaving:
    """A server of a job, with its master's control and a worker."""

    def __init__(self, directory: Path) -> None:
        self.stage, self.directory = Stage(1), directory
        (self.server,) = self.stage.servers
        self._token = process_token(TOKEN, "ps-0")
        guard = TermGuard(self._token)
        self.service = ControlService(self.server, ServerPart(0, 1, "run"), guard)
        name = ProcessName.parse("ps-0")
        place = RoleEnvironment("127.0.0.1:1", self._token, name, directory, "127.0.0.1")
        self._grpc, self._port = control_server(place, self.service, guard)
        self.pool: ServerPool = self.stage.pool("worker-0")
        self.pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)

    def push(self, number: int) -> None:
        self.pool.push(update(number, (0,), np.ones(6, np.float32)), timeout_s=LIMIT_S)

    def master(self, work: Callable[[GrpcServerControl], Any]) -> None:
        async def story() -> None:
            control = GrpcServerControl("ps-0", f"127.0.0.1:{self._port}", self._token, TERM)
            try:
                await work(control)
            finally:
                await control.close()

        asyncio.run(story())

    def cut(self, snapshot: int, until: int) -> None:
        async def work(control: GrpcServerControl) -> None:
            assert await control.gate(timeout_s=LIMIT_S) == {"worker-0": until}
            cut = await control.cut(SnapshotId(snapshot), {"worker-0": until}, timeout_s=LIMIT_S)
            assert cut.version == until
            await control.ungate(timeout_s=LIMIT_S)

        self.master(work)

    def save(self, snapshot: int, *, complete: bool = True) -> None:
        """Not `complete`: another server failed."""

        async def work(control: GrpcServerControl) -> None:
            await control.save(SnapshotId(snapshot), str(self.directory), timeout_s=LIMIT_S)
            await control.drop(SnapshotId(snapshot), saved=complete, timeout_s=LIMIT_S)

        self.master(work)

    def close(self) -> None:
        self._grpc.stop(None).wait(LIMIT_S)
        self.stage.close()


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[Leaving]:
    made = Leaving(tmp_path)
    yield made
    made.close()


def test_a_leaving_server_admits_no_push_after_the_cut_of_its_last_checkpoint(
    leaving: Leaving,
) -> None:
    leaving.push(1)
    leaving.cut(1, until=1)
    leaving.service.leave()
    leaving.push(2)
    leaving.save(1)
    assert not leaving.service.handed_over.is_set(), "that checkpoint lacks a push"
    leaving.cut(2, until=2)

    refused: list[ElasticDLError] = []

    def push() -> None:
        try:
            leaving.push(3)
        except ElasticDLError as error:
            refused.append(error)

    late = threading.Thread(target=push)
    late.start()
    leaving.master(lambda control: control.keep((SnapshotId(2),), timeout_s=LIMIT_S))
    leaving.save(2)
    assert leaving.service.handed_over.is_set()
    with pytest.raises(TransientError, match="has its last checkpoint taken"):
        leaving.cut(3, until=2)
    late.join(0.2)
    assert late.is_alive() and leaving.server.version == 2
    leaving.server.stop()
    until("the push is given up", lambda: refused, LIMIT_S)
    late.join(LIMIT_S)
    assert leaving.server.version == 2


def test_a_leaving_server_takes_part_in_another_checkpoint_if_its_last_one_failed(
    leaving: Leaving,
) -> None:
    leaving.push(1)
    leaving.service.leave()
    leaving.cut(1, until=1)
    leaving.save(1, complete=False)
    assert not leaving.service.handed_over.is_set()
    leaving.cut(2, until=1)
    leaving.save(2)
    assert leaving.service.handed_over.is_set()


def test_a_sealed_server_admits_no_push_until_that_very_seal_is_undone(leaving: Leaving) -> None:
    leaving.push(1)
    one, other = SnapshotId(1), SnapshotId(2)

    async def seal(control: GrpcServerControl) -> None:
        await control.gate(timeout_s=LIMIT_S)
        await control.cut(one, {"worker-0": 1}, timeout_s=LIMIT_S)
        assert await control.seal(one, timeout_s=LIMIT_S) == {"worker-0": 1}
        # All of these may be late calls of an earlier cut, or of an earlier change.
        await control.ungate(timeout_s=LIMIT_S)
        await control.keep((one,), timeout_s=LIMIT_S)
        await control.unseal(SnapshotId(0), timeout_s=LIMIT_S)
        with pytest.raises(TransientError, match="move to other servers"):
            await control.gate(timeout_s=LIMIT_S)

    leaving.master(seal)
    late = threading.Thread(target=leaving.push, args=(2,))
    late.start()
    late.join(0.2)
    assert late.is_alive() and leaving.server.version == 1

    async def undo(control: GrpcServerControl) -> None:
        await control.unseal(one, timeout_s=LIMIT_S)
        with pytest.raises(TransientError, match="was given up"):
            await control.seal(one, timeout_s=LIMIT_S)
        with pytest.raises(TransientError, match="was given up"):
            await control.seal(other, timeout_s=LIMIT_S)

    leaving.master(undo)
    late.join(LIMIT_S)
    assert leaving.server.version == 2
